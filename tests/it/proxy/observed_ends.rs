//! Every way in which a response ends is shown to its observer once.

use std::io::Write;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use bytes::Bytes;
use h2::server::SendResponse;
use http::{Request, Response};

use super::observed_responses::{Protocol, answering_heads, gateway_before};
use crate::support::http2::{Http2Client, Http2Request, Http2Streaming};
use crate::support::websocket::{SWITCHED, UPGRADE};
use crate::support::{Client, Gateway, Upstream, http2_upstream, observed_response};

/// Answers by the path. What follows the path's first word is how the response ends.
fn answer_http1(path: &str, stream: &mut TcpStream) {
    let half = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n";
    let mut write = |bytes: &[u8]| drop(stream.write_all(bytes));
    match path {
        "/unanswered/closed" => {}
        "/cut/closed" => write(half),
        "/cut/length" => write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"),
        "/cut/invalid" => write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n"),
        "/cut/stalled" | "/brief/cut" => return write(half),
        "/unanswered/stalled" | "/brief/unanswered" => return,
        "/unanswered/invalid" => write(b"HTTP/1.1 200 OK\r\nNo colon\r\n\r\n"),
        "/unanswered/upgrade" => write(SWITCHED.as_bytes()),
        _ => write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"),
    }
    let _ = stream.shutdown(Shutdown::Write);
}

async fn answer_http2(request: Request<h2::RecvStream>, mut respond: SendResponse<Bytes>) -> Result<(), h2::Error> {
    let path = request.uri().path();
    if path == "/unanswered/closed" {
        respond.send_reset(h2::Reason::INTERNAL_ERROR);
        return Ok(());
    }
    if path.ends_with("/unanswered") || path == "/unanswered/stalled" {
        return std::future::pending().await;
    }
    let mut stream = respond.send_response(Response::new(()), false)?;
    stream.send_data(Bytes::from_static(b"half"), !path.contains("/cut"))?;
    if path.ends_with("/cut") || path == "/cut/stalled" {
        return std::future::pending().await;
    }
    // The reset would overtake the data.
    tokio::time::sleep(Duration::from_millis(50)).await;
    stream.send_reset(h2::Reason::INTERNAL_ERROR);
    Ok(())
}

/// Starts an upstream. It sends a message for each request, before it answers.
fn upstream(protocol: Protocol) -> (SocketAddr, Receiver<()>) {
    let (begins, begun) = channel();
    let address = match protocol {
        Protocol::Http2 => http2_upstream::serve(
            h2::server::Builder::new(),
            || {},
            move |request, respond| {
                let _ = begins.send(());
                answer_http2(request, respond)
            },
        ),
        _ => answering_heads(move |path, stream| {
            let _ = begins.send(());
            answer_http1(path, stream);
        }),
    };
    (address, begun)
}

const PROTOCOLS: [Protocol; 2] = [Protocol::Http11, Protocol::Http2];

/// A request that has been sent.
enum Running {
    Http1(Client),
    Http2(Http2Client, Http2Request),
}

impl Running {
    /// Sends a request that is never repeated.
    fn begin(client: Protocol, gateway: &Gateway, path: &str, id: &str) -> Running {
        if client == Protocol::Http2 {
            let mut client = Http2Client::connect(gateway.http);
            let request = client.begin("POST", path, &[("x-request-id", id)], true);
            return Running::Http2(client, request);
        }
        let mut client = gateway.client();
        client
            .write(&format!("POST {path} HTTP/1.1\r\nHost: a.test\r\nX-Request-Id: {id}\r\nContent-Length: 0\r\n\r\n"));
        Running::Http1(client)
    }

    /// Returns the status of the response. `None` if the response is not complete.
    fn status(self) -> Option<u16> {
        match self {
            Running::Http1(mut client) => client.response("POST").ok().map(|response| response.status),
            Running::Http2(_client, request) => request.response().ok().map(|response| response.status),
        }
    }

    /// Waits for the first part of the response's body.
    fn body(self) -> Body {
        match self {
            Running::Http1(mut client) => {
                client.first_bytes();
                Body::Http1(client)
            }
            Running::Http2(client, request) => {
                let mut response = request.streaming().unwrap();
                assert_eq!(response.part().unwrap(), b"half");
                Body::Http2(client, response)
            }
        }
    }
}

