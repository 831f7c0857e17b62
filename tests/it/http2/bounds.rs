//! Limits for one client: time, bytes and streams. Other clients are not affected.

use std::io::Write;
use std::time::Duration;

use super::before;
use crate::support::http2::Http2Client;
use crate::support::http2_frames::{
    DATA, END_HEADERS, END_STREAM, FrameClient, GOAWAY, HEADERS, PING, PREFACE, RST_STREAM, SETTINGS, block, frame,
    get, request,
};
use crate::support::{Gateway, Upstream, eventually, now, wait_for_nothing};

const REQUESTS: &str = "tollgate_http_requests_total";

const NO_ERROR: u32 = 0;
const ENHANCE_YOUR_CALM: u32 = 11;

#[test]
fn a_body_that_stalls_is_answered_408_and_other_streams_go_on() {
    let upstream = Upstream::start();
    let gateway = before(&upstream).with("limits: {body_timeout: 300ms}").start();
    let mut client = Http2Client::connect(gateway.http);
    let mut stalled = client.begin("POST", "/", &[], false);
    stalled.write(b"begun", false).unwrap();
    // Another one on the same connection.
    assert_eq!(client.get("/", &[]).status, 200);
    let response = stalled.response().unwrap();
    assert_eq!((response.status, response.field("x-tollgate-reason")), (408, "bad_request"));
    assert_eq!(client.get("/", &[]).status, 200);
}

#[test]
fn a_body_is_bounded_with_and_without_a_length() {
    let upstream = Upstream::start();
    let gateway = before(&upstream).with("limits: {body_bytes: 100KiB}").start();
    let mut client = Http2Client::connect(gateway.http);
    let (fits, beyond) = (vec![b'x'; 100 << 10], vec![b'x'; (100 << 10) + 1]);
    assert_eq!(client.send("POST", "/", &[], &[&fits]).status, 200);
    for fields in [&[][..], &[("content-length", "102401")]] {
        let response = client.send("POST", "/", fields, &[&beyond]);
        assert_eq!((response.status, response.field("x-tollgate-reason")), (413, "bad_request"), "{fields:?}");
    }
    assert_eq!(client.get("/", &[]).status, 200);
}

#[test]
fn a_response_that_is_not_read_is_given_up_and_other_streams_go_on() {
    let upstream = Upstream::answering(|request, stream| {
        let length = if request.line.contains("/large") { 1_000_000 } else { 2 };
        let _ = write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
        let _ = stream.write_all(&vec![b'x'; length]);
    });
    let gateway = before(&upstream).with("limits: {body_timeout: 300ms}").with("access_log: {to: log}").start();
    let mut client = FrameClient::connect(gateway.http);
    client.write(&get(1, "/large"));
    assert_eq!(client.outcome(1), Ok(200));
    // The window of the stream is never enlarged.
    let reset = client.until(|frame| frame.kind == RST_STREAM);
    assert_eq!(reset.stream, 1);
    let log = || std::fs::read_to_string(gateway.file("log")).unwrap_or_default();
    eventually("the request is logged", || log().contains("\"code\":200"));
    // The window of the connection is used up, too: only a response without a body fits.
    client.write(&request(3, "HEAD", "/", &[], END_STREAM));
    assert_eq!(client.outcome(3), Ok(200));
}

#[test]
fn a_header_block_that_is_not_finished_ends_its_connection() {
    let upstream = Upstream::start();
    let gateway = before(&upstream).with("limits: {header_timeout: 1500ms}").start();
    let whole = block("GET", "/", &[]);
    let unfinished =
        [frame(HEADERS, END_STREAM, 1, &whole), frame(HEADERS, END_STREAM | END_HEADERS, 1, &whole)[..20].to_vec()];
    let began = now();
    let clients = unfinished.map(|part| {
        let mut client = FrameClient::connect(gateway.http);
        client.write(&part);
        client
    });
    for mut client in clients {
        let frames = client.rest();
        let goaway = frames.iter().rfind(|frame| frame.kind == GOAWAY);
        assert_eq!(goaway.map(|frame| frame.error_code()), Some(ENHANCE_YOUR_CALM), "{frames:?}");
        assert!(began.elapsed() < Duration::from_secs(8));
    }
    gateway.expect("tollgate_http2_errors_total", &["kind=\"header_timeout\""], 2.0);
    // An open stream without such a block has its own time.
    let mut client = FrameClient::connect(gateway.http);
    client.write(&request(1, "POST", "/", &[("content-length", "1")], 0));
    wait_for_nothing(Duration::from_millis(2000));
    client.write(&frame(DATA, END_STREAM, 1, b"x"));
    assert_eq!(client.outcome(1), Ok(200));
}

