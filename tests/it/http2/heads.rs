//! Request heads: how they reach the upstream, and which of them are refused.

use std::io::Write;

use super::before;
use crate::support::http2::Http2Client;
use crate::support::http2_frames::{
    END_HEADERS, END_STREAM, FrameClient, HEADERS, block, fields_block, frame, get, request,
};
use crate::support::{Gateway, Upstream, eventually};

const PROTOCOL_ERROR: u32 = 1;

#[test]
fn a_request_reaches_the_upstream_as_if_it_had_come_by_http1() {
    let upstream = Upstream::start();
    let gateway = before(&upstream).start();
    let mut client = Http2Client::connect(gateway.http);
    let fields =
        [("cookie", "a=1"), ("x-own", "1"), ("cookie", "b=2"), ("x-tollgate-evil", "1"), ("x-request-id", "one")];
    let response = client.get("/a%20b?c=%2F&d", &fields);
    assert_eq!((response.status, response.text()), (200, "ok".to_owned()));
    assert_eq!(response.field("x-request-id"), "one");
    assert!(response.head.contains_key("date"));
    let seen = upstream.last();
    assert_eq!(seen.line, "GET /a%20b?c=%2F&d HTTP/1.1");
    let names: Vec<_> = seen.fields.iter().map(|(name, value)| (name.to_ascii_lowercase(), value.as_str())).collect();
    for expected in [
        ("host", "a.test"),
        ("cookie", "a=1; b=2"),
        ("x-own", "1"),
        ("x-request-id", "one"),
        ("x-forwarded-for", "127.0.0.1"),
        ("x-forwarded-proto", "http"),
        ("x-forwarded-host", "a.test"),
    ] {
        let found: Vec<_> = names.iter().filter(|(name, _)| name == expected.0).map(|(_, value)| *value).collect();
        assert_eq!(found, [expected.1], "{}", expected.0);
    }
    assert_eq!(seen.field("x-tollgate-evil"), None);
    // The same listener.
    assert_eq!(gateway.client().get("/", &[]).status, 200);
}

#[test]
fn heads_are_judged_by_the_rules_of_http1() {
    let upstream = Upstream::start();
    let limits = "limits: {headers: 20, header_bytes: 4KiB, target_bytes: 100B}";
    let gateway = before(&upstream).with(limits).with("access_log: {to: log}").start();
    let mut client = FrameClient::connect(gateway.http);
    let long = "x".repeat(5000);
    let many: Vec<_> = (0..30).map(|_| ("x-a", "1")).collect();
    let (path, host) = (|path: &str| block("GET", path, &[]), |fields: &[(&str, &str)]| block("GET", "/", fields));
    let pseudo = |authority: &[(&'static str, &'static str)]| {
        fields_block(&[&[(":method", "GET"), (":scheme", "http"), (":path", "/")], authority].concat())
    };
    let cases: Vec<(Vec<u8>, Result<u16, u32>)> = vec![
        (block("TRACE", "/", &[]), Ok(405)),
        (block("BREW", "/", &[]), Ok(400)),
        (path("*"), Ok(400)),
        (path(&format!("/{}", "x".repeat(100))), Ok(414)),
        (host(&[("host", "b.test")]), Ok(400)),
        (host(&[("host", "a.test"), ("host", "a.test")]), Ok(400)),
        (pseudo(&[]), Ok(400)),
        (pseudo(&[(":authority", "user@a.test")]), Ok(400)),
        (host(&[("content_length", "1")]), Ok(400)),
        (host(&[("x-a", " b")]), Ok(400)),
        (host(&[("x-a", &long)]), Ok(431)),
        (host(&many), Ok(431)),
        // These the protocol itself forbids.
        (host(&[("connection", "x-a")]), Err(PROTOCOL_ERROR)),
        (host(&[("transfer-encoding", "chunked")]), Err(PROTOCOL_ERROR)),
        (path("a"), Err(PROTOCOL_ERROR)),
        (path("/`"), Err(PROTOCOL_ERROR)),
        (path("http://a.test/"), Err(PROTOCOL_ERROR)),
        (pseudo(&[(":authority", "a.test"), (":path", "/b")]), Err(PROTOCOL_ERROR)),
    ];
    let mut stream = 1;
    let (mut refused, mut wrong) = (0.0, Vec::new());
    for (block, expected) in cases {
        client.write(&frame(HEADERS, END_STREAM | END_HEADERS, stream, &block));
        let outcome = client.outcome(stream);
        if outcome != expected {
            wrong.push((String::from_utf8_lossy(&block).into_owned(), outcome));
        }
        refused += f64::from(u8::from(expected.is_ok()));
        // A refusal ends a stream, never the connection.
        client.write(&get(stream + 2, "/"));
        assert_eq!(client.outcome(stream + 2), Ok(200));
        stream += 4;
    }
    assert!(wrong.is_empty(), "{wrong:?}");
    assert!(upstream.seen().iter().all(|seen| seen.line == "GET / HTTP/1.1"));
    gateway.expect("tollgate_refused_requests_total", &["bad_request"], refused);
    // The others are in no metric of requests.
    gateway.expect("tollgate_http2_errors_total", &["kind=\"stream\""], 6.0);
    gateway.expect("tollgate_http2_errors_total", &[], 6.0);
    let log = || std::fs::read_to_string(gateway.file("log")).unwrap();
    eventually("the refusals are logged", || log().matches("\"reason\":\"bad_request\"").count() == 12);
}

