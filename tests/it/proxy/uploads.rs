//! Responses that begin before the end of the upload: they are complete, whatever happens to the rest of the upload.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::time::Duration;

use crate::support::{Client, Gateway, Upstream};

/// Answers one request as soon as its head has arrived: with a part at once, and another after `pause`. Reads none of the body.
fn answering_at_once(pause: Duration) -> (String, std::thread::JoinHandle<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let thread = std::thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        read_head(&mut stream);
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nfirst").unwrap();
        std::thread::sleep(pause);
        stream.write_all(b"later").unwrap();
        stream
    });
    (url, thread)
}

fn read_head(stream: &mut impl Read) {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
}

#[track_caller]
fn expect_whole(client: &mut Client) {
    let response = client.response("POST").unwrap();
    assert_eq!((response.status, &*response.body), (200, "firstlater"));
    assert_eq!(response.field("connection").as_deref(), Some("close"));
}

#[test]
fn a_client_that_waits_for_100_continue_and_gets_a_response_need_not_send_its_body() {
    let (url, upstream) = answering_at_once(Duration::from_secs(1));
    let gateway = Gateway::before_url(&url).with("limits: {body_timeout: 300ms}").start();
    let mut client = gateway.client();
    client.write("POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n");
    expect_whole(&mut client);
    drop(upstream.join());
}

#[test]
fn a_client_that_stops_its_upload_gets_the_rest_of_the_response() {
    let (url, upstream) = answering_at_once(Duration::from_secs(1));
    let gateway = Gateway::before_url(&url).with("limits: {body_timeout: 300ms}").start();
    let mut client = gateway.client();
    client.write("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 500\r\n\r\nhalf");
    client.until("first");
    client.finish();
    assert_eq!(client.until("later"), "later");
    drop(upstream.join());
    gateway.expect("tollgate_http_requests_total", &["code=\"200\""], 1.0);
}

#[test]
fn an_upload_that_turns_out_to_be_invalid_ends_no_response() {
    let (url, upstream) = answering_at_once(Duration::from_secs(1));
    let gateway = Gateway::before_url(&url).start();
    let mut client = gateway.client();
    client.write("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n");
    client.until("first");
    client.write("no chunk\r\n");
    assert_eq!(client.until("later"), "later");
    drop(upstream.join());
}

#[test]
fn an_upstream_that_has_answered_need_not_read() {
    let (url, upstream) = answering_at_once(Duration::from_secs(1));
    let gateway = Gateway::before_url(&url).with("upstream_timeouts: {write: 300ms, read: 10s}").start();
    let stream = TcpStream::connect(gateway.http).unwrap();
    let mut sending = stream.try_clone().unwrap();
    // More than the kernel buffers. Writing ends where the gateway reads no more.
    std::thread::spawn(move || {
        let _ = sending.write_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 50000000\r\n\r\n");
        let _ = sending.write_all(&vec![b'x'; 50_000_000]);
    });
    expect_whole(&mut Client::over(stream));
    drop(upstream.join());
    gateway.expect("tollgate_upstream_errors_total", &[], 0.0);
}

#[test]
fn a_client_that_waits_for_100_continue_waits_as_long_as_the_upstream_may_take() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let gateway = Gateway::before_url(&url).with("limits: {body_timeout: 300ms}").start();
    let mut client = gateway.client();
    client.write("POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n");
    let mut upstream = Client::over(listener.accept().unwrap().0);
    upstream.until("\r\n\r\n");
    std::thread::sleep(Duration::from_secs(1));
    upstream.write("HTTP/1.1 100 Continue\r\n\r\n");
    assert_eq!(client.until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
    // From here on it has its time.
    client.write("h");
    assert_eq!(client.response("POST").unwrap().status, 408);
}

#[test]
fn a_client_that_is_told_its_connection_is_kept_can_use_it() {
    let folder = tempfile::TempDir::new().unwrap();
    let path = folder.path().join("upstream.sock");
    let listener = UnixListener::bind(&path).unwrap();
    std::thread::spawn(move || {
        // Refuses uploads unread, after a while in which they fill what the kernel holds.
        for stream in listener.incoming() {
            std::thread::spawn(move || {
                let mut stream = stream.unwrap();
                let mut line = String::new();
                BufReader::with_capacity(1, stream.try_clone().unwrap()).read_line(&mut line).unwrap();
                std::thread::sleep(Duration::from_millis(if line.starts_with("POST") { 50 } else { 0 }));
                let _ =
                    stream.write_all(b"HTTP/1.1 401 Unauthorized\r\nConnection: close\r\nContent-Length: 2\r\n\r\nno");
                std::thread::sleep(Duration::from_millis(50));
                let _ = stream.shutdown(Shutdown::Both);
            });
        }
    });
    let gateway = Gateway::before_url("")
        .with(&format!(
            "upstreams: {{api: {{endpoints: [\"unix:{}\"]}}}}\nroutes: [{{name: all, upstream: api}}]",
            path.display()
        ))
        .start();
    let mut kept = 0;
    // Some of these are read whole by the gateway, and not taken whole by the upstream: the kernel holds about 200 KiB.
    for length in (1..80).map(|number| number * 4096) {
        let stream = TcpStream::connect(gateway.http).unwrap();
        let mut sending = stream.try_clone().unwrap();
        let sent = std::thread::spawn(move || {
            let _ =
                sending.write_all(format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n").as_bytes());
            let _ = sending.write_all(&vec![b'x'; length]);
        });
        let mut client = Client::over(stream);
        let response = client.response("POST").unwrap();
        assert_eq!(response.status, 401, "{length}");
        sent.join().unwrap();
        if response.field("connection").as_deref() == Some("keep-alive") {
            client.write("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
            assert_eq!(client.response("GET").map(|response| response.status).ok(), Some(401), "{length}");
            kept += 1;
        }
    }
    assert!(kept > 0);
}

#[test]
fn an_upload_that_is_refused_before_the_upstream_has_seen_a_byte_is_the_gateways() {
    let upstream = Upstream::start();
    let text = format!(
        "upstreams: {{api: {{endpoints: [\"http://{}\"]}}}}\nroutes: [{{name: all, upstream: api, body_bytes: 10B}}]",
        upstream.address
    );
    let gateway = Gateway::before_url("").with(&text).start();
    let mut client = gateway.client();
    let body = "x".repeat(20);
    client.write(&format!("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n14\r\n{body}\r\n0\r\n\r\n"));
    assert_eq!(client.response("POST").unwrap().status, 413);
    gateway.expect("tollgate_http_requests_total", &["code=\"413\"", "origin=\"gateway\""], 1.0);
    gateway.expect("tollgate_http_requests_total", &["origin=\"upstream\""], 0.0);
    assert_eq!(upstream.count(), 0);
}
