//! The requests that have a line in the access log, and the kind of each line: allowed, refused or error.

use std::io::Write;
use std::net::Shutdown;
use std::time::Duration;

use serde_json::json;

use crate::support::access_log::{SECRET, TO_FILE, lines, read, token, wait_for, with_id};
use crate::support::mint::epoch;
use crate::support::{Gateway, Upstream, eventually};

#[test]
fn every_answer_is_of_exactly_one_kind() {
    let upstream = Upstream::answering(|seen, stream| {
        let path = seen.line.split(' ').nth(1).unwrap();
        match path {
            "/closed" => drop(stream.shutdown(Shutdown::Both)),
            "/slow" | "/left" => std::thread::sleep(Duration::from_secs(5)),
            "/broken-off" => {
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf");
                let _ = stream.shutdown(Shutdown::Both);
            }
            "/fault" => drop(stream.write_all(b"HTTP/1.1 500 Oh\r\nContent-Length: 3\r\n\r\noh\n")),
            _ => drop(stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")),
        }
    });
    let gateway = Gateway::start(
        &upstream,
        &format!(
            "
upstream_timeouts: {{read: 3s}}
limits: {{body_bytes: 10B}}
jwt: {{algorithms: [HS256], keys: {{secret: {SECRET}}}}}
rules:
  - {{name: closed-to-all, match: {{path: /denied}}, action: deny}}
  - {{name: user, limit_keys: [query:user], algorithm_config: {{rate: 1/day, cost_source: query:cost}}}}
{TO_FILE}"
        ),
    );
    let good = token(&json!({"sub": "ann", "exp": epoch() + 600}));
    let late = token(&json!({"sub": "ann", "exp": 1}));
    for (id, method, target, authorization, body, code) in [
        ("plain", "GET", "/", "", "", 200),
        ("with-token", "POST", "/", &*good, "body", 200),
        ("paid", "GET", "/?user=a", "", "", 200),
        ("theirs", "GET", "/fault", "", "", 500),
        ("used-up", "GET", "/?user=a", "", "", 429),
        ("too-dear", "GET", "/?user=a&cost=2", "", "", 429),
        ("denied", "GET", "/denied", "", "", 403),
        ("twice", "GET", "/?user=a&user=b", "", "", 400),
        ("unreadable", "GET", "/%00", "", "", 400),
        ("late-token", "GET", "/", &*late, "", 401),
        ("long", "POST", "/", "", "eleven bytes", 413),
        ("closed", "POST", "/closed", "", "x", 502),
        ("slow", "POST", "/slow", "", "x", 504),
        ("trace", "TRACE", "/", "", "", 405),
    ] {
        let mut fields = vec![("X-Request-Id", id)];
        if !authorization.is_empty() {
            fields.push(("Authorization", authorization));
        }
        assert_eq!(gateway.client().send(method, target, &fields, body).status, code, "{id}");
    }
    let mut client = gateway.client();
    let decisions = || gateway.metric("rate_limiter_decisions_total", &[]);
    let before = decisions();
    client.write("POST / HTTP/1.1\r\nHost: a\r\nX-Request-Id: streamed\r\nTransfer-Encoding: chunked\r\n\r\n");
    // Chunks that arrive with the head are checked before the decision.
    eventually("it is decided", || decisions() > before);
    client.write("c\r\ntwelve bytes\r\n0\r\n\r\n");
    assert_eq!(client.response("POST").unwrap().status, 413);
    let mut client = gateway.client();
    client.write("GET /broken-off HTTP/1.1\r\nHost: a\r\nX-Request-Id: broken-off\r\n\r\n");
    assert!(client.response("GET").is_err());
    let mut client = gateway.client();
    client.write("GET / HTTP/1.1\r\nX-Request-Id: no-host\r\n\r\n");
    assert_eq!(client.response("GET").unwrap().status, 400);
    let before = upstream.count();
    let mut client = gateway.client();
    client.write("GET /left HTTP/1.1\r\nHost: a\r\nX-Request-Id: left\r\n\r\n");
    eventually("it arrives", || upstream.count() > before);
    drop(client);

    let lines = wait_for(&gateway, 18);
    for (id, kind, code, origin, reason, forwarded) in [
        ("plain", "allowed", 200, "upstream", "", true),
        ("with-token", "allowed", 200, "upstream", "", true),
        ("paid", "allowed", 200, "upstream", "", true),
        ("theirs", "allowed", 500, "upstream", "", true),
        ("used-up", "refused", 429, "gateway", "token_bucket_exceeded", false),
        ("too-dear", "refused", 429, "gateway", "cost_too_large", false),
        ("denied", "refused", 403, "gateway", "denied", false),
        ("twice", "refused", 400, "gateway", "ambiguous_request", false),
        ("unreadable", "refused", 400, "gateway", "bad_request", false),
        ("late-token", "refused", 401, "gateway", "token_invalid", false),
        ("long", "refused", 413, "gateway", "bad_request", false),
        ("closed", "error", 502, "gateway", "", true),
        ("slow", "error", 504, "gateway", "", true),
        ("trace", "refused", 405, "gateway", "bad_request", false),
        ("streamed", "refused", 413, "upstream", "bad_request", true),
        ("broken-off", "error", 200, "upstream", "", true),
        ("no-host", "refused", 400, "gateway", "bad_request", false),
        ("left", "error", 499, "upstream", "", true),
    ] {
        let line = with_id(&lines, id);
        let found = (&line["kind"], &line["code"], &line["origin"]);
        assert_eq!(found, (&json!(kind), &json!(code), &json!(origin)), "{line}");
        assert_eq!(line["reason"].as_str().unwrap_or_default(), reason, "{line}");
        assert_eq!(line["upstream_us"].is_u64(), forwarded, "{line}");
        let (duration, upstream) = (line["duration_us"].as_u64().unwrap(), line["upstream_us"].as_u64());
        assert!(upstream.unwrap_or(0) <= duration, "{line}");
        // What was answered by its head alone was never decided.
        let decided = !matches!(id, "long" | "trace" | "no-host");
        assert_eq!(line["decision_us"].is_u64(), decided, "{line}");
    }
    let sizes = |id| {
        let line = with_id(&lines, id);
        (line["request_bytes"].as_u64().unwrap(), line["response_bytes"].as_u64().unwrap())
    };
    assert_eq!((sizes("plain"), sizes("with-token"), sizes("theirs")), ((0, 2), (4, 2), (0, 3)));
    assert_eq!((sizes("broken-off").1, sizes("left")), (4, (0, 0)));
    assert!(sizes("used-up").1 > 200 && sizes("trace").1 > 60);
    assert_eq!(with_id(&lines, "trace")["method"], "OTHER");
    assert!(with_id(&lines, "slow")["upstream_us"].as_u64().unwrap() >= 2_450_000);
    let refused = lines.iter().filter(|line| line["kind"] == "refused").count();
    assert_eq!(gateway.metric("tollgate_refused_requests_total", &[]), f64::from(u32::try_from(refused).unwrap()));
    assert_eq!(gateway.metric("tollgate_http_requests_total", &[]), 18.0);
    gateway.expect("tollgate_access_log_dropped_total", &[], 0.0);
}

#[test]
fn only_the_kinds_that_are_asked_for_are_written() {
    let upstream = Upstream::answering(|seen, stream| match seen.line.contains("/closed") {
        true => drop(stream.shutdown(Shutdown::Both)),
        false => drop(stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")),
    });
    let text = |log: &str| format!("rules: [{{name: shut, match: {{path: /shut}}, action: deny}}]\n{log}");
    let gateway = Gateway::start(&upstream, &text(""));
    let round = |code: u16| {
        for (target, status) in [("/", 200), ("/shut", 403), ("/closed", 502)] {
            assert_eq!(gateway.client().send("POST", target, &[], "x").status, status);
        }
        let mut bad = gateway.client();
        bad.write("GARBAGE\r\n\r\n");
        assert_eq!(bad.response("GET").unwrap().status, code);
    };
    round(400);
    let mut before = 0;
    for (when, kinds) in [
        ("refused", &["refused", "refused"][..]),
        ("[error]", &["error"]),
        ("[error, allowed]", &["allowed", "error"]),
        ("all", &["allowed", "error", "refused", "refused"]),
    ] {
        gateway.reload(&upstream, &text(&format!("access_log: {{to: access.jsonl, when: {when}}}")));
        round(400);
        let lines = wait_for(&gateway, before + kinds.len());
        // A line is written after its answer: two connections may come in any order.
        let mut found: Vec<_> = lines[before..].iter().map(|line| line["kind"].as_str().unwrap()).collect();
        found.sort_unstable();
        assert_eq!(found, kinds, "{when}");
        before = lines.len();
    }
    gateway.reload(&upstream, &text(""));
    round(400);
    gateway.reload(&upstream, &text("access_log: {to: other.jsonl}"));
    round(400);
    eventually("the other file has them", || read(&gateway.file("other.jsonl")).len() == 4);
    assert_eq!(lines(&gateway).len(), before);
}
