//! Pipelined requests on one connection: each is answered, and none gets bytes of another.

use std::io::Write;
use std::time::Duration;

use proptest::prelude::*;

use crate::support::websocket::{SWITCHED, upgrade};
use crate::support::{Gateway, Upstream, continue_upload, eventually, short_or_long, wait_for_nothing};

/// One request. Its number is its target.
#[derive(Clone, Debug)]
enum Message {
    Plain,
    Head,
    Length(Vec<u8>),
    /// The body in parts, with an extension or trailers.
    Chunked(Vec<Vec<u8>>, &'static str, &'static str),
}

impl Message {
    fn method(&self) -> &'static str {
        match self {
            Message::Plain => "GET",
            Message::Head => "HEAD",
            Message::Length(_) | Message::Chunked(..) => "POST",
        }
    }

    fn body(&self) -> Vec<u8> {
        match self {
            Message::Plain | Message::Head => Vec::new(),
            Message::Length(body) => body.clone(),
            Message::Chunked(parts, ..) => parts.concat(),
        }
    }

    fn bytes(&self, number: usize) -> Vec<u8> {
        let mut bytes = format!("{} /{number} HTTP/1.1\r\nHost: a\r\n", self.method()).into_bytes();
        match self {
            Message::Plain | Message::Head => bytes.extend_from_slice(b"\r\n"),
            Message::Length(body) => {
                bytes.extend_from_slice(format!("Content-Length: {}\r\n\r\n", body.len()).as_bytes());
                bytes.extend_from_slice(body);
            }
            Message::Chunked(parts, extension, trailers) => {
                bytes.extend_from_slice(b"Transfer-Encoding: chunked\r\n\r\n");
                for part in parts {
                    bytes.extend_from_slice(format!("{:X}{extension}\r\n", part.len()).as_bytes());
                    bytes.extend_from_slice(part);
                    bytes.extend_from_slice(b"\r\n");
                }
                bytes.extend_from_slice(format!("0{extension}\r\n{trailers}\r\n").as_bytes());
            }
        }
        bytes
    }
}

/// Returns bodies that would be requests if they were parsed as such.
fn body() -> impl Strategy<Value = Vec<u8>> {
    let smuggled = prop::sample::select(vec![
        &b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"[..],
        b"0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n",
        b"\r\n\r\n",
        b"\r\n",
    ]);
    prop_oneof![
        prop::collection::vec(any::<u8>(), 1..40),
        smuggled.prop_map(<[u8]>::to_vec),
        (any::<u8>(), 1usize..70_000).prop_map(|(byte, length)| vec![byte; length]),
    ]
}

fn message() -> impl Strategy<Value = Message> {
    let extension = prop::sample::select(vec!["", ";a", ";a=\"b;c\""]);
    let trailers = prop::sample::select(vec!["", "X-Sum: 1\r\n", "A:\r\nContent-Length: 5\r\n"]);
    prop_oneof![
        Just(Message::Plain),
        Just(Message::Head),
        body().prop_map(Message::Length),
        (prop::collection::vec(body(), 0..4), extension, trailers)
            .prop_map(|(parts, extension, trailers)| Message::Chunked(parts, extension, trailers)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: short_or_long(60, 600), max_shrink_iters: 50, ..ProptestConfig::default() })]

    #[test]
    fn the_upstream_sees_the_messages_that_were_sent(
        messages in prop::collection::vec(message(), 1..9),
        parts in prop::collection::vec(1usize..3000, 1..6),
        paused in any::<bool>(),
    ) {
        thread_local! {
            static BOTH: (Upstream, Gateway) = {
                let upstream = Upstream::start();
                let gateway = Gateway::start(&upstream, "");
                (upstream, gateway)
            };
        }
        BOTH.with(|(upstream, gateway)| {
            let before = upstream.count();
            let mut client = gateway.client();
            let bytes: Vec<u8> = (0..).zip(&messages).flat_map(|(number, message)| message.bytes(number)).collect();
            let mut rest = &bytes[..];
            for length in parts.iter().cycle() {
                let (part, behind) = rest.split_at((*length).min(rest.len()));
                client.write_bytes(part).unwrap();
                rest = behind;
                if rest.is_empty() {
                    break;
                }
                if paused {
                    std::thread::sleep(Duration::from_micros(200));
                }
            }
            for message in &messages {
                prop_assert_eq!(client.response(message.method()).unwrap().status, 200);
            }
            let seen = upstream.seen().split_off(before);
            let lines: Vec<_> = seen.iter().map(|seen| seen.line.clone()).collect();
            let sent: Vec<_> = (0..).zip(&messages).map(|(number, message): (usize, _)| format!("{} /{number} HTTP/1.1", message.method())).collect();
            prop_assert_eq!(lines, sent);
            for (seen, message) in seen.iter().zip(&messages) {
                prop_assert!(seen.body == message.body(), "{} has another body", seen.line);
            }
            Ok(())
        })?;
    }
}