/// A response of which a part has arrived. Dropping it closes the connection.
enum Body {
    Http1(Client),
    Http2(Http2Client, Http2Streaming),
}

impl Body {
    fn ends_early(self) -> bool {
        match self {
            Body::Http1(mut client) => client.response("POST").is_err(),
            Body::Http2(_client, mut response) => response.rest().is_err(),
        }
    }
}

/// The request with this id ended in this way, and this is a part of the fault that ended it.
#[track_caller]
fn expect_end(gateway: &Gateway, id: &str, calls: &str, end: &str, fault: &str) {
    let observed = observed_response(gateway, id);
    assert_eq!((&*observed.calls, &*observed.end), (calls, end), "{observed:?}");
    assert!(observed.fault.contains(fault) && fault.is_empty() == (observed.fault == "None"), "{observed:?}");
    if calls == "head data end" {
        observed.expect_body(b"half");
    }
}

#[test]
fn an_upstream_that_fails_ends_its_response() {
    for protocol in PROTOCOLS {
        let gateway = gateway_before(upstream(protocol).0, protocol).start();
        for client in PROTOCOLS {
            for (path, status, calls, fault) in [
                ("/cut/closed", None, "head data end", "Closed"),
                ("/cut/length", None, "head data end", "Closed"),
                ("/cut/invalid", None, "head end", "InvalidAnswer"),
                ("/brief/cut", None, "head data end", "ReadTimeout"),
                ("/unanswered/closed", Some(502), "end", "Closed"),
                ("/brief/unanswered", Some(504), "end", "ReadTimeout"),
                ("/unanswered/invalid", Some(502), "end", "InvalidAnswer"),
                ("/unanswered/upgrade", Some(502), "end", "InvalidAnswer"),
            ] {
                let of_http1 = ["/cut/length", "/cut/invalid", "/unanswered/invalid", "/unanswered/upgrade"];
                if protocol == Protocol::Http2 && of_http1.contains(&path) {
                    continue;
                }
                let id = format!("{client:?}{}", path.replace('/', "-"));
                assert_eq!(Running::begin(client, &gateway, path, &id).status(), status, "{protocol:?} {id}");
                let end = if path.contains("/cut") { "cut" } else { "unanswered" };
                expect_end(&gateway, &id, calls, end, fault);
            }
        }
    }
}

#[test]
fn a_client_that_leaves_ends_the_response() {
    for protocol in PROTOCOLS {
        let (upstream, begun) = upstream(protocol);
        let gateway = gateway_before(upstream, protocol).start();
        for client in PROTOCOLS {
            let id = format!("{client:?}-body");
            drop(Running::begin(client, &gateway, "/cut/stalled", &id).body());
            begun.recv().unwrap();
            expect_end(&gateway, &id, "head data end", "cut", "Client(Gone)");
            let id = format!("{client:?}-head");
            let running = Running::begin(client, &gateway, "/unanswered/stalled", &id);
            begun.recv().unwrap();
            drop(running);
            expect_end(&gateway, &id, "end", "unanswered", "Client(Gone)");
        }
    }
}

#[test]
fn the_end_of_a_drain_ends_the_response() {
    for protocol in PROTOCOLS {
        for client in PROTOCOLS {
            let drain = "drain: {timeout: 300ms}\n";
            let mut gateway = gateway_before(upstream(protocol).0, protocol).with(drain).start();
            let body = Running::begin(client, &gateway, "/cut/stalled", "cut").body();
            gateway.drain();
            assert!(body.ends_early());
            gateway.wait();
            expect_end(&gateway, "cut", "head data end", "cut", "Client(Cut)");
        }
    }
}

