//! `limits.response_buffers`: the bytes that are held for clients that do not read are limited for the whole process. Only
//! these clients are affected.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc;
use std::time::Duration;

use crate::support::http2_frames::{FrameClient, RST_STREAM, get};
use crate::support::{Gateway, Upstream, eventually, print_measured, short_or_long};

const LENGTH: usize = 16 << 20;
const MIB: u64 = 1 << 20;

/// Starts an upstream that answers `/large` with 16 MiB.
fn large_responses() -> Upstream {
    static PART: [u8; 64 << 10] = [b'x'; 64 << 10];
    Upstream::answering(|request, stream| {
        let length = if request.line.contains("/large") { LENGTH } else { PART.len() };
        let _ = write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
        let _ = (0..length / PART.len()).try_for_each(|_| stream.write_all(&PART));
    })
}

fn closed(gateway: &Gateway) -> f64 {
    gateway.metric("tollgate_response_buffers_closed_total", &[])
}

#[test]
fn a_client_that_reads_nothing_loses_its_responses_and_one_that_reads_slowly_does_not() {
    let upstream = large_responses();
    let gateway = Gateway::before(&upstream)
        .with("listeners: [{address: 127.0.0.1:0, proxy_protocol: {from: [127.0.0.0/8]}}]")
        .with("limits: {response_buffers: 1MiB, body_timeout: 60s}\naccess_log: {to: log}")
        .start();
    gateway.expect("tollgate_response_buffers_limit_bytes", &[], 1_048_576.0);
    let ask = |client: &str| {
        let mut stream = TcpStream::connect(gateway.http).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(15))).unwrap();
        write!(
            stream,
            "PROXY TCP4 {client} 192.0.2.1 1 2\r\nGET /large HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
        )
        .unwrap();
        stream
    };
    let mut slow = ask("203.0.113.8");
    eventually("the slow client's response is held", || gateway.metric("tollgate_response_buffers_bytes", &[]) > 0.0);
    let unread: Vec<_> = (0..40).map(|_| ask("203.0.113.7")).collect();
    eventually("responses are given up", || closed(&gateway) >= 20.0);
    let held = gateway.metric("tollgate_response_buffers_bytes", &[]);
    assert!(held <= 1_048_576.0, "{held}");
    let (mut read, mut part) = (0, vec![0; 1 << 20]);
    loop {
        match slow.read(&mut part).unwrap() {
            0 => break,
            length => read += length,
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(read > LENGTH, "{read} bytes were read");
    let log = || std::fs::read_to_string(gateway.file("log")).unwrap();
    let given_up = || log().matches("\"detail\":\"response_buffers\"").count();
    eventually("they are logged", || given_up() >= 20);
    gateway.expect_logged("unread responses given up");
    // An upstream has no part in it.
    gateway.expect("tollgate_upstream_errors_total", &[], 0.0);
    drop(unread);
    gateway.expect("tollgate_response_buffers_bytes", &[], 0.0);
}

#[test]
fn unread_responses_of_many_streams_take_no_more_memory_than_they_may() {
    let upstream = large_responses();
    let gateway = Gateway::before(&upstream)
        .with("listeners: [{address: 127.0.0.1:0, protocols: [h2c, http/1.1]}]")
        .with("limits: {response_buffers: 16MiB, body_timeout: 60s}")
        .start();
    let before = gateway.resident_bytes();
    let connections = short_or_long(4, 40);
    let mut clients: Vec<_> = (0..connections).map(|_| FrameClient::connect(gateway.http)).collect();
    for client in &mut clients {
        let flight: Vec<u8> = (0..100).flat_map(|number| get(2 * number + 1, "/large")).collect();
        client.write(&flight);
    }
    eventually("responses are given up", || closed(&gateway) > 100.0);
    let grown = gateway.resident_bytes().saturating_sub(before);
    print_measured(&format!("{connections} x 100 unread responses with 16 MiB of buffers: {} MiB", grown / MIB));
    // The streams, the connections to the upstream and what the allocator keeps are not counted. Without a bound it is 54 MiB for each
    // connection.
    let most = 16 * MIB + u64::try_from(connections).unwrap() * 20 * MIB;
    assert!(grown < most, "{} MiB", grown / MIB);
    // What is given up is reset, whichever clients it is of, and others are served.
    let (found, reset) = mpsc::channel();
    for mut reader in clients.iter().map(FrameClient::reader) {
        let found = found.clone();
        std::thread::spawn(move || {
            if std::iter::from_fn(|| reader.next()).any(|frame| frame.kind == RST_STREAM) {
                let _ = found.send(());
            }
        });
    }
    reset.recv_timeout(Duration::from_secs(15)).expect("a stream is reset");
    assert_eq!(gateway.client().get("/", &[]).status, 200);
}

#[test]
fn a_reload_changes_how_much_may_be_held() {
    let upstream = large_responses();
    let gateway = Gateway::start(&upstream, "limits: {response_buffers: 100MiB}");
    gateway.expect("tollgate_response_buffers_limit_bytes", &[], 104_857_600.0);
    gateway.reload(&upstream, "limits: {response_buffers: 1MiB}");
    gateway.expect("tollgate_response_buffers_limit_bytes", &[], 1_048_576.0);
    gateway.reload(&upstream, "");
    // A quarter of the memory that there is.
    assert!(gateway.metric("tollgate_response_buffers_limit_bytes", &[]) >= 16_777_216.0);
}