#[test]
fn a_hundred_pipelined_requests_are_answered_in_their_order() {
    let upstream = Upstream::answering(|seen, stream| {
        let _ = write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{}", seen.line.len(), seen.line);
    });
    let gateway = Gateway::start(&upstream, "");
    let mut client = gateway.client();
    let all: String = (0..100).map(|number| format!("GET /{number} HTTP/1.1\r\nHost: a\r\n\r\n")).collect();
    client.write(&all);
    for number in 0..100 {
        assert_eq!(client.response("GET").unwrap().body, format!("GET /{number} HTTP/1.1"));
    }
}

#[test]
fn a_request_that_arrives_while_another_is_served_waits_for_it() {
    let upstream = Upstream::answering(|_, stream| {
        std::thread::sleep(Duration::from_millis(300));
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    });
    let gateway = Gateway::start(&upstream, "");
    let mut client = gateway.client();
    client.write("GET /1 HTTP/1.1\r\nHost: a\r\n\r\n");
    eventually("the first arrives", || upstream.count() == 1);
    client.write("POST /2 HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhel");
    std::thread::sleep(Duration::from_millis(50));
    client.write("loGET /3 HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!([(); 3].map(|()| client.response("GET").unwrap().status), [200; 3]);
    let lines: Vec<_> = upstream.seen().into_iter().map(|seen| seen.line).collect();
    assert_eq!(lines, ["GET /1 HTTP/1.1", "POST /2 HTTP/1.1", "GET /3 HTTP/1.1"]);
}

#[test]
fn nothing_after_an_invalid_head_is_a_request() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "");
    let mut client = gateway.client();
    client
        .write("GET /good HTTP/1.1\r\nHost: a\r\n\r\nGET /bad HTTP/1.1\r\n\r\nGET /behind HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!([(); 2].map(|()| client.response("GET").unwrap().status), [200, 400]);
    assert!(client.is_closed());
    assert_eq!(upstream.count(), 1);
}

#[test]
fn refused_requests_between_others_consume_exactly_their_own_bodies() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "rules: [{name: no, match: {path: /no}, action: deny}]");
    let mut client = gateway.client();
    let smuggled = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";
    let length = format!("POST /no HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{smuggled}", smuggled.len());
    let chunked = format!(
        "POST /no HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{smuggled}\r\n0\r\n\r\n",
        smuggled.len()
    );
    client.write(&format!(
        "{length}GET /1 HTTP/1.1\r\nHost: a\r\n\r\n{chunked}{length}GET /2 HTTP/1.1\r\nHost: a\r\n\r\n"
    ));
    assert_eq!([(); 5].map(|()| client.response("POST").unwrap().status), [403, 200, 403, 403, 200]);
    let lines: Vec<_> = upstream.seen().into_iter().map(|seen| seen.line).collect();
    assert_eq!(lines, ["GET /1 HTTP/1.1", "GET /2 HTTP/1.1"]);
}

