//! WebSockets: the requests and responses that open a tunnel. No others do.

use std::io::{Read, Write};

use crate::support::websocket::{SWITCHED, UPGRADE, upgrade};
use crate::support::{Gateway, Upstream};

const NEXT: &str = "GET /next HTTP/1.1\r\nHost: a.test\r\n\r\n";

/// Starts an upstream that switches to a WebSocket on `/switch`, and then sends bytes that resemble a response. It answers
/// all other requests with 200.
fn eager() -> Upstream {
    Upstream::answering(|seen, stream| {
        let _ = match seen.line.contains("/switch") {
            true => {
                stream.write_all(format!("{SWITCHED}HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\ntunnel").as_bytes())
            }
            false => stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"),
        };
    })
}

#[test]
fn a_request_that_begins_no_websocket_is_an_ordinary_one() {
    let upstream = eager();
    let gateway = Gateway::start(&upstream, "");
    let head = |method: &str, target: &str, fields: &[(&str, &str)]| {
        let fields: String = fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        format!("{method} {target} HTTP/1.1\r\nHost: a.test\r\n{fields}\r\n")
    };
    let mut cases = vec![("POST".to_owned(), UPGRADE.to_vec())];
    for changed in 0..UPGRADE.len() {
        let mut missing = UPGRADE.to_vec();
        missing.remove(changed);
        cases.push(("GET".to_owned(), missing));
        for other in ["h2c", "8", "short", "keep-alive"] {
            let mut fields = UPGRADE.to_vec();
            fields[changed].1 = other;
            cases.push(("GET".to_owned(), fields));
        }
        if UPGRADE[changed].0 != "Connection" {
            cases.push(("GET".to_owned(), [&UPGRADE[..], &[UPGRADE[changed]]].concat()));
        }
    }
    for (method, fields) in cases {
        // What follows is a request of its own, and the upstream is not asked to switch.
        let mut client = gateway.client();
        client.write(&format!("{}{NEXT}", head(&method, "/", &fields)));
        assert_eq!(client.response(&method).unwrap().status, 200, "{method} {fields:?}");
        assert_eq!(client.response("GET").unwrap().body, "ok", "{method} {fields:?}");
        let seen = upstream.seen();
        let first = seen.iter().rev().find(|seen| seen.line.contains(" / ")).unwrap();
        assert_eq!((first.field("upgrade"), first.field("connection")), (None, None), "{method} {fields:?}");
        // One that switches all the same is at fault.
        let mut client = gateway.client();
        client.write(&head(&method, "/switch", &fields));
        let response = client.response(&method).unwrap();
        assert_eq!(response.status, 502, "{method} {fields:?}: {response:?}");
        assert!(!response.body.contains("tunnel"), "{response:?}");
    }
}

#[test]
fn a_response_that_does_not_accept_the_handshake_is_a_502() {
    let wrong = |part: &str, other: &str| {
        assert!(SWITCHED.contains(part), "{part}");
        SWITCHED.replace(part, other)
    };
    let accept = "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n";
    let responses = vec![
        wrong(accept, ""),
        wrong(accept, &accept.repeat(2)),
        wrong("s3pPLMBiTxaQ9kYGzzhZRbK+xOo=", "s3pPLMBiTxaQ9kYGzzhZRbK+xO0="),
        wrong("s3pPLMBiTxaQ9kYGzzhZRbK+xOo=", "dGhlIHNhbXBsZSBub25jZQ=="),
        wrong("Upgrade: websocket\r\n", ""),
        wrong("Upgrade: websocket\r\n", "Upgrade: h2c\r\n"),
        wrong("Connection: Upgrade\r\n", ""),
        wrong("Connection: Upgrade\r\n", "Connection: keep-alive\r\n"),
        "HTTP/1.1 101 Switching Protocols\r\n\r\n".to_owned(),
    ];
    let all = responses.clone();
    let upstream = Upstream::answering(move |seen, stream| {
        let number = seen.line.split('/').nth(1).and_then(|rest| rest.split(' ').next()?.parse::<usize>().ok());
        let _ = match number {
            Some(number) => stream.write_all(format!("{}secret", all[number]).as_bytes()),
            None => stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ngood"),
        };
        // Until the gateway closes the connection.
        if number.is_some() {
            let _ = stream.read(&mut [0]);
        }
    });
    let gateway = Gateway::start(&upstream, "");
    for (number, response) in responses.iter().enumerate() {
        let mut client = gateway.client();
        client.write(&upgrade(&format!("/{number}")));
        let answer = client.response("GET").unwrap();
        assert_eq!((answer.status, answer.body.contains("secret")), (502, false), "{response}");
        assert_eq!(gateway.client().get("/good", &[]).body, "good", "{response}");
    }
    gateway.expect(
        "tollgate_upstream_errors_total",
        &["kind=\"invalid_answer\""],
        f64::from(u32::try_from(responses.len()).unwrap()),
    );
}

#[test]
fn a_refused_handshake_passes_as_it_is() {
    let upstream = Upstream::answering(|_, stream| {
        let _ = stream
            .write_all(b"HTTP/1.1 426 Upgrade Required\r\nSec-WebSocket-Version: 14\r\nContent-Length: 0\r\n\r\n");
    });
    let gateway = Gateway::start(&upstream, "");
    let mut client = gateway.client();
    client.write(&upgrade("/"));
    let refused = client.response("GET").unwrap();
    assert_eq!((refused.status, refused.field("sec-websocket-version").as_deref()), (426, Some("14")));
    let seen = upstream.last();
    for (name, value) in UPGRADE {
        assert_eq!(seen.field(name), Some(value), "{name}");
    }
}
