//! Connections to upstreams that several clients share: a client that does not read or send does not delay others.

use std::time::Duration;

use super::{before, before_http2};
use crate::support::http2::Http2Client;
use crate::support::http2_frames::{DATA, END_STREAM, FrameClient, frame, get, request};
use crate::support::http2_upstream::{Http2Upstream, MESSAGE};
use crate::support::{Gateway, Upstream, eventually, now, short_or_long};

/// The fields of a gRPC call.
const CALL: &[(&str, &str)] = &[("content-type", "application/grpc"), ("te", "trailers")];

/// The window of a client's connection. One unread response leaves room in it for others.
const WIDE: u32 = 1 << 20;

/// Waits until a number has not changed for a while.
fn settled(number: impl Fn() -> usize) -> usize {
    let (mut last, mut since) = (number(), now());
    eventually("the number stays", || {
        let current = number();
        if current != last {
            (last, since) = (current, now());
        }
        since.elapsed() > Duration::from_millis(300)
    });
    last
}

#[test]
fn responses_that_are_not_read_delay_none_of_the_same_connection_to_the_upstream() {
    const LARGE: usize = 32 << 20;
    let upstream = Http2Upstream::start();
    // Longer than a busy machine may leave this process, and so the upstream, without a turn; shorter than the clients wait.
    let gateway = before_http2(upstream.address).with("upstream_timeouts: {read: 10s}").start();
    let mut clients = [Http2Client::connect(gateway.http), Http2Client::connect(gateway.http)];
    let path = format!("/large/{LARGE}");
    let unread = clients.each_mut().map(|client| client.begin("GET", &path, &[], true).streaming().unwrap());
    let held = settled(|| upstream.sent());
    assert!(held < LARGE, "{held} bytes were taken of responses that nobody reads");
    let mut others = (Http2Client::connect(gateway.http), gateway.client());
    for _ in 0..20 {
        let response = others.0.send("POST", "/", &[], &[b"hello"]);
        assert_eq!((response.status, response.text()), (200, "5".to_owned()));
        assert_eq!(others.1.send("POST", "/", &[], "hello").body, "5");
    }
    assert_eq!(upstream.connections(), 1);
    gateway.expect("tollgate_upstream_errors_total", &[], 0.0);
    drop(unread);
}

#[test]
fn messages_that_are_not_read_end_no_other_call_of_the_same_connection_to_the_upstream() {
    let calls = short_or_long(6, 18);
    // More than the window of a client admits (64 KiB), and not more than that and half of the gateway's: the gateway may not
    // have announced again the rest of what it has read.
    let messages = short_or_long(20_000, 21_000);
    let upstream = Http2Upstream::start();
    let gateway = before_http2(upstream.address).start();
    let mut clients: Vec<_> = (0..calls).map(|_| Http2Client::connect_wide(gateway.http, WIDE)).collect();
    let path = format!("/messages/{messages}");
    let begin = |client: &mut Http2Client| {
        let mut call = client.begin("POST", &path, CALL, false);
        call.write(b"", true).unwrap();
        call.streaming().unwrap()
    };
    let unread: Vec<_> = clients.iter_mut().map(begin).collect();
    eventually("the upstream has sent every message", || upstream.sent() == calls * messages * MESSAGE.len());
    for client in &mut clients {
        assert_eq!(client.send("POST", "/", CALL, &[b"hello"]).text(), "5");
    }
    for mut call in unread {
        assert!(call.rest().unwrap() == MESSAGE.repeat(messages));
    }
    assert_eq!(upstream.connections(), 1);
}