#[test]
fn an_invalid_or_endless_body_is_answered_and_never_complete_for_the_upstream() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "limits: {body_bytes: 1KiB}");
    let big = format!("400\r\n{}\r\n1\r\nx\r\n0\r\n\r\n", "x".repeat(1024));
    for (body, status) in [
        ("5\r\nhelloGET / HTTP/1.1\r\n", 400),
        ("5\nhello\r\n0\r\n\r\n", 400),
        ("0x5\r\nhello\r\n0\r\n\r\n", 400),
        ("5;a\nhello\r\n0\r\n\r\n", 400),
        ("-5\r\n", 400),
        ("fffffffff\r\n", 400),
        ("0\r\n X: y\r\n\r\n", 400),
        ("401\r\n", 413),
        (&big, 413),
    ] {
        for split in [body.len(), 1] {
            let mut client = gateway.client();
            client.write("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
            for part in body.as_bytes().chunks(split) {
                if client.write_bytes(part).is_err() {
                    break;
                }
            }
            let response = client.response("POST").unwrap_or_else(|error| panic!("{body:?}: {error}"));
            assert_eq!((response.status, response.field("connection").as_deref()), (status, Some("close")), "{body:?}");
            assert_eq!(response.field("x-tollgate-reason").as_deref(), Some("bad_request"));
            assert!(client.is_closed());
        }
    }
    assert_eq!(upstream.count(), 0, "{:?}", upstream.seen());
    let mut client = gateway.client();
    client.write(&format!(
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n400\r\n{}\r\n0\r\n\r\n",
        "x".repeat(1024)
    ));
    assert_eq!(client.response("POST").unwrap().status, 200);
}

#[test]
fn an_invalid_body_that_arrives_with_its_head_is_not_charged() {
    let upstream = Upstream::start();
    let rules = "limits: {body_bytes: 1KiB}\nrules: [{name: few, limit_keys: [], algorithm_config: {rate: 9/day}}]";
    let gateway = Gateway::start(&upstream, rules);
    let head = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    for (body, status) in [("0x5\r\n", 400), ("1\r\nx\r\nfffffffff\r\n", 400), ("401\r\n", 413)] {
        let mut client = gateway.client();
        client.write(&format!("{head}{body}"));
        let response = client.response("POST").unwrap();
        assert_eq!((response.status, response.field("connection").as_deref()), (status, Some("close")), "{body:?}");
        assert_eq!(response.field("x-tollgate-reason").as_deref(), Some("bad_request"), "{body:?}");
        assert!(client.is_closed());
    }
    gateway.expect("rate_limiter_requests_total", &["rule=\"few\""], 0.0);
    assert_eq!(upstream.count(), 0, "{:?}", upstream.seen());
}

#[test]
fn leading_zeros_of_a_chunk_size_are_allowed() {
    let upstream = Upstream::start();
    let rules = "rules: [{name: few, limit_keys: [], algorithm_config: {rate: 9/day}}]";
    let gateway = Gateway::start(&upstream, rules);
    let mut client = gateway.client();
    let zeros = "0".repeat(40);
    let body = format!("{zeros}5\r\nhello\r\n{zeros}1;a=b\r\n!\r\n{zeros}\r\n\r\n");
    let head = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    for split in [head.len() + body.len(), 7, 1] {
        for part in format!("{head}{body}").as_bytes().chunks(split) {
            client.write_bytes(part).unwrap();
            // The gateway reads some of the parts one by one.
            std::thread::yield_now();
        }
        assert_eq!(client.response("POST").unwrap().status, 200, "by {split}");
        assert_eq!(String::from_utf8_lossy(&upstream.last().body), "hello!", "by {split}");
    }
    assert_eq!(client.get("/next", &[]).status, 200);
    gateway.expect("rate_limiter_requests_total", &["rule=\"few\""], 4.0);
}

#[test]
fn bytes_after_an_upgrade_are_never_a_request() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "rules: [{name: no, match: {path: /no}, action: deny}]");
    for (path, status) in [("/no", 403), ("/", 200)] {
        let mut client = gateway.client();
        client.write(&format!("{}GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n", upgrade(path)));
        assert_eq!(client.response("GET").unwrap().status, status);
        assert!(client.is_closed());
    }
    // If the upgrade is refused and nothing else was sent, the connection can be used for another request.
    let mut client = gateway.client();
    client.write(&upgrade("/no"));
    assert_eq!(client.response("GET").unwrap().status, 403);
    assert_eq!(client.get("/", &[]).status, 200);
    assert!(upstream.seen().iter().all(|seen| !seen.line.contains("smuggled")), "{:?}", upstream.seen());
}

