//! Streams that an upstream has not processed: it refuses them, closes the connection before them, or admits none.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::{before, before_http2, before_http2_with};
use crate::support::http2::Http2Client;
use crate::support::http2_frames::{
    DATA, END_STREAM, FrameClient, GOAWAY, HEADERS, NO_STREAMS, PING, frame, get, reset, response, upstream,
};
use crate::support::http2_upstream::Http2Upstream;
use crate::support::{Redis, Upstream, eventually, now};

const REFUSED_STREAM: u32 = 7;
const CANCEL: u32 = 8;

/// Starts an upstream that sends `refusal` for its first frame of this kind, and answers all other heads with 204. It counts
/// heads.
fn refusing(kind: u8, refusal: fn(u32) -> Vec<u8>) -> (SocketAddr, Arc<AtomicUsize>) {
    let heads = Arc::new(AtomicUsize::new(0));
    let (counted, refused) = (Arc::clone(&heads), AtomicUsize::new(0));
    let address = upstream(&[], move |_, connection| {
        while let Some(frame) = connection.next_of_stream() {
            let is_head = frame.kind == HEADERS;
            counted.fetch_add(usize::from(is_head), Ordering::Relaxed);
            let refuses = frame.kind == kind && refused.fetch_add(1, Ordering::Relaxed) == 0;
            let answer = match (refuses, is_head && refused.load(Ordering::Relaxed) > 0) {
                (true, _) => refusal(frame.stream),
                (false, true) => response(frame.stream, 204, &[], END_STREAM),
                (false, false) => continue,
            };
            if connection.try_write(&answer).is_err() {
                return;
            }
        }
    });
    (address, heads)
}

fn refused_stream(stream: u32) -> Vec<u8> {
    reset(stream, REFUSED_STREAM)
}

/// The upstream closes the connection and has processed no stream.
fn left_before(_: u32) -> Vec<u8> {
    frame(GOAWAY, 0, 0, &[0; 8])
}

#[test]
fn a_request_that_the_upstream_has_not_looked_at_is_sent_again_whatever_its_method() {
    for refusal in [refused_stream, left_before] {
        for method in ["GET", "POST", "PATCH"] {
            let (address, heads) = refusing(HEADERS, refusal);
            let gateway = before_http2(address).start();
            let mut client = Http2Client::connect(gateway.http);
            assert_eq!(client.send(method, "/", &[], &[]).status, 204, "{method}");
            assert_eq!(heads.load(Ordering::Relaxed), 2);
            gateway.expect("tollgate_upstream_retries_total", &["kind=\"closed\""], 1.0);
            gateway.expect("tollgate_http_requests_total", &["204"], 1.0);
        }
    }
}

#[test]
fn a_body_that_was_not_read_yet_follows_the_repeated_head() {
    let (address, heads) = refusing(HEADERS, refused_stream);
    let gateway = before_http2(address).start();
    let mut client = Http2Client::connect(gateway.http);
    let mut request = client.begin("POST", "/", &[], false);
    eventually("it is sent again", || heads.load(Ordering::Relaxed) == 2);
    request.write(b"body", true).unwrap();
    assert_eq!(request.response().unwrap().status, 204);
}

#[test]
fn a_request_whose_body_was_read_and_one_without_retries_are_sent_once() {
    let (address, heads) = refusing(DATA, refused_stream);
    let gateway = before_http2(address).start();
    assert_eq!(Http2Client::connect(gateway.http).send("PUT", "/", &[], &[b"body"]).status, 502);
    assert_eq!(heads.load(Ordering::Relaxed), 1);
    let (address, heads) = refusing(HEADERS, refused_stream);
    let gateway = before_http2_with(address, ", retries: {max: 0}").start();
    assert_eq!(Http2Client::connect(gateway.http).get("/", &[]).status, 502);
    assert_eq!(heads.load(Ordering::Relaxed), 1);
}

#[test]
fn a_request_of_whose_trailers_a_part_was_read_is_sent_once() {
    let (address, heads) = refusing(HEADERS, refused_stream);
    let gateway = before_http2(address).start();
    let mut client = gateway.client();
    client.write("PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-Dig");
    eventually("the head arrives", || heads.load(Ordering::Relaxed) > 0);
    assert_eq!(client.response("PUT").unwrap().status, 502);
    assert_eq!(heads.load(Ordering::Relaxed), 1);
}

#[test]
fn the_first_requests_share_a_connection_that_is_being_opened() {
    // The most streams that the upstream admits, the requests, and the connections that they need.
    for (most, requests, connections) in [(None, 40, 1), (Some(10), 25, 3)] {
        let upstream = Http2Upstream::with_streams(most);
        let gateway = before_http2(upstream.address).start();
        let mut client = Http2Client::connect(gateway.http);
        let mut requests: Vec<_> = (0..requests).map(|_| client.begin("POST", "/", &[], false)).collect();
        eventually("all of them arrive", || upstream.begun() == requests.len());
        assert!(upstream.connections() <= connections, "{most:?}: {}", upstream.connections());
        for request in &mut requests {
            request.write(b"hello", true).unwrap();
        }
        for request in requests {
            assert_eq!(request.response().unwrap().text(), "5");
        }
    }
}

#[test]
fn a_request_to_an_upstream_that_admits_no_streams_is_answered_at_once() {
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&connections);
    let address = upstream(NO_STREAMS, move |_, connection| {
        counted.fetch_add(1, Ordering::Relaxed);
        while connection.next_of_stream().is_some() {}
    });
    let gateway = before_http2(address).with("upstream_timeouts: {connect: 10s, read: 60s}").start();
    let (mut client, begun) = (Http2Client::connect(gateway.http), now());
    for _ in 0..3 {
        assert_eq!(client.get("/", &[]).status, 502);
    }
    assert!(begun.elapsed() < Duration::from_secs(9), "{:?}", begun.elapsed());
    assert_eq!(connections.load(Ordering::Relaxed), 3);
    gateway.expect("tollgate_upstream_errors_total", &["kind=\"connect_failed\""], 3.0);
}

#[test]
fn a_stream_that_is_reset_while_the_store_decides_does_not_reach_the_upstream() {
    let (upstream, redis) = (Upstream::start(), Redis::start());
    let rules = "rules: [{name: all, limit_keys: [], algorithm_config: {rps: 100, burst: 100}}]\n";
    let gateway = before(&upstream).with(&format!("threads: 1\n{}{rules}", redis.patient_store())).start();
    let mut client = FrameClient::connect(gateway.http);
    client.write(&get(1, "/"));
    assert_eq!(client.outcome(1), Ok(200));
    redis.signal("STOP");
    client.write(&get(3, "/gone"));
    eventually("the store is asked", || redis.has_unread_calls());
    client.write(&[reset(3, CANCEL), frame(PING, 0, 0, &[0; 8])].concat());
    client.until(|frame| frame.kind == PING);
    redis.signal("CONT");
    client.write(&get(5, "/"));
    assert_eq!(client.outcome(5), Ok(200));
    let seen: Vec<_> = upstream.seen().into_iter().map(|request| request.line).collect();
    assert_eq!(seen, ["GET / HTTP/1.1"; 2]);
}
