//! Bodies arrive at the upstream byte for byte after they were read: with their framing, trailers and repeats.

use std::io::Write;
use std::net::Shutdown;

use super::json_bodies::{JSON, PER_USER, json_of_length, per_user};
use crate::support::{Gateway, Upstream};

/// Returns a chunked upload with this size of chunks.
fn chunked(body: &str, size: usize, fields: &str, trailers: &str) -> String {
    let chunks = body.as_bytes().chunks(size).map(|chunk| std::str::from_utf8(chunk).unwrap());
    let chunks: String = chunks.map(|chunk| format!("{:x};ext=1\r\n{chunk}\r\n", chunk.len())).collect();
    format!(
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n{fields}\r\n\
         {chunks}0\r\n{trailers}\r\n"
    )
}

#[test]
fn a_body_with_a_length_keeps_it() {
    let upstream = Upstream::start();
    let gateway = per_user(&upstream).start();
    let mut client = gateway.client();
    for (number, length) in [40, 4096, 70_000, 1 << 20].into_iter().enumerate() {
        let body = json_of_length(&format!("u{number}"), length);
        assert_eq!(client.send("POST", "/", &[JSON], &body).status, 200);
        let seen = upstream.last();
        assert_eq!(seen.field("content-length"), Some(&*length.to_string()));
        assert_eq!(seen.field("transfer-encoding"), None);
        assert!(seen.body == body.as_bytes(), "{length}");
    }
}

#[test]
fn a_chunked_body_is_forwarded_chunked_with_its_trailers() {
    let upstream = Upstream::start();
    let gateway = per_user(&upstream).start();
    for (number, (length, size)) in [(40, 1), (40, 1000), (50_000, 999), (200_000, 65_536)].into_iter().enumerate() {
        let body = json_of_length(&format!("u{number}"), length);
        let mut client = gateway.client();
        client.write(&chunked(&body, size, "Trailer: x-sum\r\n", "x-sum: 17\r\n"));
        assert_eq!(client.response("POST").unwrap().status, 200);
        let seen = upstream.last();
        assert_eq!((seen.field("content-length"), seen.field("transfer-encoding")), (None, Some("chunked")));
        assert!(seen.body == body.as_bytes(), "{length}");
        assert_eq!(seen.trailers, [("x-sum".to_owned(), "17".to_owned())]);
        // The connection stands at the beginning of the next request.
        assert_eq!(client.get("/", &[]).status, 200);
    }
}

#[test]
fn a_client_that_waits_for_100_continue_is_told_to_send_its_body() {
    let upstream = Upstream::start();
    let gateway = per_user(&upstream).start();
    let body = "{\"user\":\"ann\"}";
    let mut client = gateway.client();
    for remaining in [1, 0] {
        client.write(&format!(
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nExpect: 100-continue\r\n\
             Content-Length: {}\r\n\r\n",
            body.len()
        ));
        assert_eq!(client.until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
        assert_eq!(upstream.count(), 1 - remaining);
        client.write(body);
        // The upstream that waits for nothing sends no 100, and the client gets no second one.
        let response = client.until("ok");
        assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
        assert_eq!(upstream.last().body, body.as_bytes());
    }
    client.write(&format!(
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nExpect: 100-continue\r\n\
         Content-Length: {}\r\n\r\n",
        body.len()
    ));
    assert_eq!(client.until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
    client.write(body);
    assert_eq!(client.response("POST").unwrap().status, 429);
}

#[test]
fn a_read_body_is_sent_again_to_another_connection() {
    let upstream = Upstream::answering(|seen, stream| {
        let is_broken = seen.line.contains("/break") && seen.connection == 0;
        let _ = match is_broken {
            true => stream.shutdown(Shutdown::Both),
            false => stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"),
        };
    });
    let gateway = Gateway::before(&upstream).with("threads: 1").with(PER_USER).start();
    let mut client = gateway.client();
    assert_eq!(client.send("PUT", "/warm", &[], "").status, 200);
    let body = json_of_length("ann", 100_000);
    let response = client.send("PUT", "/break", &[JSON], &body);
    assert_eq!((response.status, response.number("ratelimit-remaining")), (200, 1));
    let sent: Vec<_> = upstream.seen().into_iter().filter(|seen| seen.line.contains("/break")).collect();
    assert_eq!(sent.len(), 2);
    assert!(sent.iter().all(|seen| seen.body == body.as_bytes()));
    gateway.expect("tollgate_upstream_retries_total", &[], 1.0);
}

#[test]
fn pipelined_requests_after_a_read_body_are_answered() {
    let upstream = Upstream::start();
    let gateway = per_user(&upstream).start();
    let one =
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 14\r\n\r\n{\"user\":\"ann\"}";
    let mut client = gateway.client();
    client.write(&format!("{one}{one}{one}GET /last HTTP/1.1\r\nHost: a\r\n\r\n"));
    for status in [200, 200, 429] {
        assert_eq!(client.response("POST").unwrap().status, status);
    }
    assert_eq!(client.response("GET").unwrap().status, 200);
    assert_eq!(upstream.last().line, "GET /last HTTP/1.1");
}

#[test]
fn a_websocket_handshake_has_no_body_to_read() {
    let upstream = Upstream::answering(|_, stream| {
        let _ = stream.write_all(
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
              Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\ntunnel",
        );
    });
    let gateway = per_user(&upstream).start();
    let mut client = gateway.client();
    client.write(
        "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nContent-Type: application/json\r\n\r\n",
    );
    assert!(client.until("tunnel").starts_with("HTTP/1.1 101 "));
}
