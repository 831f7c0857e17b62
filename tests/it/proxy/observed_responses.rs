//! Every byte of an upstream's response is shown to its observer as it passes, between every pair of protocols.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

use bytes::Bytes;
use h2::server::SendResponse;
use http::{HeaderMap, HeaderValue, Request, Response};
use tokio::sync::Mutex;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::support::http2::Http2Client;
use crate::support::websocket::{SWITCHED, UPGRADE};
use crate::support::{Client, Gateway, GatewayBuilder, ObservedResponse, Upstream, http2_upstream, observed_response};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Http10,
    Http11,
    Http2,
}

/// How an upstream marks the end of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Length,
    Trailers,
    Close,
    /// The response has no body.
    Head,
}

/// A response of an upstream, in the same parts for both protocols.
struct Reply {
    status: u16,
    end: End,
    parts: Vec<Vec<u8>>,
}

impl Reply {
    fn to(path: &str) -> Reply {
        let parts = |sizes: &[usize]| -> Vec<Vec<u8>> {
            let part =
                |size: &usize| (0..*size).map(|at| b'a' + u8::try_from((at * at + size) % 23).unwrap()).collect();
            sizes.iter().map(part).collect()
        };
        let many: Vec<usize> = (1..40).map(|number| number * number * 29).collect();
        let (status, end, parts) = match path {
            "/length" | "/interim" => (200, End::Length, parts(&[1, 70_000, 8192, 130_001])),
            "/short" => (200, End::Length, parts(&[5])),
            "/trailers" => (200, End::Trailers, parts(&many)),
            "/close" => (200, End::Close, parts(&many)),
            "/empty" => (404, End::Length, Vec::new()),
            "/no-parts" => (200, End::Trailers, Vec::new()),
            "/204" => (204, End::Head, Vec::new()),
            "/304" => (304, End::Head, Vec::new()),
            "/503" => (503, End::Length, parts(&[12])),
            _ => panic!("{path}"),
        };
        Reply { status, end, parts }
    }

    fn body(&self) -> Vec<u8> {
        self.parts.concat()
    }
}

fn answer_http1(line: &str, stream: &mut TcpStream) -> std::io::Result<()> {
    let mut words = line.split(' ');
    let (method, path) = (words.next().unwrap(), words.next().unwrap());
    let reply = Reply::to(path);
    if path == "/interim" {
        stream.write_all(b"HTTP/1.1 103 Early Hints\r\nX-Cost: 103\r\n\r\n")?;
    }
    let framing = match reply.end {
        End::Length => format!("Content-Length: {}\r\n", reply.body().len()),
        End::Trailers => "Transfer-Encoding: chunked\r\n".to_owned(),
        End::Close => "Connection: close\r\n".to_owned(),
        End::Head => String::new(),
    };
    let head = format!("HTTP/1.1 {} Reason\r\nX-Cost: 7\r\nX-Tollgate-Own: a\r\n{framing}\r\n", reply.status);
    stream.write_all(head.as_bytes())?;
    if method == "HEAD" {
        return Ok(());
    }
    for part in &reply.parts {
        match reply.end {
            End::Trailers => {
                stream.write_all(&[format!("{:x};x=y\r\n", part.len()).as_bytes(), part, b"\r\n"].concat())?;
            }
            _ => stream.write_all(part)?,
        }
    }
    match reply.end {
        End::Trailers => stream.write_all(b"0\r\nX-Sum: 1\r\nSet-Cookie: a=b\r\n\r\n"),
        End::Close => stream.shutdown(std::net::Shutdown::Both),
        End::Length | End::Head => Ok(()),
    }
}

async fn answer_http2(request: Request<h2::RecvStream>, mut respond: SendResponse<Bytes>) -> Result<(), h2::Error> {
    let path = request.uri().path();
    let reply = Reply::to(path);
    if path == "/interim" {
        respond.send_informational(Response::builder().status(103).header("x-cost", "103").body(()).unwrap())?;
    }
    let mut head = Response::builder().status(reply.status).header("x-cost", "7").header("x-tollgate-own", "a");
    if reply.end == End::Length {
        head = head.header("content-length", reply.body().len());
    }
    let ends = request.method() == "HEAD" || reply.end == End::Head;
    let mut stream = respond.send_response(head.body(()).unwrap(), ends)?;
    if ends {
        return Ok(());
    }
    for part in reply.parts {
        stream.send_data(part.into(), false)?;
    }
    if reply.end != End::Trailers {
        return stream.send_data(Bytes::new(), true);
    }
    stream.send_trailers(trailers())
}

