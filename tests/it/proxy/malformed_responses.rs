//! Upstreams that violate HTTP: a client gets in time a complete response, a 502 response, or one that is visibly cut off.

use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use crate::support::{Gateway, Lateness, Upstream, now};

/// The result of a response for the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClientResult {
    BadGateway,
    /// The beginning of the response, without its end.
    Cut,
    Complete,
    /// `Complete` if the connection is closed after the response, otherwise `Cut`.
    CompleteIfClosed,
}

fn responses() -> Vec<(&'static str, &'static [u8], ClientResult)> {
    use ClientResult::{BadGateway, Complete, CompleteIfClosed, Cut};
    vec![
        ("nothing", b"", BadGateway),
        ("an empty line", b"\r\n", BadGateway),
        ("no status line", b"Content-Length: 2\r\n\r\nok", BadGateway),
        ("a body alone", b"<html>hello</html>", BadGateway),
        ("a request", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", BadGateway),
        ("TLS", b"\x15\x03\x01\x00\x02\x02\x46", BadGateway),
        ("half a status line", b"HTTP/1.1 20", BadGateway),
        ("half a head", b"HTTP/1.1 200 OK\r\nContent-Le", BadGateway),
        ("a status of two digits", b"HTTP/1.1 20 OK\r\nContent-Length: 2\r\n\r\nok", BadGateway),
        ("a status of letters", b"HTTP/1.1 abc OK\r\nContent-Length: 2\r\n\r\nok", BadGateway),
        ("a negative status", b"HTTP/1.1 -20 OK\r\nContent-Length: 2\r\n\r\nok", BadGateway),
        ("HTTP/3.0", b"HTTP/3.0 200 OK\r\nContent-Length: 2\r\n\r\nok", BadGateway),
        ("NUL in a field", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX: a\0b\r\n\r\nok", BadGateway),
        ("a bare CR in a field", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX: a\rSet-Cookie: b\r\n\r\nok", BadGateway),
        ("a name with a space", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX Y: a\r\n\r\nok", BadGateway),
        ("no colon", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX\r\n\r\nok", BadGateway),
        ("two lengths", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 5\r\n\r\nokGET", BadGateway),
        ("a list of lengths", b"HTTP/1.1 200 OK\r\nContent-Length: 2, 5\r\n\r\nokGET", BadGateway),
        ("the same length twice", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nok", BadGateway),
        ("a list of one length", b"HTTP/1.1 200 OK\r\nContent-Length: 2, 2\r\n\r\nok", BadGateway),
        ("gzip, then chunked", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", BadGateway),
        ("chunked twice", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", BadGateway),
        ("chunked in a list", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", BadGateway),
        ("identity", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\nContent-Length: 2\r\n\r\nok", BadGateway),
        ("xchunked", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: xchunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", BadGateway),
        ("an empty encoding", b"HTTP/1.1 200 OK\r\nTransfer-Encoding:\r\nContent-Length: 2\r\n\r\nok", BadGateway),
        ("chunked in capitals", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: CHUNKED\r\n\r\n2\r\nok\r\n0\r\n\r\n", Complete),
        ("a negative length", b"HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\nok", BadGateway),
        ("a length in words", b"HTTP/1.1 200 OK\r\nContent-Length: two\r\n\r\nok", BadGateway),
        ("an endless length", b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\nok", BadGateway),
        ("less than its length", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nok", Cut),
        ("a chunk that is cut", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nok", Cut),
        ("no last chunk", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n", Cut),
        ("an invalid chunk size", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\nok\r\n0\r\n\r\n", Cut),
        ("a negative chunk", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-2\r\nok\r\n0\r\n\r\n", Cut),
        ("a chunk beyond 64 bits", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n10000000000000002\r\nok\r\n0\r\n\r\n", Cut),
        ("until it closes", b"HTTP/1.1 200 OK\r\n\r\nok", CompleteIfClosed),
        ("a body behind 204", b"HTTP/1.1 204 No Content\r\nContent-Length: 2\r\n\r\nok", Complete),
        ("a body behind 304", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 2\r\n\r\nok", Complete),
        ("more than its length", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 4\r\nX-Smuggled: 1\r\n\r\nevil", Complete),
        ("one response too many", b"HTTP/1.1 204 No Content\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 4\r\nX-Smuggled: 1\r\n\r\nevil", Complete),
        // Forwarded with the chunks alone (RFC 9112, section 6.3).
        ("a length and chunks", b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", Complete),
        ("chunks and a length", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 14\r\n\r\n2\r\nok\r\n0\r\n\r\n", Complete),
        ("an upgrade that nobody asked for", b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nok", BadGateway),
    ]
}

#[test]
fn an_invalid_response_is_a_502_and_the_next_client_gets_its_own() {
    // Bytes after a response must not become the next one: the connection is kept open here. Several at a time, since many of
    // these are waited for until the timeout.
    let parts = (0..6).map(|first| (true, first, 6)).chain([(false, 0, 1)]);
    std::thread::scope(|scope| {
        for (kept, first, step) in parts {
            scope.spawn(move || ask_for(kept, first, step));
        }
    });
}

/// Requests some of the responses, and a valid one after each.
#[track_caller]
fn ask_for(kept: bool, first: usize, step: usize) {
    let upstream = Upstream::answering(move |seen, stream| {
        let number = seen.line.split('/').nth(1).and_then(|rest| rest.split(' ').next()?.parse::<usize>().ok());
        match number {
            Some(number) => {
                let _ = stream.write_all(responses()[number].1);
                if !kept {
                    let _ = stream.shutdown(Shutdown::Both);
                }
            }
            None => drop(stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ngood")),
        }
    });
    let gateway = Gateway::start(&upstream, "upstream_timeouts: {read: 2s}");
    let (mut wrong, late) = (Vec::new(), Lateness::measure());
    for (number, (name, _, expected)) in responses().iter().enumerate().skip(first).step_by(step) {
        let start = now();
        let mut client = gateway.client();
        client.write(&format!("POST /{number} HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx"));
        let response = client.response("POST");
        let found = match &response {
            Ok(response) if matches!(response.status, 502 | 504) => ClientResult::BadGateway,
            Ok(_) => ClientResult::Complete,
            Err(_) => ClientResult::Cut,
        };
        if let Ok(response) = &response {
            let framed = ["content-length", "transfer-encoding"].map(|field| response.field(field));
            assert!(framed.iter().flatten().count() < 2, "{name}: {response:?}");
        }
        let smuggled = response.as_ref().is_ok_and(|response| response.field("x-smuggled").is_some());
        let expected = match expected {
            ClientResult::CompleteIfClosed if kept => ClientResult::Cut,
            ClientResult::CompleteIfClosed => ClientResult::Complete,
            expected => *expected,
        };
        if found != expected || smuggled || start.elapsed() > Duration::from_secs(6) + late.of_a_request() {
            wrong.push(format!("{name}, kept {kept}: {found:?} instead of {expected:?}: {response:?}"));
        }
        let next = gateway.client().get("/good", &[]);
        if next.body != "good" {
            wrong.push(format!("behind {name}, kept {kept}: {next:?}"));
        }
    }
    assert!(wrong.is_empty(), "{} of them are wrong:\n{}", wrong.len(), wrong.join("\n"));
    gateway.expect("tollgate_http_connections", &[], 0.0);
}

/// Writes until the connection is closed, for at most 10 seconds.
fn flood(stream: &mut TcpStream, first: &[u8], again: &[u8]) {
    let start = now();
    let mut sent = stream.write_all(first).is_ok();
    while sent && start.elapsed() < Duration::from_secs(10) {
        sent = stream.write_all(again).is_ok();
    }
}

#[test]
fn a_response_without_an_end_is_neither_buffered_nor_waited_for() {
    let upstream = Upstream::answering(|seen, stream| match seen.line.split(' ').nth(1) {
        Some("/line") => flood(stream, b"HTTP/1.1 200 ", &[b'x'; 16 << 10]),
        Some("/field") => flood(stream, b"HTTP/1.1 200 OK\r\nX: ", &[b'x'; 16 << 10]),
        Some("/fields") => flood(stream, b"HTTP/1.1 200 OK\r\n", &b"X: y\r\n".repeat(2000)),
        Some("/hints") => flood(stream, b"", b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"),
        Some("/continue") => flood(stream, b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        Some("/chunk") => flood(stream, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", &[b'1'; 16 << 10]),
        _ => drop(stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ngood")),
    });
    let gateway = Gateway::start(&upstream, "upstream_timeouts: {read: 8s}");
    assert_eq!(gateway.client().get("/good", &[]).status, 200);
    let late = Lateness::measure();
    let before = gateway.metric("process_resident_memory_bytes", &[]);
    for target in ["/line", "/field", "/fields", "/hints", "/continue", "/chunk"] {
        let start = now();
        let mut client = gateway.client();
        client.write(&format!("POST {target} HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx"));
        match client.response("POST") {
            Ok(response) => assert_eq!(response.status, 502, "{target}"),
            // The response had begun.
            Err(_) => assert_eq!(target, "/chunk"),
        }
        assert!(start.elapsed() < Duration::from_secs(5) + late.of_a_request(), "{target}: {:?}", start.elapsed());
        let grown = gateway.metric("process_resident_memory_bytes", &[]) - before;
        assert!(grown < 32e6, "{target}: {grown} bytes more");
    }
    assert_eq!(gateway.client().get("/good", &[]).body, "good");
}