#[test]
fn a_tunnel_carries_what_arrived_before_it_was_open() {
    let upstream = Upstream::answering(|_, stream| {
        let _ = stream.write_all(SWITCHED.as_bytes());
        let _ = std::io::copy(&mut stream.try_clone().unwrap(), stream);
    });
    let gateway = Gateway::start(&upstream, "limits: {body_timeout: 300ms}");
    let mut client = gateway.client();
    client.write(&format!("{}early", upgrade("/")));
    assert_eq!(client.response("GET").unwrap().status, 101);
    client.until("early");
    // A tunnel may be idle for longer than a body.
    wait_for_nothing(Duration::from_millis(500));
    client.write("late");
    client.until("late");
}

#[test]
fn a_client_that_expects_100_continue_gets_it_and_then_sends() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let gateway = Gateway::before_url(&format!("http://{}", listener.local_addr().unwrap())).start();
    let mut client = gateway.client();
    client.write("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n");
    continue_upload(&listener, || {
        assert!(client.until("\r\n\r\n").starts_with("HTTP/1.1 100"));
        client.write("hello");
    });
    assert_eq!(client.response("POST").unwrap().status, 200);
}

#[test]
fn a_refusal_before_a_body_reaches_the_client_and_the_body_is_never_a_request() {
    let upstream = Upstream::start();
    let gateway =
        Gateway::start(&upstream, "rules: [{name: ip, limit_keys: [ip:address], algorithm_config: {rate: 1/day}}]");
    assert_eq!(gateway.client().get("/", &[]).status, 200);
    let smuggled = b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";
    for (repeated, kept) in [(1, true), (100, true), (300_000, false)] {
        let body = smuggled.repeat(repeated);
        let length = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", body.len()).into_bytes();
        let chunked = format!("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n", body.len())
            .into_bytes();
        for (head, end) in [(length, &b""[..]), (chunked, b"\r\n0\r\n\r\n")] {
            let mut client = gateway.client();
            // The gateway may close before all is written.
            let written = client.write_bytes(&[&head[..], &body, end].concat());
            let response = client.response("POST").unwrap();
            assert_eq!(response.status, 429, "{repeated}");
            if kept {
                assert_eq!((written.is_ok(), client.get("/", &[]).status), (true, 429), "{repeated}");
            } else {
                assert!(client.is_closed(), "{repeated}");
            }
        }
    }
    assert_eq!(upstream.count(), 1, "{:?}", upstream.seen());
}

#[test]
fn a_request_for_an_upgrade_is_charged_like_any_other() {
    let upstream = Upstream::start();
    let rules = "rules: [{name: user, limit_keys: [header:x-user], algorithm_config: {rate: 1/day}}]";
    let gateway = Gateway::start(&upstream, rules);
    let upgrades = [
        "Upgrade: websocket\r\nConnection: Upgrade",
        "Upgrade: WebSocket\r\nConnection: keep-alive, upgrade",
        "upgrade: websocket",
        "Upgrade: websocket, h2c\r\nConnection: Upgrade",
        "Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAAQAAP__",
        "Upgrade: h2c\r\nUpgrade: websocket\r\nConnection: Upgrade",
        "Upgrade: TLS/1.0\r\nConnection: Upgrade",
        "Connection: Upgrade",
    ];
    for (number, upgrade) in upgrades.iter().enumerate() {
        for version in ["1.1", "1.0"] {
            let statuses = [(); 2].map(|()| {
                let mut client = gateway.client();
                client.write(&format!(
                    "GET / HTTP/{version}\r\nHost: a\r\nX-User: {number} {version}\r\n{upgrade}\r\n\r\n"
                ));
                client.response("GET").unwrap().status
            });
            assert_eq!(statuses, [200, 429], "{upgrade}, HTTP/{version}");
        }
    }
}