#[test]
fn a_response_of_the_gateway_is_none_of_an_upstream() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let upstream = Upstream::start();
    let gateway = Gateway::before_url("").record_responses().with(&format!(
        "listeners: [{{address: 127.0.0.1:0, protocols: [h2c, http/1.1]}}]\n\
         upstreams: {{api: {{endpoints: [\"http://{}\"]}}, down: {{endpoints: [\"http://{free}\"]}}}}\n\
         routes:\n\
         \x20 - {{name: down, match: {{path: /down}}, upstream: down}}\n\
         \x20 - {{name: fixed, match: {{path: /fixed}}, respond: {{status: 200, body: here}}}}\n\
         \x20 - {{name: all, upstream: api}}\n\
         rules: [{{name: none, match: {{path: /denied}}, action: deny}}]\n",
        upstream.address
    ));
    let gateway = gateway.start();
    for client in PROTOCOLS {
        for (path, status, fault) in [("/down", 502, "Connect"), ("/fixed", 200, ""), ("/denied", 403, "")] {
            let id = format!("{client:?}{}", path.replace('/', "-"));
            assert_eq!(Running::begin(client, &gateway, path, &id).status(), Some(status), "{id}");
            expect_end(&gateway, &id, "end", "not sent", fault);
        }
    }
}

#[test]
fn an_attempt_that_is_followed_by_another_is_not_shown() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let working = Upstream::start();
    let endpoints = format!("[\"http://{free}\", \"http://{}\"]", working.address);
    let gateway = Gateway::before_url("").record_responses().with(&format!(
        "upstreams: {{api: {{endpoints: {endpoints}, ejection: false, retries: {{budget: 100%}}}}}}\n\
         routes: [{{name: all, upstream: api}}]\n"
    ));
    let gateway = gateway.start();
    let mut client = gateway.client();
    for number in 0..6 {
        let id = format!("retried-{number}");
        assert_eq!(client.get("/", &[("X-Request-Id", &id)]).status, 200);
        let observed = observed_response(&gateway, &id);
        observed.expect_body(b"ok");
        assert_eq!((&*observed.calls, &*observed.end), ("head data end", "whole"), "{observed:?}");
    }
    assert!(gateway.metric("tollgate_upstream_retries_total", &[]) >= 1.0);
}

/// The upstream has answered on the connection before, then closes it without an answer when the next request arrives.
#[test]
fn a_request_that_is_repeated_on_a_new_connection_is_shown_once() {
    let upstream = Upstream::answering(move |request, stream| match request.line.contains("/first") {
        false if request.connection == 0 => drop(stream.shutdown(Shutdown::Both)),
        _ => drop(stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")),
    });
    let gateway = gateway_before(upstream.address, Protocol::Http11).start();
    for client in PROTOCOLS {
        let id = format!("{client:?}");
        let status = match client {
            Protocol::Http2 => Http2Client::connect(gateway.http).get("/second", &[("x-request-id", &id)]).status,
            _ => {
                let mut client = gateway.client();
                assert_eq!(client.get("/first", &[]).status, 200);
                client.get("/second", &[("X-Request-Id", &id)]).status
            }
        };
        assert_eq!(status, 200);
        let observed = observed_response(&gateway, &id);
        observed.expect_body(b"ok");
        assert_eq!((&*observed.calls, &*observed.end), ("head data end", "whole"), "{observed:?}");
    }
    gateway.expect("tollgate_upstream_retries_total", &[], 1.0);
}

#[test]
fn a_tunnel_that_the_drain_cuts_has_ended_with_its_head() {
    let upstream = answering_heads(|_, stream| drop(stream.write_all(SWITCHED.as_bytes())));
    let gateway = gateway_before(upstream, Protocol::Http11).with("drain: {timeout: 300ms}\n").start();
    let mut client = gateway.client();
    let fields = [&UPGRADE[..], &[("X-Request-Id", "tunnel")]].concat();
    assert_eq!(client.get("/socket", &fields).status, 101);
    gateway.drain();
    assert!(client.is_closed());
    expect_end(&gateway, "tunnel", "head end", "whole", "");
}

/// A panic of the task of a request, after the decision.
#[test]
fn a_panic_ends_the_observation() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream).record_responses().variable("TOLLGATE_STUMBLE", "decided/stumble").start();
    let mut client = gateway.client();
    client.write("GET /stumble HTTP/1.1\r\nHost: a.test\r\nX-Request-Id: panic\r\n\r\n");
    assert!(client.response("GET").is_err());
    expect_end(&gateway, "panic", "end", "not sent", "");
}