fn trailers() -> HeaderMap {
    let mut trailers = HeaderMap::new();
    trailers.insert("x-sum", HeaderValue::from_static("1"));
    trailers.insert("set-cookie", HeaderValue::from_static("a=b"));
    trailers
}

/// Prepares a gateway that records responses, with an upstream of this protocol. Below `/brief/` it waits 400 ms for the upstream.
pub(super) fn gateway_before(address: SocketAddr, upstream: Protocol) -> GatewayBuilder {
    let protocol = if upstream == Protocol::Http2 { "h2c" } else { "http/1.1" };
    let text = format!(
        "listeners: [{{address: 127.0.0.1:0, protocols: [h2c, http/1.1]}}]\n\
         upstreams: {{api: {{endpoints: [\"http://{address}\"], protocol: {protocol}}}}}\n\
         routes:\n\
         \x20 - {{name: brief, match: {{path: /brief/*}}, upstream: api, timeouts: {{read: 400ms}}}}\n\
         \x20 - {{name: all, upstream: api}}\n"
    );
    Gateway::before_url("").with(&text).record_responses()
}

/// Starts an upstream that calls `answer` with the path of a request as soon as it has read the head. Then it reads until the
/// other side closes the connection.
pub(super) fn answering_heads(answer: impl Fn(&str, &mut TcpStream) + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let answer = Arc::new(answer);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, answer) = (stream.unwrap(), Arc::clone(&answer));
            std::thread::spawn(move || {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    let mut byte = [0];
                    if !matches!(stream.read(&mut byte), Ok(1)) {
                        return;
                    }
                    head.extend(byte);
                }
                let head = String::from_utf8(head).unwrap();
                answer(head.split(' ').nth(1).unwrap(), &mut stream);
                let _ = std::io::copy(&mut stream, &mut std::io::sink());
            });
        }
    });
    address
}

/// Sends a request, and returns the status and the body of the response.
fn fetch(client: Protocol, gateway: &Gateway, method: &str, path: &str, id: &str) -> (u16, Vec<u8>) {
    match client {
        Protocol::Http2 => {
            let response = Http2Client::connect(gateway.http).send(method, path, &[("x-request-id", id)], &[]);
            (response.status, response.body)
        }
        Protocol::Http10 | Protocol::Http11 => {
            let version = if client == Protocol::Http10 { "1.0" } else { "1.1" };
            let mut client = gateway.client();
            client.write(&format!(
                "{method} {path} HTTP/{version}\r\nHost: a.test\r\nX-Request-Id: {id}\r\nConnection: TE\r\nTE: trailers\r\n\r\n"
            ));
            let response = client.response(method).unwrap();
            (response.status, response.body.into_bytes())
        }
    }
}

/// Calls `check` for a client of each protocol with a gateway before an upstream of each.
fn each_pair(check: impl Fn(Protocol, Protocol, &Gateway)) {
    for upstream in [Protocol::Http11, Protocol::Http2] {
        let address = match upstream {
            Protocol::Http2 => http2_upstream::serve(h2::server::Builder::new(), || {}, answer_http2),
            _ => Upstream::answering(|request, stream| drop(answer_http1(&request.line, stream))).address,
        };
        let gateway = gateway_before(address, upstream).start();
        for client in [Protocol::Http10, Protocol::Http11, Protocol::Http2] {
            check(client, upstream, &gateway);
        }
    }
}

/// Whether the upstream's own fields are shown, before those that the gateway removes.
#[track_caller]
fn expect_fields(observed: &ObservedResponse) {
    for field in ["x-cost: 7", "x-tollgate-own: a"] {
        assert!(observed.fields.iter().any(|shown| shown == field), "{field} in {observed:?}");
    }
    assert!(!observed.fields.iter().any(|field| field.contains("103")), "{observed:?}");
}

