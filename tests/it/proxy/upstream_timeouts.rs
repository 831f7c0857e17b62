//! Upstreams that send nothing, or stop sending: they are given up in time, at any point of the exchange. The client's
//! connection or Pingora enforces the timeout.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::support::websocket::SWITCHED;
use crate::support::{Gateway, Lateness, Upstream, now};

const REQUESTS: [(&str, &str); 3] = [
    ("GET", "GET / HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("POST", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello"),
    (
        "GET",
        "GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
    ),
];

/// Starts an upstream that sends these bytes, and nothing more until its connection is closed.
fn sending(bytes: &'static [u8]) -> Upstream {
    Upstream::answering(move |_, stream| {
        let _ = stream.write_all(bytes);
        let _ = stream.read(&mut [0]);
    })
}

#[test]
fn an_upstream_that_stops_sending_is_given_up_wherever_it_does() {
    let beginnings: [(&[u8], Option<u16>); 5] = [
        (b"", Some(504)),
        (b"HTTP/1.1 200 OK\r\nContent-Le", Some(504)),
        (b"HTTP/1.1 103 Early Hints\r\n\r\n", Some(504)),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", None),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n", None),
    ];
    // All at once, since they wait.
    std::thread::scope(|scope| {
        for (bytes, status) in beginnings {
            scope.spawn(move || {
                let upstream = sending(bytes);
                let gateway = Gateway::start(&upstream, "upstream_timeouts: {read: 2s}");
                let asked = REQUESTS.map(|(method, request)| {
                    let mut client = gateway.client();
                    let start = now();
                    client.write(request);
                    (method, request, client, start)
                });
                for (method, request, mut client, start) in asked {
                    let case = format!("{request:?} {:?}", String::from_utf8_lossy(bytes));
                    let response = client.response(method);
                    let took = start.elapsed();
                    assert_eq!(response.ok().map(|response| response.status), status, "{case}");
                    assert!((Duration::from_millis(1950)..Duration::from_secs(8)).contains(&took), "{case}: {took:?}");
                }
                gateway.expect("tollgate_upstream_errors_total", &["read_timeout"], 3.0);
                gateway.expect("tollgate_http_connections", &[], 0.0);
            });
        }
    });
}

#[test]
fn every_request_and_every_part_of_a_response_has_the_whole_timeout() {
    let upstream = Upstream::answering(|_, stream: &mut TcpStream| {
        for part in ["", "HTTP/1.1 103 Early Hints\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n", "ha", "lf"]
        {
            let _ = stream.write_all(part.as_bytes());
            std::thread::sleep(Duration::from_millis(700));
        }
    });
    // Less than all parts together take, and far more than each: on a busy machine they arrive late.
    let gateway = Gateway::start(&upstream, "upstream_timeouts: {read: 3s}");
    std::thread::scope(|scope| {
        for (method, request) in REQUESTS {
            let mut client = gateway.client();
            scope.spawn(move || {
                for _ in 0..2 {
                    client.write(request);
                    let response = client.response(method).unwrap();
                    assert_eq!((response.status, response.body.as_str()), (200, "half"), "{request:?}");
                    if request.contains("upgrade") {
                        break;
                    }
                }
            });
        }
    });
    gateway.expect("tollgate_upstream_errors_total", &[], 0.0);
}

#[test]
fn a_web_socket_may_be_idle_for_longer_than_a_response() {
    let upstream = Upstream::answering(|_, stream| {
        let _ = stream.write_all(SWITCHED.as_bytes());
        std::thread::sleep(Duration::from_millis(900));
        let _ = stream.write_all(b"late");
        // Until the gateway closes the connection.
        let _ = stream.read(&mut [0]);
    });
    let timeouts =
        "upstream_timeouts: {read: 500ms, write: 500ms}\nlimits: {body_timeout: 500ms, stream_idle_timeout: 4s}";
    let gateway = Gateway::start(&upstream, timeouts);
    let mut client = gateway.client();
    let begun = now();
    client.write(REQUESTS[2].1);
    assert_eq!(client.response("GET").unwrap().status, 101);
    client.until("late");
    assert!(client.is_closed());
    let took = begun.elapsed();
    // Four seconds after the last bytes.
    assert!((Duration::from_millis(4800)..Duration::from_secs(10)).contains(&took), "{took:?}");
}

#[test]
fn the_head_of_a_response_has_to_be_complete_in_time_however_it_trickles() {
    let upstream = Upstream::answering(|_, stream| {
        for byte in b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n" {
            if stream.write_all(&[*byte]).is_err() {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    });
    let gateway = Gateway::start(&upstream, "upstream_timeouts: {read: 500ms}");
    let late = Lateness::measure();
    let start = now();
    assert_eq!(gateway.client().get("/", &[]).status, 504);
    assert!(start.elapsed() < Duration::from_secs(2) + late.of_a_request(), "{:?}", start.elapsed());
}
