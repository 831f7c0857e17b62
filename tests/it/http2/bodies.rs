//! Bodies in both directions, between all protocols.

use std::io::{Read, Write};

use super::before;
use crate::support::http2::Http2Client;
use crate::support::http2_frames::{DATA, END_HEADERS, END_STREAM, FrameClient, HEADERS, fields_block, frame, request};
use crate::support::{Gateway, SecureUpstream, Upstream, continue_upload, eventually, short_or_long};

/// Starts an upstream that returns the body of the request, in chunks unless the request states a length.
fn echo() -> Upstream {
    Upstream::answering(|request, stream| {
        let has_length = request.field("content-length").is_some();
        let framing = match has_length {
            true => format!("Content-Length: {}", request.body.len()),
            false => "Transfer-Encoding: chunked".to_owned(),
        };
        let _ = write!(stream, "HTTP/1.1 200 OK\r\n{framing}\r\n\r\n");
        if has_length {
            let _ = stream.write_all(&request.body);
        } else {
            for chunk in request.body.chunks(10_000) {
                let _ = write!(stream, "{:x}\r\n", chunk.len());
                let _ = stream.write_all(&[chunk, b"\r\n"].concat());
            }
            let _ = stream.write_all(b"0\r\n\r\n");
        }
    })
}

/// Returns a body whose parts differ from each other.
fn body(length: usize) -> Vec<u8> {
    (0..length).map(|at| u8::try_from(at % 251).unwrap()).collect()
}

#[test]
fn bodies_of_every_length_arrive_whole_at_an_upstream_of_http1() {
    let upstream = echo();
    let gateway = before(&upstream).start();
    let mut client = Http2Client::connect(gateway.http);
    let longest = short_or_long(3_000_000, 64 << 20);
    for length in [0, 1, 70_000, longest] {
        let body = body(length);
        for fields in [&[][..], &[("content-length", &*length.to_string())]] {
            let response = exchange(&mut client, fields, &body);
            assert_eq!(response.len(), length, "{fields:?}");
            assert!(response == body, "{length} {fields:?}");
            assert!(upstream.last().body == body, "{length} {fields:?}");
        }
    }
    assert_eq!(upstream.last().connection, 0, "a connection to the upstream was lost");
    gateway.expect("tollgate_http_requests_total", &["origin=\"upstream\"", "code=\"200\""], 8.0);
}

/// Sends a body while the response is being read.
fn exchange(client: &mut Http2Client, fields: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut request = client.begin("POST", "/", fields, false);
    request.write(body, true).unwrap();
    let response = request.response().unwrap();
    assert_eq!(response.status, 200);
    response.body
}

#[test]
fn an_empty_last_part_ends_a_body_once() {
    let upstream = echo();
    let gateway = before(&upstream).start();
    let mut client = Http2Client::connect(gateway.http);
    for number in 1..=20 {
        let parts: &[&[u8]] = match number % 4 {
            0 => &[b"a", b"", b"bc", b""],
            1 => &[b""],
            2 => &[b"abc", b""],
            _ => &[b"", b"abc"],
        };
        let response = client.send("POST", "/", &[], parts);
        assert_eq!((response.status, response.body), (200, parts.concat()));
        // A second end would be read as the beginning of this request.
        assert_eq!(client.get("/", &[]).status, 200);
    }
    let seen = upstream.seen();
    assert_eq!(seen.len(), 40);
    assert!(seen.iter().all(|request| request.connection == 0 && request.line.ends_with(" / HTTP/1.1")));
}

#[test]
fn a_body_is_forwarded_as_it_arrives() {
    // Answers after the first bytes, before the end.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let serving = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut read = Vec::new();
        let mut until = |stream: &mut std::net::TcpStream, end: &[u8]| {
            let mut part = [0; 1024];
            while !read.ends_with(end) {
                let length = stream.read(&mut part).unwrap();
                assert!(length > 0, "closed");
                read.extend_from_slice(&part[..length]);
            }
        };
        until(&mut stream, b"first\r\n");
        stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n").unwrap();
        until(&mut stream, b"0\r\n\r\n");
        stream.write_all(b"3\r\ntwo\r\n0\r\n\r\n").unwrap();
    });
    let gateway = Gateway::before_url(&format!("http://{address}"))
        .with("listeners: [{address: 127.0.0.1:0, protocols: [h2c]}]")
        .start();
    let mut client = Http2Client::connect(gateway.http);
    let mut request = client.begin("POST", "/", &[], false);
    request.write(b"first", false).unwrap();
    let mut response = request.streaming().unwrap();
    assert_eq!(response.part().unwrap(), b"one");
    response.write(b"last", true).unwrap();
    assert_eq!(response.rest().unwrap(), b"two");
    serving.join().unwrap();
}

#[test]
fn a_client_that_expects_100_continue_gets_it_and_then_sends() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let gateway = Gateway::before_url(&format!("http://{}", listener.local_addr().unwrap()))
        .with("listeners: [{address: 127.0.0.1:0, protocols: [h2c]}]")
        .start();
    let mut client = FrameClient::connect(gateway.http);
    client.write(&request(1, "POST", "/", &[("content-length", "5"), ("expect", "100-continue")], 0));
    continue_upload(&listener, || {
        assert_eq!(client.outcome(1), Ok(100));
        client.write(&frame(DATA, END_STREAM, 1, b"hello"));
    });
    assert_eq!(client.outcome(1), Ok(200));
}

