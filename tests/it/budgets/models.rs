//! Costs in tokens, which the responses of language models tell: whole, streamed, without usage, and cut.

use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use super::{LIMIT, RESERVE, budget_with};
use crate::support::{Client, Gateway, Response, Upstream, access_log, eventually};

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
            _ => json(stream, 200, r#"{"usage":{"prompt_tokens":0,"completion_tokens":0}}"#),
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
    let mut client = gateway.client();
    let length = REQUEST.len();
    client.write(&format!(
        "POST {path} HTTP/1.1\r\nHost: a\r\nX-User: ann\r\nX-Mode: {mode}\r\nAccept-Encoding: gzip, br\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{REQUEST}"
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

#[test]
fn a_stream_that_the_upstream_cuts_costs_an_estimate() {
    let upstream = model();
    let gateway = Gateway::start(&upstream, &tokens());
    assert!(begin(&gateway, "cut").response("POST").is_err());
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