#[test]
fn a_refused_head_is_answered_with_all_fields() {
    let upstream = Upstream::start();
    let gateway = before(&upstream).start();
    let mut client = Http2Client::connect(gateway.http);
    let response = client.get("/", &[("host", "b.test"), ("x-request-id", "mine")]);
    assert_eq!(response.status, 400);
    for (name, value) in [
        ("x-tollgate-reason", "bad_request"),
        ("x-request-id", "mine"),
        ("cache-control", "no-store"),
        ("content-type", "application/problem+json"),
    ] {
        assert_eq!(response.field(name), value);
    }
    let body = serde_json::from_slice::<serde_json::Value>(&response.body).unwrap();
    assert_eq!((&body["status"], &body["request_id"]), (&400.into(), &"mine".into()));
    let refused = client.send("BREW", "/", &[("content-type", "application/grpc")], &[]);
    assert_eq!((refused.status, refused.field("grpc-status")), (200, "3"));
    // What is sent after it is discarded, and the connection goes on.
    let upload = vec![b'x'; 300_000];
    let response = client.send("POST", "/", &[("host", "b.test")], &[&upload, b"end"]);
    assert_eq!(response.status, 400);
    assert_eq!(client.get("/", &[]).status, 200);
}

#[test]
fn rules_see_what_they_see_over_http1() {
    let upstream = Upstream::start();
    let rules =
        "rules: [{name: paths, match: {path: /limited/*}, limit_keys: [cookie:sid], algorithm_config: {rate: 2/day}}]";
    let gateway = before(&upstream).with(rules).start();
    let mut client = Http2Client::connect(gateway.http);
    for ambiguous in ["/a%2fb", "/..;/limited/x", "//limited/x"] {
        let response = client.get(ambiguous, &[]);
        assert_eq!((response.status, response.field("x-tollgate-reason")), (400, "bad_request"), "{ambiguous}");
    }
    let twice = client.get("/limited/x", &[("cookie", "sid=a"), ("cookie", "sid=b")]);
    assert_eq!((twice.status, twice.field("x-tollgate-reason")), (400, "ambiguous_request"));
    // One bucket, by whichever protocol.
    let fields = [("cookie", "other=1"), ("cookie", "sid=a")];
    assert_eq!(client.get("/limited/x", &fields).field("ratelimit-remaining"), "1");
    assert_eq!(gateway.client().get("/limited/x", &[("Cookie", "sid=a")]).field("ratelimit-remaining").unwrap(), "0");
    assert_eq!(client.get("/limited/x", &fields).status, 429);
    assert!(gateway_is_unharmed(&gateway));
}

/// The http crate removes a fragment before the gateway could refuse it.
#[test]
fn a_fragment_is_seen_neither_by_rules_nor_by_the_upstream() {
    let upstream = Upstream::start();
    let rules = "rules: [{name: a, match: {path: /a}, limit_keys: [], algorithm_config: {rate: 1/day}}]";
    let gateway = before(&upstream).with(rules).start();
    let mut client = FrameClient::connect(gateway.http);
    for (stream, status) in [(1, 200), (3, 429)] {
        let block = block("GET", "/a#/../b?c", &[]);
        client.write(&frame(HEADERS, END_STREAM | END_HEADERS, stream, &block));
        assert_eq!(client.outcome(stream), Ok(status));
    }
    assert_eq!(upstream.last().line, "GET /a HTTP/1.1");
}

fn gateway_is_unharmed(gateway: &Gateway) -> bool {
    gateway.client().get("/", &[]).status == 200 && !gateway.errors().contains("panicked")
}

#[test]
fn fields_of_responses_are_those_of_http1_without_its_connection() {
    let upstream = Upstream::answering(|_, stream| {
        let _ = stream.write_all(
            b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\nX-Tollgate-Evil: 1\r\n\r\n\
              HTTP/1.1 200 OK\r\nConnection: keep-alive, x-hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\nX-Own: 1\r\n\
              Upgrade: h2c\r\nTransfer-Encoding: chunked\r\nX-Request-Id: theirs\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        );
    });
    let gateway = before(&upstream).start();
    let mut client = Http2Client::connect(gateway.http);
    let response = client.get("/", &[("x-request-id", "mine")]);
    assert_eq!((response.status, response.text()), (200, "ok".to_owned()));
    assert_eq!((response.field("x-own"), response.field("x-request-id")), ("1", "mine"));
    for name in ["connection", "x-hop", "keep-alive", "transfer-encoding", "upgrade"] {
        assert!(!response.head.contains_key(name), "{name}");
    }
    // The interim response, of which the other client says nothing.
    let mut client = FrameClient::connect(gateway.http);
    client.write(&request(1, "GET", "/", &[], END_STREAM));
    assert_eq!((client.outcome(1), client.outcome(1)), (Ok(103), Ok(200)));
}
