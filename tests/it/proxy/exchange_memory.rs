//! Memory for exchanges that make no progress: it is limited for each, whatever its client and upstream do.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use crate::support::http2::Http2Client;
use crate::support::http2_upstream::Http2Upstream;
use crate::support::{Gateway, Upstream, eventually, print_measured};

const EXCHANGES: u64 = 40;
/// The most bytes for one exchange: two buffers of 64 KiB in each direction, the task, and the allocator's overhead.
const MOST: u64 = 400 << 10;

/// Returns the growth of the gateway's memory for each exchange, when the memory no longer changes.
fn grown(gateway: &Gateway, before: u64) -> u64 {
    let mut last = 0;
    eventually("it holds still", || {
        std::thread::sleep(std::time::Duration::from_millis(500));
        let now = gateway.resident_bytes();
        std::mem::replace(&mut last, now) == now
    });
    last.saturating_sub(before) / EXCHANGES
}

#[test]
fn endless_responses_that_nobody_reads_hold_little() {
    for framing in ["Content-Length: 1000000000000", "Transfer-Encoding: chunked", "X: until it closes"] {
        let upstream = Upstream::answering(move |_, stream| {
            let part = match framing {
                "Transfer-Encoding: chunked" => [&b"10000\r\n"[..], &[b'x'; 65_536], b"\r\n"].concat(),
                _ => vec![b'x'; 65_536],
            };
            let _ = write!(stream, "HTTP/1.1 200 OK\r\n{framing}\r\n\r\n");
            while stream.write_all(&part).is_ok() {}
        });
        let gateway = Gateway::start(&upstream, "limits: {body_timeout: 60s}");
        let before = gateway.resident_bytes();
        let clients: Vec<_> = (0..EXCHANGES)
            .map(|_| {
                let mut client = TcpStream::connect(gateway.http).unwrap();
                client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
                client.read_exact(&mut [0; 1000]).unwrap();
                client
            })
            .collect();
        let each = grown(&gateway, before);
        print_measured(&format!("{framing}: {} KiB for each response", each >> 10));
        assert!(each < MOST, "{framing}: {each}");
        drop(clients);
    }
}

#[test]
fn endless_uploads_that_nobody_takes_hold_little() {
    for framing in ["Content-Length: 1000000000000", "Transfer-Encoding: chunked"] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        std::thread::spawn(move || listener.incoming().collect::<Vec<_>>());
        let gateway = Gateway::before_url(&url)
            .with("limits: {body_timeout: 60s, body_bytes: unlimited}\nupstream_timeouts: {read: 60s, write: 60s}")
            .start();
        let before = gateway.resident_bytes();
        let clients: Vec<_> = (0..EXCHANGES)
            .map(|_| {
                let client = TcpStream::connect(gateway.http).unwrap();
                let mut sending = client.try_clone().unwrap();
                std::thread::spawn(move || {
                    let part = match framing {
                        "Transfer-Encoding: chunked" => [&b"10000\r\n"[..], &[b'x'; 65_536], b"\r\n"].concat(),
                        _ => vec![b'x'; 65_536],
                    };
                    let head = format!("POST / HTTP/1.1\r\nHost: a\r\n{framing}\r\n\r\n");
                    let mut sent = sending.write_all(head.as_bytes()).is_ok();
                    while sent {
                        sent = sending.write_all(&part).is_ok();
                    }
                });
                client
            })
            .collect();
        let each = grown(&gateway, before);
        print_measured(&format!("{framing}: {} KiB for each upload", each >> 10));
        assert!(each < MOST, "{framing}: {each}");
        for client in clients {
            let _ = client.shutdown(std::net::Shutdown::Both);
        }
    }
}

/// Starts a gateway with both protocols and an HTTP/2 upstream.
fn before_http2(upstream: SocketAddr) -> Gateway {
    let text = format!(
        "threads: 1\n\
         listeners: [{{address: 127.0.0.1:0, protocols: [h2c, http/1.1]}}]\n\
         limits: {{body_timeout: 60s, body_bytes: unlimited}}\nupstream_timeouts: {{read: 60s, write: 60s}}\n\
         upstreams: {{api: {{endpoints: [\"http://{upstream}\"], protocol: h2c}}}}\n\
         routes: [{{name: all, upstream: api}}]\n"
    );
    Gateway::before_url("").with(&text).start()
}

#[test]
fn endless_responses_of_http2_that_nobody_reads_hold_little() {
    const PATH: &str = "/large/1000000000000";
    let upstream = Http2Upstream::start();
    let gateway = before_http2(upstream.address);
    let before = gateway.resident_bytes();
    let mut clients: Vec<_> = (0..EXCHANGES).map(|_| Http2Client::connect(gateway.http)).collect();
    let begin = |client: &mut Http2Client| client.begin("GET", PATH, &[], true).streaming().unwrap();
    let unread: Vec<_> = clients.iter_mut().map(begin).collect();
    let each = grown(&gateway, before);
    print_measured(&format!("HTTP/2: {} KiB for each response and its client's connection", each >> 10));
    assert!(each < MOST, "to HTTP/2: {each}");
    drop(unread);
    let gateway = before_http2(upstream.address);
    let before = gateway.resident_bytes();
    let clients: Vec<_> = (0..EXCHANGES)
        .map(|_| {
            let mut client = TcpStream::connect(gateway.http).unwrap();
            client.write_all(format!("GET {PATH} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes()).unwrap();
            client.read_exact(&mut [0; 1000]).unwrap();
            client
        })
        .collect();
    let each = grown(&gateway, before);
    print_measured(&format!("HTTP/2 to HTTP/1.1: {} KiB for each response", each >> 10));
    assert!(each < MOST, "to HTTP/1.1: {each}");
    drop(clients);
}

#[test]
fn endless_uploads_over_http2_that_nobody_takes_hold_little() {
    let upstream = Http2Upstream::start();
    let gateway = before_http2(upstream.address);
    let before = gateway.resident_bytes();
    let mut clients: Vec<_> = (0..EXCHANGES).map(|_| Http2Client::connect(gateway.http)).collect();
    let uploads: Vec<_> = clients
        .iter_mut()
        .map(|client| {
            let mut upload = client.begin("POST", "/stuck", &[], false);
            upload.write_ahead(&vec![b'x'; 1 << 20], false);
            upload
        })
        .collect();
    let each = grown(&gateway, before);
    print_measured(&format!("HTTP/2: {} KiB for each upload and its client's connection", each >> 10));
    assert!(each < MOST, "{each}");
    drop(uploads);
}