/// A gRPC message of 15 bytes, with the prefix that contains its length.
const TWENTY_BYTES: [u8; 20] = [0, 0, 0, 0, 15, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

#[test]
fn ten_thousand_messages_to_a_slow_upstream_end_no_other_call_of_their_connections() {
    const MESSAGES: usize = 10_000;
    let upstream = Http2Upstream::start();
    let gateway = before_http2(upstream.address).start();
    let mut client = Http2Client::connect(gateway.http);
    let mut upload = client.begin("POST", "/slow", CALL, false);
    for _ in 0..MESSAGES {
        upload.write_ahead(&TWENTY_BYTES, false);
    }
    upload.write_ahead(b"", true);
    eventually("the call has begun", || upstream.begun() == 1);
    for _ in 0..20 {
        assert_eq!(client.send("POST", "/", CALL, &[b"hello"]).text(), "5");
    }
    assert_eq!(upload.response().unwrap().text(), (MESSAGES * TWENTY_BYTES.len()).to_string());
    assert_eq!(upstream.connections(), 1);
    gateway.expect("tollgate_http2_errors_total", &[], 0.0);
}

#[test]
fn messages_that_a_client_reads_slowly_end_no_other_call_of_its_connection() {
    let messages = short_or_long(30_000, 100_000);
    let upstream = Http2Upstream::start();
    let gateway = before_http2(upstream.address).start();
    let mut client = Http2Client::connect_wide(gateway.http, WIDE);
    let mut call = client.begin("POST", &format!("/messages/{messages}"), CALL, false);
    call.write(b"", true).unwrap();
    let mut call = call.streaming().unwrap();
    let (mut read, mut parts) = (0, 0);
    loop {
        let part = call.part().unwrap();
        if part.is_empty() {
            break;
        }
        read += part.len();
        parts += 1;
        // The others of the connection are answered between its parts.
        if parts % 500 == 1 {
            assert_eq!(client.send("POST", "/", CALL, &[b"hello"]).text(), "5");
        }
    }
    assert_eq!(read, messages * MESSAGE.len());
    assert_eq!(upstream.connections(), 1);
    gateway.expect("tollgate_http2_errors_total", &[], 0.0);
}

#[test]
fn parts_of_bodies_that_wait_end_no_other_stream_of_their_connection() {
    let parts = short_or_long(10_000, 60_000);
    let upstream = Upstream::start();
    let gateway = before(&upstream)
        .with("rules: [{name: slow, match: {path: /slow}, limit_keys: [], expose: true, algorithm: leaky_bucket,\n")
        .with("  algorithm_config: {rate: 30/min, queue: 9, max_wait: 1m}}]\n")
        .start();
    let mut client = FrameClient::connect(gateway.http);
    client.write(&get(1, "/slow"));
    assert_eq!(client.outcome(1), Ok(200));
    // Two seconds, and four.
    for stream in [3, 5] {
        client.write(&request(stream, "POST", "/slow", &[], 0));
        client.write(&frame(DATA, 0, stream, b"m").repeat(parts));
    }
    client.write(&get(7, "/"));
    assert_eq!(client.outcome(7), Ok(200));
    for stream in [3, 5] {
        client.write(&frame(DATA, END_STREAM, stream, b"."));
        assert_eq!(client.outcome(stream), Ok(200));
        assert_eq!(upstream.last().body, [vec![b'm'; parts], vec![b'.']].concat());
    }
}

#[test]
fn uploads_that_are_stuck_stop_no_other_upload_of_their_connection() {
    let (stuck, upstream) = (Http2Upstream::start(), Upstream::start());
    let gateway = Gateway::before_url("")
        .with(&format!(
            "threads: 1\n\
             listeners: [{{address: 127.0.0.1:0, protocols: [h2c]}}]\n\
             upstreams: {{stuck: {{endpoints: [\"http://{}\"], protocol: h2c}}, api: {{endpoints: [\"http://{}\"]}}}}\n\
             routes: [{{name: stuck, match: {{path: /stuck}}, upstream: stuck}}, {{name: all, upstream: api}}]\n\
             limits: {{body_timeout: 3s}}\n",
            stuck.address, upstream.address,
        ))
        .start();
    let mut client = Http2Client::connect(gateway.http);
    let body = vec![b'x'; 300_000];
    // Each sends what its windows admit.
    let _stuck: Vec<_> = (0..12)
        .map(|_| {
            let mut request = client.begin("POST", "/stuck", &[], false);
            request.write_ahead(&body, true);
            request
        })
        .collect();
    eventually("all have begun", || stuck.begun() == 12);
    for _ in 0..3 {
        let mut request = client.begin("POST", "/", &[], false);
        request.write_ahead(&body, true);
        assert_eq!(request.response().unwrap().status, 200);
        assert!(upstream.last().body == body);
    }
}

#[test]
fn only_a_call_of_grpc_to_an_upstream_of_http2_may_pause_for_longer_than_a_body() {
    let (http1, http2) = (Upstream::start(), Http2Upstream::start());
    let gateway = Gateway::before_url("")
        .with(&format!(
            "listeners: [{{address: 127.0.0.1:0, protocols: [h2c]}}]\n\
             upstreams: {{http1: {{endpoints: [\"http://{}\"]}}, http2: {{endpoints: [\"http://{}\"], protocol: h2c}}}}\n\
             routes: [{{name: http1, match: {{path: /1}}, upstream: http1}}, {{name: http2, upstream: http2}}]\n\
             limits: {{body_timeout: 500ms, stream_idle_timeout: 1m}}\n",
            http1.address, http2.address,
        ))
        .start();
    let mut client = Http2Client::connect(gateway.http);
    let begin = |client: &mut Http2Client, (method, path, fields): (&str, &str, &[(&str, &str)])| {
        let mut request = client.begin(method, path, fields, false);
        request.write(b"begun", false).unwrap();
        request
    };
    let mut call = begin(&mut client, ("POST", "/", CALL));
    let others = [
        ("POST", "/", &CALL[..1]),
        ("GET", "/", CALL),
        ("PUT", "/", CALL),
        ("POST", "/", &[("content-type", "application/grpc-web"), CALL[1]]),
        ("POST", "/1", CALL),
    ];
    let requests = others.map(|other| (other, begin(&mut client, other)));
    for (other, request) in requests {
        let response = request.response().unwrap();
        assert_eq!(response.field("x-tollgate-reason"), "bad_request", "{other:?}");
    }
    call.write(b", ended", true).unwrap();
    assert_eq!(call.response().unwrap().text(), "12");
}