#[test]
fn trailers_of_a_request_are_dropped_and_its_body_ends_once() {
    let upstream = echo();
    let gateway = before(&upstream).start();
    let mut client = FrameClient::connect(gateway.http);
    for stream in [1, 3] {
        client.write(&request(stream, "POST", "/", &[("trailer", "x-sum")], 0));
        client.write(&frame(DATA, 0, stream, b"hello"));
        let trailers = fields_block(&[("x-sum", "1"), ("content-length", "9")]);
        client.write(&frame(HEADERS, END_STREAM | END_HEADERS, stream, &trailers));
        assert_eq!(client.outcome(stream), Ok(200));
    }
    // One connection: nothing of the first was left on it.
    let seen = upstream.seen();
    assert!(seen.iter().all(|request| request.body == b"hello" && request.connection == 0), "{seen:?}");
    assert!(seen.iter().all(|request| request.field("x-sum").is_none()), "{seen:?}");
}

#[test]
fn responses_without_a_body_have_none() {
    let upstream = Upstream::answering(|request, stream| {
        let response: &[u8] = match request.line.split(' ').nth(1).unwrap() {
            "/204" => b"HTTP/1.1 204 No Content\r\n\r\n",
            "/304" => b"HTTP/1.1 304 Not Modified\r\nETag: \"a\"\r\n\r\n",
            "/0" => b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
            _ => b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n",
        };
        let _ = stream.write_all(response);
    });
    let gateway = before(&upstream).start();
    let mut client = Http2Client::connect(gateway.http);
    for (method, target, status) in [("GET", "/204", 204), ("GET", "/304", 304), ("GET", "/0", 200), ("HEAD", "/", 200)]
    {
        let response = client.send(method, target, &[], &[]);
        assert_eq!((response.status, response.body.len()), (status, 0), "{target}");
    }
    assert_eq!(client.send("HEAD", "/", &[], &[]).field("content-length"), "100");
}

#[test]
fn a_response_that_is_cut_is_no_whole_response() {
    let upstream = Upstream::answering(|_, stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n");
        let _ = stream.shutdown(std::net::Shutdown::Both);
    });
    let gateway = before(&upstream).start();
    let mut client = Http2Client::connect(gateway.http);
    let error = client.begin("GET", "/", &[], true).response().unwrap_err();
    assert_eq!(error.reason(), Some(h2::Reason::INTERNAL_ERROR), "{error:?}");
    // Others on the connection are not affected.
    assert!(client.accepts_requests());
}

#[test]
fn a_client_that_leaves_ends_its_request_at_the_upstream() {
    let upstream = Upstream::answering(|request, stream| {
        if request.line.contains("/other") {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        } else {
            // Until the gateway closes the connection.
            let _ = stream.read(&mut [0; 1]);
        }
    });
    let gateway = before(&upstream).with("access_log: {to: log}").start();
    let log = || std::fs::read_to_string(gateway.file("log")).unwrap_or_default();
    let mut client = Http2Client::connect(gateway.http);
    let request = client.begin("GET", "/", &[], true);
    eventually("the request arrives", || upstream.count() == 1);
    request.reset();
    eventually("the request ends", || log().matches("\"code\":499").count() == 1);
    let unfinished = client.begin("POST", "/", &[], false);
    // An upload that has begun is decided about, and waits for its body.
    assert_eq!(client.get("/other", &[]).status, 200);
    unfinished.reset();
    eventually("the request ends", || log().matches("\"code\":499").count() == 2);
    let under_way = client.begin("GET", "/", &[], true);
    eventually("the request arrives", || upstream.count() == 3);
    drop((client, under_way));
    eventually("the request ends", || log().matches("\"code\":499").count() == 3);
}

#[test]
fn trailers_and_bodies_pass_between_http2_on_both_sides() {
    let upstream = SecureUpstream::h2c();
    let text = format!(
        "listeners: [{{address: 127.0.0.1:0, protocols: [h2c, http/1.1]}}]\n\
         upstreams: {{default: {{endpoints: [\"http://{}\"], protocol: h2c}}}}\n\
         routes: [{{name: all, upstream: default}}]\n",
        upstream.address
    );
    let gateway = Gateway::before_url("").with(&text).start();
    let mut client = Http2Client::connect(gateway.http);
    for length in [0, 1, 200_000] {
        let sent = body(length);
        let response = client.send("POST", "/a?b", &[("content-type", "application/grpc")], &[&sent]);
        assert_eq!((response.status, response.text()), (200, "ok".to_owned()));
        assert_eq!(response.trailers.unwrap().get("grpc-status").unwrap(), "0");
        assert_eq!(upstream.seen().last().unwrap().body, length);
    }
    // A client that merges trailers into the head would believe some of these.
    let trailers = client.get("/trailers", &[]).trailers.unwrap();
    let mut names: Vec<&str> = trailers.keys().map(http::HeaderName::as_str).collect();
    names.sort_unstable();
    assert_eq!(names, ["grpc-status", "x-sum"]);
    // A client of HTTP/1.1 gets the body, for which chunks have no trailers here.
    let plain = gateway.client().send("POST", "/a", &[], "body");
    assert_eq!((plain.status, plain.body.as_str()), (200, "ok"));
    assert!(upstream.seen().iter().all(|seen| seen.is_h2));
}
