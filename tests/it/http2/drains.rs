//! HTTP/2 connections when the process exits or hands over to the next one.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use super::before;
use crate::support::authority::Authority;
use crate::support::http2::Http2Client;
use crate::support::http2_frames::{DATA, Frame, FrameClient, GOAWAY, RST_STREAM, get};
use crate::support::tls_client::TlsSettings;
use crate::support::{Gateway, Upstream, await_more, eventually, hand_over, short_or_long};
use crate::tls::BOTH;

#[test]
fn a_drain_says_goaway_and_finishes_what_is_under_way() {
    let (upstream, answer) = Upstream::answering_when_told();
    let mut gateway = before(&upstream).start();
    let (mut idle, mut busy) = (FrameClient::connect(gateway.http), FrameClient::connect(gateway.http));
    busy.write(&get(1, "/slow"));
    eventually("the request arrives", || upstream.count() == 1);
    gateway.signal("TERM");
    assert_eq!(idle.until(|frame| frame.kind == GOAWAY).error_code(), 0);
    assert_eq!(busy.until(|frame| frame.kind == GOAWAY).error_code(), 0);
    answer.send(()).unwrap();
    assert_eq!(busy.outcome(1), Ok(200));
    let (status, duration) = gateway.wait();
    assert!(status.success() && duration < Duration::from_secs(5), "{duration:?}");
}

#[test]
fn while_a_drain_is_delayed_each_connection_is_told_to_leave_with_its_next_response() {
    let upstream = Upstream::start();
    let mut gateway = before(&upstream).with("drain: {delay: 4s}").start();
    let mut client = Http2Client::connect(gateway.http);
    assert_eq!(client.get("/", &[]).status, 200);
    gateway.drain();
    assert_eq!(client.get("/", &[]).status, 200);
    assert!(client.is_closed());
    // A new connection is still accepted.
    assert_eq!(Http2Client::connect(gateway.http).get("/", &[]).status, 200);
    assert!(gateway.wait().0.success());
}

#[test]
fn streams_that_the_end_of_a_drain_cuts_are_reset_and_have_a_line_each() {
    let upstream = Upstream::answering(|request, stream| {
        if request.line.contains("/half") {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n");
        }
        let _ = stream.read(&mut [0]);
    });
    for _ in 0..short_or_long(5, 50) {
        cut_two_streams(&upstream);
    }
}

/// Ends a drain while a stream has no response yet, and another one half of it.
fn cut_two_streams(upstream: &Upstream) {
    let before_these = upstream.count();
    let mut gateway = before(upstream).with("access_log: {to: access.jsonl}\ndrain: {timeout: 300ms}").start();
    let mut client = FrameClient::connect(gateway.http);
    client.write(&get(1, "/silent"));
    client.write(&get(3, "/half"));
    client.until(|frame| frame.kind == DATA && frame.stream == 3);
    eventually("both arrive", || upstream.count() == before_these + 2);
    gateway.signal("TERM");
    assert_eq!(gateway.wait().0.code(), Some(0));
    let rest = client.rest();
    for stream in [1, 3] {
        let of_stream = |frame: &&Frame| frame.stream == stream;
        let kinds: Vec<u8> = rest.iter().filter(of_stream).map(|frame| frame.kind).collect();
        assert_eq!(kinds, [RST_STREAM], "{rest:?}");
    }
    let log = std::fs::read_to_string(gateway.file("access.jsonl")).unwrap();
    let mut lines: Vec<_> = log.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()).collect();
    lines.sort_by_key(|line| line["code"].as_u64());
    let told: Vec<_> = lines.iter().map(|line| (&line["kind"], &line["code"], &line["detail"])).collect();
    let error = &serde_json::Value::from("error");
    let expected = [(error, &200.into(), &"shutdown".into()), (error, &499.into(), &"shutdown".into())];
    assert_eq!(told, expected, "{log}");
}

/// Sends requests without pause until `done`, on connections that `connect` opens, and counts those that were answered.
fn send(connect: impl Fn() -> Http2Client, done: &AtomicBool, served: &AtomicUsize) {
    let mut client = connect();
    while !done.load(Ordering::Relaxed) {
        if !client.accepts_requests() {
            client = connect();
        }
        let requests: Vec<_> = (0..4).filter_map(|_| client.try_begin("GET", "/")).collect();
        for request in requests {
            match request.response() {
                Ok(response) => {
                    assert_eq!(response.status, 200);
                    served.fetch_add(1, Ordering::Relaxed);
                }
                // Sent after the farewell, so not looked at: the client may send it again elsewhere.
                Err(error) => {
                    assert!(error.is_go_away() && error.reason() == Some(h2::Reason::NO_ERROR), "{error:?}")
                }
            }
        }
    }
}

#[test]
fn upgrades_lose_no_request_with_and_without_tls() {
    let (upstream, authority) = (Upstream::start(), Authority::new("ca"));
    let issued = authority.issue(&["a.test"]);
    let tls = "{address: 127.0.0.1:0, tls: {certificates: [{cert_file: a.pem, key_file: a.key}]}}";
    let listeners = format!("listeners: [{{address: 127.0.0.1:0, protocols: [h2c]}}, {tls}]");
    let files = [("a.pem", &*issued.certificate), ("a.key", &issued.key)];
    let mut gateway = Gateway::before(&upstream).with(&listeners).files(&files).start();
    let (plain, encrypted) = (gateway.listeners[0], gateway.listeners[1]);
    let settings = TlsSettings::new(&authority.pem(), None, &BOTH);
    let connect_tls = || Http2Client::connect_tls(&settings, encrypted, "a.test");
    let (done, served) = (AtomicBool::new(false), [AtomicUsize::new(0), AtomicUsize::new(0)]);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| send(|| Http2Client::connect(plain), &done, &served[0]));
            scope.spawn(|| send(connect_tls, &done, &served[1]));
        }
        await_more(&served);
        hand_over(&mut gateway, short_or_long(2, 50), || await_more(&served));
        done.store(true, Ordering::Relaxed);
    });
    let served: usize = served.iter().map(|served| served.load(Ordering::Relaxed)).sum();
    assert_eq!(upstream.count(), served, "a request was answered to nobody");
    assert_eq!(Http2Client::connect(plain).get("/", &[]).status, 200);
}

#[test]
fn a_reload_changes_limits_on_open_connections_and_not_what_is_spoken() {
    let upstream = Upstream::start();
    let listener = "listeners: [{address: 127.0.0.1:0, protocols: [h2c, http/1.1]}]\n";
    let gateway: Gateway = before(&upstream).start();
    let mut client = Http2Client::connect(gateway.http);
    assert_eq!(client.get("/longer", &[]).status, 200);
    gateway.reload(&upstream, &format!("{listener}limits: {{target_bytes: 64B}}"));
    assert_eq!(client.get(&format!("/{}", "x".repeat(100)), &[]).status, 414);
    gateway.reload(&upstream, "listeners: [{address: 127.0.0.1:0, protocols: [http/1.1]}]");
    gateway.expect_logged("listeners");
    assert_eq!(client.get(&format!("/{}", "x".repeat(100)), &[]).status, 200);
    assert_eq!(Http2Client::connect(gateway.http).get("/", &[]).status, 200);
}
