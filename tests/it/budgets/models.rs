//! Costs in tokens, which the responses of language models tell: whole, streamed, without usage, and cut.

use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use super::{LIMIT, RESERVE, budget_with};
use crate::support::{Client, Gateway, Response, Upstream, access_log, eventually, tollgate};

const REQUEST: &str = r#"{"model":"m","messages":[{"role":"user","content":"Hi there"}]}"#;

/// Two events of 8 bytes of text each, and the usage.
const EVENTS: [&str; 4] = [
    "data: {\"model\":\"m-1\",\"choices\":[{\"delta\":{\"content\":\"12345678\"}}],\"usage\":null}\n\n",
    "data: {\"model\":\"m-1\",\"choices\":[{\"delta\":{\"content\":\"abcdefgh\"}}],\"usage\":null}\n\n",
    "data: {\"model\":\"m-1\",\"choices\":[],\"usage\":{\"prompt_tokens\":20,\"completion_tokens\":30,\"prompt_tokens_details\":{\"cached_tokens\":10}}}\n\n",
    "data: [DONE]\n\n",
];

/// An upstream whose response the field `X-Mode` chooses.
fn model() -> Upstream {
    Upstream::answering(|request, stream| {
        let json = |stream: &mut TcpStream, status: u16, body: &str| {
            let length = body.len();
            let head =
                format!("HTTP/1.1 {status} Some\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n");
            let _ = stream.write_all(format!("{head}{body}").as_bytes());
        };
        let events = |stream: &mut TcpStream, events: &[&str]| {
            let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
            let _ = stream.write_all(head.as_bytes());
            for event in events {
                let _ = stream.write_all(format!("{:x}\r\n{event}\r\n", event.len()).as_bytes());
            }
        };
        match request.field("x-mode").unwrap_or_default() {
            "whole" => json(
                stream,
                200,
                r#"{"model":"m-1","choices":[{"message":{"content":"long"}}],"usage":{"prompt_tokens":20,"completion_tokens":30}}"#,
            ),
            "without" => json(stream, 200, r#"{"model":"m-1","choices":[{"message":{"content":"12345678"}}]}"#),
            "missing" => json(stream, 404, r#"{"error":{"message":"there is no such model"}}"#),
            "wrong" => json(stream, 400, r#"{"error":{},"usage":{"prompt_tokens":3,"completion_tokens":0}}"#),
            "moved" => json(stream, 302, "<html>found elsewhere</html>"),
            "words" => json(stream, 200, "plain words, which are not JSON"),
            "long-event" => {
                let text = "x".repeat(1 << 20);
                events(
                    stream,
                    &[EVENTS[0], &format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{text}\"}}}}]}}\n\n")],
                );
                let _ = stream.write_all(b"0\r\n\r\n");
            }
            "busy" => json(stream, 429, r#"{"error":{}}"#),
            "stream" => {
                events(stream, &EVENTS);
                let _ = stream.write_all(b"0\r\n\r\n");
            }
            "cut" => {
                events(stream, &EVENTS[..2]);
                let _ = stream.shutdown(Shutdown::Both);
            }
            "pause" => {
                events(stream, &EVENTS[..2]);
                // Until the gateway has left.
                while stream.write_all(b"3\r\n:\n\n\r\n").is_ok() {
                    std::thread::sleep(Duration::from_millis(10));
                }
            }
            "zero" => json(
                stream,
                200,
                r#"{"model":"m-1","choices":[{"message":{"content":"12345678"}}],"usage":{"prompt_tokens":0,"completion_tokens":0}}"#,
            ),
            _ => json(stream, 429, "{}"),
        }
    })
}

fn tokens() -> String {
    budget_with("cost_source: llm_tokens")
}

fn begin(gateway: &Gateway, mode: &str) -> Client {
    begin_at(gateway, "/v1/chat/completions", mode)
}

fn begin_at(gateway: &Gateway, path: &str, mode: &str) -> Client {
    begin_with(gateway, path, mode, "application/json")
}

fn begin_with(gateway: &Gateway, path: &str, mode: &str, content_type: &str) -> Client {
    let mut client = gateway.client();
    let length = REQUEST.len();
    client.write(&format!(
        "POST {path} HTTP/1.1\r\nHost: a\r\nX-User: ann\r\nX-Mode: {mode}\r\nAccept-Encoding: gzip, br\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\n\r\n{REQUEST}"
    ));
    client
}

fn ask(gateway: &Gateway, mode: &str) -> Response {
    begin(gateway, mode).response("POST").unwrap()
}

/// Returns what is spent and held. Sends a request that costs nothing.
fn used(gateway: &Gateway) -> u64 {
    let response = ask(gateway, "nothing");
    let policy = response.field("ratelimit-policy").unwrap();
    assert!(policy.ends_with(";qu=\"tokens\""), "{policy}");
    // The older fields count requests.
    assert_eq!(response.field("ratelimit-remaining"), None);
    let level = response.field("ratelimit").unwrap();
    let left = level.split(";r=").nth(1).unwrap().split(';').next().unwrap();
    LIMIT - RESERVE - left.parse::<u64>().unwrap()
}

#[track_caller]
fn becomes(gateway: &Gateway, spent: u64) {
    for _ in 0..2 {
        eventually("the cost is settled", || used(gateway) == spent);
    }
}

/// The estimate of the request: a token for 4 bytes of its names and texts.
fn input() -> u64 {
    let text = "model m messages role user content Hithere".replace(' ', "").len() + 1;
    u64::try_from(text).unwrap().div_ceil(4)
}

#[test]
fn whole_and_streamed_responses_cost_their_usage() {
    let upstream = model();
    let gateway = Gateway::before(&upstream)
        .with(&format!("access_log: {{to: access.jsonl, when: [allowed, refused, error]}}{}", tokens()))
        .start();
    assert_eq!(ask(&gateway, "whole").status, 200);
    becomes(&gateway, 50);
    let streamed = ask(&gateway, "stream");
    assert_eq!(streamed.body, EVENTS.concat());
    becomes(&gateway, 100);
    // The tokens of one model are counted once, whatever the number of limits.
    for (kind, tokens) in [("input", 30.0), ("output", 60.0), ("cached", 10.0), ("cache_write", 0.0)] {
        gateway.expect("tollgate_llm_tokens_total", &["model=\"m-1\"", &format!("kind=\"{kind}\"")], tokens);
    }
    // An upstream must not compress what is read.
    let encodings: Vec<_> =
        upstream.seen().iter().map(|seen| seen.field("accept-encoding").map(str::to_owned)).collect();
    assert!(encodings.iter().all(|encoding| encoding.as_deref() == Some("identity")), "{encodings:?}");
    gateway.expect("rate_limiter_usage_missing_total", &["rule=\"spend\""], 0.0);
    let mut lines = Vec::new();
    eventually("the request is logged", || {
        lines = access_log::lines(&gateway);
        lines.iter().any(|line| line["usage"]["cached"] == 10)
    });
    let line = lines.iter().find(|line| line["usage"]["cached"] == 10).unwrap();
    assert_eq!((line["settled"].as_u64(), line["cost"].as_u64()), (Some(50), Some(RESERVE)));
    assert_eq!(
        (line["model"].as_str(), line["usage"]["input"].as_u64(), line["usage"]["output"].as_u64()),
        (Some("m-1"), Some(10), Some(30))
    );
}

#[test]
fn a_response_without_usage_costs_an_estimate() {
    let upstream = model();
    let gateway = Gateway::start(&upstream, &tokens());
    assert_eq!(ask(&gateway, "without").status, 200);
    becomes(&gateway, input() + 2);
    gateway.expect("rate_limiter_usage_missing_total", &["rule=\"spend\""], 1.0);
    // What the upstream has refused costs nothing.
    assert_eq!(ask(&gateway, "busy").status, 429);
    becomes(&gateway, input() + 2);
    // An estimate counts as tokens as well, and what was refused does not.
    gateway.expect("tollgate_llm_tokens_total", &["model=\"m-1\"", "kind=\"output\""], 2.0);
    gateway.expect("tollgate_llm_tokens_total", &["model=\"unnamed\"", "kind=\"input\""], 0.0);
}

/// A server that does not count says 0.
#[test]
fn a_usage_of_0_costs_an_estimate() {
    let upstream = model();
    let gateway = Gateway::start(&upstream, &tokens());
    assert_eq!(ask(&gateway, "zero").status, 200);
    becomes(&gateway, input() + 2);
    gateway.expect("rate_limiter_usage_missing_total", &["rule=\"spend\""], 1.0);
}

/// The model has not answered, and `refund_on` does not have the status.
#[test]
fn a_failed_response_without_usage_costs_one_token_or_the_default() {
    let upstream = model();
    for (keys, cost) in
        [("", 1), (", weights: {input: 4, output: 8}", 4), (", default_cost: 2", 2), (", default_cost: 0", 0)]
    {
        let gateway = Gateway::start(&upstream, &budget_with(&format!("cost_source: llm_tokens{keys}")));
        for (sent, (mode, status)) in [("missing", 404), ("moved", 302)].into_iter().enumerate() {
            assert_eq!(ask(&gateway, mode).status, status);
            becomes(&gateway, cost * (sent as u64 + 1));
        }
        gateway.expect("rate_limiter_usage_missing_total", &["rule=\"spend\""], 2.0);
    }
    let gateway = Gateway::start(&upstream, &tokens());
    assert_eq!(ask(&gateway, "wrong").status, 400);
    becomes(&gateway, 3);
}

/// A response that cannot be read is estimated from all bytes that have passed.
#[test]
fn a_response_that_cannot_be_read_costs_its_bytes() {
    let upstream = model();
    let gateway = Gateway::start(&upstream, &budget_with("cost_source: llm_tokens").replace("1000", "1000000"));
    let used = || {
        let level = ask(&gateway, "nothing").field("ratelimit").unwrap();
        let left = level.split(";r=").nth(1).unwrap().split(';').next().unwrap();
        1_000_000 - RESERVE - left.parse::<u64>().unwrap()
    };
    assert_eq!(ask(&gateway, "words").status, 200);
    let words = input() + "plain words, which are not JSON".len().div_ceil(4) as u64;
    eventually("the words are counted", || used() == words);
    assert_eq!(ask(&gateway, "long-event").status, 200);
    let bytes = (1 << 20) + "data: {\"choices\":[{\"delta\":{\"content\":\"\"}}]}\n\n".len() as u64 + 8;
    eventually("the long event is counted", || used() == words + input() + bytes.div_ceil(4));
}

/// What stands for content elsewhere is the same when it is reserved and when it is estimated.
#[test]
fn content_elsewhere_is_estimated_as_it_is_reserved() {
    let upstream = model();
    let limit = |reserve: &str| {
        format!("{{algorithm: fixed_window, limit: 100000, window: 366d, cost_source: llm_tokens, reserve: {reserve}}}")
    };
    let [small, usual] = [limit("{worst: {default_output: 70}}"), limit("9")];
    let rules = format!("rules: [{{name: spend, limit_keys: [], limits: {{small: {small}, usual: {usual}}}}}]");
    let gateway = Gateway::start(&upstream, &rules);
    let body = r#"{"previous_response_id":"r","max_output_tokens":9}"#;
    let fields = [("X-Mode", "words"), ("Content-Type", "application/json")];
    let response = gateway.client().send("POST", "/v1/responses", &fields, body);
    assert_eq!(response.status, 200);
    let known = "previous_response_idrmax_output_tokens9".len().div_ceil(4)
        + "plain words, which are not JSON".len().div_ceil(4);
    let admin = gateway.admin.to_string();
    for (rule, elsewhere) in [("spend.small", 70), ("spend.usual", 4096)] {
        let spent = format!("{} spent, 0 held", known + elsewhere);
        eventually(&spent, || tollgate(&["bucket", "show", "--admin", &admin, rule]).out.contains(&spent));
    }
}

#[test]
fn a_stream_that_the_upstream_cuts_costs_an_estimate() {
    let upstream = model();
    let gateway = Gateway::start(&upstream, &tokens());
    assert!(begin(&gateway, "cut").response("POST").is_err());
    becomes(&gateway, input() + 4);
}

/// The content type of the request is the client's choice.
#[test]
fn a_cut_stream_costs_an_estimate_whatever_the_content_type_of_the_request() {
    let upstream = model();
    let gateway = Gateway::start(&upstream, &budget_with("cost_source: llm_tokens, default_cost: 0"));
    let mut running = begin_with(&gateway, "/v1/chat/completions", "cut", "application/grpc+json");
    assert!(running.response("POST").is_err());
    becomes(&gateway, input() + 4);
}

#[test]
fn a_stream_that_the_client_cuts_costs_an_estimate() {
    let upstream = model();
    let gateway = Gateway::start(&upstream, &tokens());
    let mut running = begin(&gateway, "pause");
    running.until("abcdefgh");
    eventually("the reservation is held", || used(&gateway) == RESERVE);
    drop(running);
    becomes(&gateway, input() + 4);
}

#[test]
fn another_spelling_of_a_path_is_not_free() {
    let upstream = model();
    let gateway = Gateway::start(&upstream, &format!("llm: {{other: free}}{}", tokens()));
    let ask = |path: &str| begin_at(&gateway, path, "whole").response("POST").unwrap().status;
    assert_eq!((ask("/v1/files"), used(&gateway)), (200, 0));
    assert_eq!(ask("/v1/chat/%63ompletions"), 200);
    becomes(&gateway, 50);
    assert_eq!(ask("/v1//chat/./completions;a=b"), 200);
    becomes(&gateway, 100);
    // Upstreams read this path in more than one way.
    assert_eq!(ask("/v1/chat%2fcompletions"), 400);
    becomes(&gateway, 100);
}

#[test]
fn a_request_in_no_known_format_is_refused_and_counted_at_its_limit() {
    let upstream = model();
    let gateway = Gateway::start(&upstream, &tokens());
    let refused = begin_at(&gateway, "/v1/files", "whole").response("POST").unwrap();
    assert_eq!((refused.status, refused.field("x-tollgate-reason").as_deref()), (400, Some("unpriced")));
    assert_eq!(upstream.count(), 0);
    let labels = ["rule=\"spend\"", "mode=\"enforce\""];
    gateway.expect("rate_limiter_rejected_total", &[labels[0], labels[1], "reason=\"unpriced\""], 1.0);
    gateway.expect("rate_limiter_requests_total", &labels, 1.0);
    gateway.expect("rate_limiter_allowed_total", &labels, 0.0);
}