#[test]
fn an_observer_is_shown_the_bytes_that_the_client_gets() {
    each_pair(|client, upstream, gateway| {
        for path in ["/length", "/short", "/trailers", "/close", "/empty", "/no-parts", "/interim", "/503"] {
            let id = format!("{client:?}{}", path.replace('/', "-"));
            let reply = Reply::to(path);
            let (status, body) = fetch(client, gateway, "GET", path, &id);
            assert!((status, &body) == (reply.status, &reply.body()), "{client:?} {upstream:?} {path}: {status}");
            let observed = observed_response(gateway, &id);
            observed.expect_body(&body);
            expect_fields(&observed);
            let data = if body.is_empty() { "" } else { "data " };
            let trailers = if reply.end == End::Trailers { "trailers " } else { "" };
            assert_eq!(observed.calls, format!("head {data}{trailers}end"), "{upstream:?} {id}");
            assert_eq!((observed.status, &*observed.end, &*observed.fault), (status.into(), "whole", "None"), "{id}");
            let expected: &[&str] = if reply.end == End::Trailers { &["x-sum: 1", "set-cookie: a=b"] } else { &[] };
            assert_eq!(observed.trailers, expected, "{upstream:?} {id}");
        }
    });
}

#[test]
fn a_response_without_a_body_ends_with_its_head() {
    each_pair(|client, upstream, gateway| {
        for (method, path) in [("HEAD", "/length"), ("HEAD", "/trailers"), ("GET", "/204"), ("GET", "/304")] {
            let id = format!("{client:?}-{method}{}", path.replace('/', "-"));
            let (status, _) = fetch(client, gateway, method, path, &id);
            let observed = observed_response(gateway, &id);
            expect_fields(&observed);
            let shown = (&*observed.calls, observed.status, &*observed.end);
            assert_eq!(shown, ("head end", status.into(), "whole"), "{upstream:?} {id}");
        }
    });
}

/// A signal of a test to its upstream, which then sends the next part.
type NextPart = Arc<Mutex<UnboundedReceiver<()>>>;

/// Bytes that no head contains.
const STEPS: &[u8] = b"!#$%&@^~|<>{}";

/// Sends every byte of a response by itself, and each byte of its body only after the test has got the one before.
fn answer_in_steps(path: &str, stream: &mut TcpStream, next: &NextPart) -> std::io::Result<()> {
    let framing = match path {
        "/length" => format!("Content-Length: {}", STEPS.len()),
        "/chunks" => "Transfer-Encoding: chunked".to_owned(),
        _ => "Connection: close".to_owned(),
    };
    let mut write = |bytes: &[u8]| bytes.iter().try_for_each(|byte| stream.write_all(&[*byte]));
    write(format!("HTTP/1.1 200 OK\r\n{framing}\r\n\r\n").as_bytes())?;
    for byte in STEPS {
        if path == "/chunks" {
            write(b"01\r\n")?;
        }
        write(&[*byte])?;
        next.blocking_lock().blocking_recv();
        if path == "/chunks" {
            write(b"\r\n")?;
        }
    }
    if path == "/chunks" { write(b"0\r\n\r\n") } else { stream.shutdown(std::net::Shutdown::Both) }
}

async fn answer_in_steps_http2(mut respond: SendResponse<Bytes>, next: NextPart) -> Result<(), h2::Error> {
    let mut stream = respond.send_response(Response::new(()), false)?;
    for byte in STEPS {
        stream.send_data(Bytes::copy_from_slice(&[*byte]), false)?;
        next.lock().await.recv().await;
    }
    stream.send_data(Bytes::new(), true)
}

