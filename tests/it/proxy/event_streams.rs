//! Pauses of event streams, over every pair of protocols.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::thread::{scope, sleep};
use std::time::Duration;

use bytes::Bytes;
use http::Response;

use crate::support::http2::Http2Client;
use crate::support::{Gateway, Upstream, http2_upstream, now};

/// The pause between the events of the upstreams. It is longer than `read` and shorter than `stream_idle_timeout`.
const PAUSE: Duration = Duration::from_millis(2500);

/// Returns the type of the response to a path.
fn content_type(path: &str) -> &'static str {
    if path.ends_with("/events") { "Text/Event-Stream; charset=utf-8" } else { "text/plain" }
}

/// Starts an upstream of HTTP/1.1 that sends two events, with a pause before the second, and then nothing more. The stream is in
/// chunks, or ends with the connection.
fn http1() -> Upstream {
    Upstream::answering(|request, stream| {
        let path = request.line.split(' ').nth(1).unwrap();
        let head = format!("HTTP/1.1 200 OK\r\nContent-Type: {}\r\n", content_type(path));
        let events = match path.starts_with("/1") {
            true => ["Transfer-Encoding: chunked\r\n\r\nb\r\ndata: one\n\n\r\n", "b\r\ndata: two\n\n\r\n"],
            false => ["Connection: close\r\n\r\ndata: one\n\n", "data: two\n\n"],
        };
        let _ = stream.write_all((head + events[0]).as_bytes());
        sleep(PAUSE);
        let _ = stream.write_all(events[1].as_bytes());
        // Until the gateway closes the connection.
        let _ = stream.read(&mut [0]);
    })
}

fn http2() -> SocketAddr {
    http2_upstream::serve(
        h2::server::Builder::new(),
        || (),
        |request, mut respond| async move {
            let response = Response::builder().header("content-type", content_type(request.uri().path()));
            let mut stream = respond.send_response(response.body(()).unwrap(), false)?;
            stream.send_data(Bytes::from_static(b"data: one\n\n"), false)?;
            tokio::time::sleep(PAUSE).await;
            stream.send_data(Bytes::from_static(b"data: two\n\n"), false)?;
            std::future::pending::<()>().await;
            Ok(())
        },
    )
}

/// Returns what arrives until the stream is cut.
fn over_http1(gateway: &Gateway, target: &str) -> String {
    let mut stream = std::net::TcpStream::connect(gateway.http).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    write!(stream, "GET {target} HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    String::from_utf8(bytes).unwrap()
}

fn over_http2(gateway: &Gateway, target: &str) -> String {
    let mut client = Http2Client::connect(gateway.http);
    let mut streaming = client.begin("GET", target, &[], true).streaming().unwrap();
    let mut bytes = Vec::new();
    while let Ok(part) = streaming.part() {
        assert!(!part.is_empty(), "the stream has ended");
        bytes.extend(part);
    }
    String::from_utf8(bytes).unwrap()
}

#[test]
fn an_event_stream_may_pause_for_longer_than_another_response() {
    let (one, two) = (http1(), http2());
    let gateway = Gateway::before_url("")
        .with(&format!(
            "listeners: [{{address: 127.0.0.1:0, protocols: [h2c, http/1.1]}}]\n\
             upstreams: {{http1: {{endpoints: [\"http://{}\"]}}, http2: {{endpoints: [\"http://{two}\"], protocol: h2c}}}}\n\
             upstream_timeouts: {{first_byte: 10s, read: 1s}}\n\
             limits: {{stream_idle_timeout: 5s}}\n\
             routes: [{{name: http2, match: {{path: /2/*}}, upstream: http2}}, {{name: http1, upstream: http1}}]\n",
            one.address
        ))
        .start();
    scope(|scope| {
        for target in ["/1/events", "/close/events", "/2/events", "/1/text", "/close/text", "/2/text"] {
            for ask in [over_http1, over_http2] {
                let gateway = &gateway;
                scope.spawn(move || {
                    let began = now();
                    let bytes = ask(gateway, target);
                    let took = began.elapsed();
                    let found = ["data: one", "data: two"].map(|event| bytes.contains(event));
                    let (expected, within) = match target.ends_with("/events") {
                        // Five seconds after the second event.
                        true => ([true, true], Duration::from_millis(7400)..Duration::from_secs(14)),
                        false => ([true, false], Duration::from_millis(950)..PAUSE),
                    };
                    assert_eq!(found, expected, "{target} {bytes}");
                    assert!(within.contains(&took), "{target} {took:?}");
                });
            }
        }
    });
    gateway.expect("tollgate_upstream_errors_total", &["\"read_timeout\""], 12.0);
    gateway.expect("tollgate_upstream_errors_total", &[], 12.0);
}