#[test]
fn a_connection_without_streams_is_closed_after_the_idle_timeout() {
    let upstream = Upstream::start();
    let gateway = before(&upstream).with("limits: {idle_timeout: 3s}").start();
    let mut client = FrameClient::connect(gateway.http);
    client.write(&get(1, "/"));
    assert_eq!(client.outcome(1), Ok(200));
    // Pings ask for nothing, and keep nothing open.
    client.write(&frame(PING, 0, 0, b"12345678"));
    let frames = client.rest();
    let goaway = frames.iter().find(|frame| frame.kind == GOAWAY).expect("no farewell");
    assert_eq!(goaway.error_code(), NO_ERROR);
    gateway.expect("tollgate_http_connections", &[], 0.0);
}

#[test]
fn a_preface_has_a_deadline() {
    let upstream = Upstream::start();
    let is_enforced = |protocols: &str| {
        let gateway = Gateway::before(&upstream)
            .with(&format!("listeners: [{{address: 127.0.0.1:0, protocols: {protocols}}}]"))
            .with("limits: {header_timeout: 2s, idle_timeout: 2s}")
            .start();
        let clients = [0, 1, 10, 23].map(|part| {
            let mut client = FrameClient::silent(gateway.http);
            client.write(&PREFACE[..part]);
            client
        });
        for mut client in clients {
            // A part of a preface may be the beginning of a head of HTTP/1.1, whose server answers.
            let _ = client.rest();
        }
        gateway.expect("tollgate_http_connections", &[], 0.0);
        let mut client = FrameClient::connect(gateway.http);
        client.write(&get(1, "/"));
        assert_eq!(client.outcome(1), Ok(200));
    };
    std::thread::scope(|scope| {
        scope.spawn(|| is_enforced("[h2c]"));
        is_enforced("[h2c, http/1.1]");
    });
}

#[test]
fn what_is_not_spoken_on_a_listener_is_not_served() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream).with("listeners: [{address: 127.0.0.1:0, protocols: [h2c]}]").start();
    let mut client = gateway.client();
    client.write("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(client.is_closed() || !client.until("").contains("HTTP/1.1"));
    let plain = Gateway::start(&upstream, "");
    let mut client = FrameClient::silent(plain.http);
    client.write(PREFACE);
    assert_ne!(client.next().map(|frame| frame.kind), Some(SETTINGS));
    assert_eq!(upstream.count(), 0);
}

#[test]
fn a_client_has_ten_streams_for_each_connection_that_it_may_have() {
    let (upstream, answer) = Upstream::answering_when_told();
    let gateway = before(&upstream).with("limits: {connections_per_client: 2}").start();
    let mut clients = [(); 2].map(|()| Http2Client::connect(gateway.http));
    // Two times ten, beside one for each connection; on whichever connection they are.
    let mut begin = |count: [usize; 2]| -> Vec<_> {
        let begun = clients.iter_mut().zip(count);
        begun
            .flat_map(|(client, count)| (0..count).map(|_| client.begin("GET", "/slow", &[], true)).collect::<Vec<_>>())
            .collect()
    };
    let slow = begin([16, 6]);
    eventually("all are at the upstream", || upstream.count() == 22);
    for beyond in begin([1, 1]) {
        let beyond = beyond.response().unwrap();
        assert_eq!(beyond.status, 503);
        assert!(beyond.head.contains_key("x-request-id"));
    }
    eventually("the stream is logged", || gateway.has_logged("connections_per_client is reached"));
    // They take no connections from others of the client, nor does it get more of those.
    assert_eq!(gateway.client().response("GET").unwrap().status, 503);
    (0..22).for_each(|_| answer.send(()).unwrap());
    assert!(slow.into_iter().all(|request| request.response().unwrap().status == 200));
    // Whichever of them ends first, the others leave room for as many.
    let slow = begin([22, 0]);
    eventually("some are at the upstream", || upstream.count() == 22 + 21);
    (0..21).for_each(|_| answer.send(()).unwrap());
    let statuses: Vec<_> = slow.into_iter().map(|request| request.response().unwrap().status).collect();
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 21, "{statuses:?}");
    let slow = begin([0, 21]);
    (0..21).for_each(|_| answer.send(()).unwrap());
    assert!(slow.into_iter().all(|request| request.response().unwrap().status == 200));
}