/// Gets a response byte by byte: the upstream sends one when the one before has arrived here.
fn fetch_in_steps(protocol: Protocol, gateway: &Gateway, path: &str, id: &str, next: &UnboundedSender<()>) {
    if protocol == Protocol::Http2 {
        let mut client = Http2Client::connect(gateway.http);
        let mut response = client.begin("GET", path, &[("x-request-id", id)], true).streaming().unwrap();
        for byte in STEPS {
            assert_eq!(response.part().unwrap(), [*byte]);
            next.send(()).unwrap();
        }
        assert_eq!(response.rest().unwrap(), b"");
        return;
    }
    let version = if protocol == Protocol::Http10 { "1.0" } else { "1.1" };
    let mut client = gateway.client();
    client.write(&format!("GET {path} HTTP/{version}\r\nHost: a.test\r\nX-Request-Id: {id}\r\n\r\n"));
    let mut read = String::new();
    for byte in STEPS {
        read += &client.until(std::str::from_utf8(&[*byte]).unwrap());
        next.send(()).unwrap();
    }
    if protocol == Protocol::Http10 {
        assert!(client.is_closed());
    } else if read.contains("chunked") {
        client.until("0\r\n\r\n");
    }
}

#[test]
fn observed_bytes_pass_as_soon_as_they_arrive() {
    for upstream in [Protocol::Http11, Protocol::Http2] {
        let (next, told) = unbounded_channel();
        let told: NextPart = Arc::new(Mutex::new(told));
        let address = match upstream {
            Protocol::Http2 => http2_upstream::serve(
                h2::server::Builder::new(),
                || {},
                move |_, respond| answer_in_steps_http2(respond, Arc::clone(&told)),
            ),
            _ => {
                let answer = move |line: &str, stream: &mut TcpStream| {
                    drop(answer_in_steps(line.split(' ').nth(1).unwrap(), stream, &told));
                };
                Upstream::answering(move |request, stream| answer(&request.line, stream)).address
            }
        };
        let gateway = gateway_before(address, upstream).start();
        for client in [Protocol::Http10, Protocol::Http11, Protocol::Http2] {
            for path in ["/length", "/chunks", "/close"] {
                let id = format!("{client:?}{}", path.replace('/', "-"));
                fetch_in_steps(client, &gateway, path, &id, &next);
                let observed = observed_response(&gateway, &id);
                observed.expect_body(STEPS);
                let shown = (&*observed.calls, observed.pieces, &*observed.end);
                assert_eq!(shown, ("head data end", STEPS.len() as u64, "whole"), "{upstream:?} {id}");
            }
        }
    }
}

#[test]
fn an_answer_to_half_an_upload_is_observed() {
    let upstream = answering_heads(|_, stream| {
        let _ = stream.write_all(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno");
    });
    let gateway = gateway_before(upstream, Protocol::Http11).start();
    let mut client = gateway.client();
    client.write("POST /early HTTP/1.1\r\nHost: a.test\r\nX-Request-Id: http1\r\nContent-Length: 1000000\r\n\r\nhalf");
    assert_eq!(client.response("POST").unwrap().status, 403);
    let fields = [("x-request-id", "http2"), ("content-length", "1000000")];
    let mut client = Http2Client::connect(gateway.http);
    let mut request = client.begin("POST", "/early", &fields, false);
    request.write(b"half", false).unwrap();
    assert_eq!(request.response().unwrap().status, 403);
    for id in ["http1", "http2"] {
        let observed = observed_response(&gateway, id);
        observed.expect_body(b"no");
        assert_eq!((observed.status, &*observed.end), (403, "whole"), "{observed:?}");
    }
}

#[test]
fn the_bytes_of_a_tunnel_are_no_response() {
    let upstream = Upstream::answering(|_, stream| {
        let _ = stream.write_all(&[SWITCHED.as_bytes(), b"tunnelled"].concat());
        let _ = stream.shutdown(std::net::Shutdown::Write);
    });
    let gateway = gateway_before(upstream.address, Protocol::Http11).start();
    let mut client: Client = gateway.client();
    let fields = [&UPGRADE[..], &[("X-Request-Id", "tunnel")]].concat();
    assert_eq!(client.get("/socket", &fields).status, 101);
    client.until("tunnelled");
    drop(client);
    let observed = observed_response(&gateway, "tunnel");
    let shown = (&*observed.calls, observed.status, observed.bytes, &*observed.end);
    assert_eq!(shown, ("head end", 101, 0, "whole"), "{observed:?}");
    assert!(observed.fields.iter().any(|field| field.starts_with("sec-websocket-accept:")), "{observed:?}");
}