#[test]
fn streams_leave_files_for_others() {
    let (upstream, answer) = Upstream::answering_when_told();
    // Enough for 72 connections with one request each.
    let gateway = before(&upstream).shell("ulimit -n 256").start();
    let mut clients: Vec<_> = (0..2).map(|_| Http2Client::connect(gateway.http)).collect();
    assert_eq!(clients[0].get("/", &[]).status, 200);
    gateway.expect(REQUESTS, &["code=\"200\""], 1.0);
    let slow: Vec<_> = clients
        .iter_mut()
        .flat_map(|client| (0..99).map(|_| client.begin("GET", "/slow", &[], true)).collect::<Vec<_>>())
        .collect();
    let refused = || gateway.metric(REQUESTS, &["code=\"503\""]);
    let served = || f64::from(u32::try_from(upstream.count()).unwrap());
    eventually("each is served or refused", || served() + refused() == 1.0 + 198.0);
    (0..slow.len()).for_each(|_| answer.send(()).unwrap());
    let statuses: Vec<_> = slow.into_iter().map(|request| request.response().unwrap().status).collect();
    let served = statuses.iter().filter(|status| **status == 200).count();
    assert!(statuses.iter().all(|status| matches!(status, 200 | 503)), "{statuses:?}");
    assert!((120..=142).contains(&served), "{served} of {}", statuses.len());
    assert!(!gateway.has_logged("Too many open files"), "{}", gateway.errors());
    assert!(gateway.has_logged("connections turned away"), "{}", gateway.errors());
    gateway.expect("tollgate_upstream_errors_total", &[], 0.0);
    assert_eq!(clients[0].get("/", &[]).status, 200);
}

#[test]
fn streams_that_ask_for_decisions_take_no_files() {
    let (upstream, answer) = Upstream::answering_when_told();
    let listeners = "listeners:
  - {name: web, address: 127.0.0.1:0, protocols: [h2c, http/1.1]}
  - {name: edge, address: 127.0.0.1:0, decide: [ext_authz], clients: [127.0.0.1], answer_within: 10s}";
    // Enough for 72 connections with one request each.
    let gateway = Gateway::before(&upstream).with(listeners).shell("ulimit -n 256").start();
    let edge = gateway.listeners[1];
    const CALL: (&str, &[(&str, &str)]) =
        ("/envoy.service.auth.v3.Authorization/Check", &[("content-type", "application/grpc")]);
    let mut callers: Vec<_> = (0..2).map(|_| Http2Client::connect(edge)).collect();
    // None of them is whole.
    let calls: Vec<_> = callers
        .iter_mut()
        .flat_map(|caller| (0..98).map(|_| caller.begin("POST", CALL.0, CALL.1, false)).collect::<Vec<_>>())
        .collect();
    for caller in &mut callers {
        let answer = caller.send("POST", CALL.0, CALL.1, &[b"\0\0\0\0\0"]);
        assert_eq!(answer.status, 200);
    }
    let mut client = Http2Client::connect(gateway.http);
    let slow = client.begin("GET", "/slow", &[], true);
    assert_eq!(client.get("/", &[]).status, 200);
    assert_eq!(gateway.client().get("/", &[]).status, 200);
    answer.send(()).unwrap();
    assert_eq!(slow.response().unwrap().status, 200);
    drop(calls);
}

#[test]
fn streams_that_share_a_connection_to_the_upstream_take_no_files() {
    let (upstream, answer) = Upstream::answering_when_told();
    let behind = before(&upstream).start();
    let config = format!(
        "threads: 1
listeners: [{{address: 127.0.0.1:0, protocols: [h2c]}}]
upstreams: {{api: {{endpoints: [\"http://{}\"], protocol: h2c}}}}
routes: [{{name: all, upstream: api}}]",
        behind.http
    );
    let gateway = Gateway::before_url("").with(&config).shell("ulimit -n 256").start();
    let mut clients: Vec<_> = (0..2).map(|_| Http2Client::connect(gateway.http)).collect();
    // For the first hundred; those that find no room on it make connections of their own.
    assert_eq!(clients[0].get("/", &[]).status, 200);
    let slow: Vec<_> = clients
        .iter_mut()
        .flat_map(|client| (0..99).map(|_| client.begin("GET", "/slow", &[], true)).collect::<Vec<_>>())
        .collect();
    eventually("all are at the upstream", || upstream.count() == 1 + slow.len());
    (0..slow.len()).for_each(|_| answer.send(()).unwrap());
    for request in slow {
        assert_eq!(request.response().unwrap().status, 200);
    }
}

#[test]
fn a_client_has_a_hundred_streams() {
    let (upstream, answer) = Upstream::answering_when_told();
    let gateway = before(&upstream).start();
    let mut client = FrameClient::connect(gateway.http);
    let flight: Vec<u8> = (0..101).flat_map(|number| get(2 * number + 1, "/slow")).collect();
    client.write(&flight);
    const REFUSED_STREAM: u32 = 7;
    assert_eq!(client.outcome(201), Err(REFUSED_STREAM));
    (0..100).for_each(|_| answer.send(()).unwrap());
    assert_eq!(client.outcome(199), Ok(200));
    gateway.expect("tollgate_http2_errors_total", &["kind=\"stream\""], 1.0);
}
