//! Every pair of protocols: clients of HTTP/1.1 and HTTP/2, each with upstreams of both.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};

use crate::support::Gateway;
use crate::support::http2::Http2Client;
use crate::support::http2_upstream;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Http1,
    Http2,
}

/// The requests that an upstream has read completely: fields, length of the body, and trailers of each.
type Seen = Arc<Mutex<Vec<(String, usize, String)>>>;

/// Calls `check` with a gateway and an upstream of each protocol, for a client of each protocol.
fn each_pair(check: impl Fn(Protocol, &Gateway, &Seen)) {
    for upstream in [Protocol::Http1, Protocol::Http2] {
        let seen = Seen::default();
        let (address, name) = match upstream {
            Protocol::Http1 => (http1_upstream(&seen), "http/1.1"),
            Protocol::Http2 => (http2_upstream(&seen), "h2c"),
        };
        let gateway = Gateway::before_url("")
            .with(&format!(
                "listeners: [{{address: 127.0.0.1:0, protocols: [h2c, http/1.1]}}]\n\
                 upstreams: {{api: {{endpoints: [\"http://{address}\"], protocol: {name}}}}}\n\
                 routes: [{{name: all, upstream: api, request_headers: {{set: {{X-Tenant: ours}}}}}}]\n"
            ))
            .start();
        for client in [Protocol::Http1, Protocol::Http2] {
            check(client, &gateway, &seen);
        }
    }
}

/// Starts an upstream that answers by the path: `/interim` with a 103 before the response, `/early` before the body is
/// complete, `/cut` with half of a response, `/echo` with the bytes that arrive, at once, and everything else with trailers.
fn http1_upstream(seen: &Seen) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let seen = Arc::clone(seen);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let seen = Arc::clone(&seen);
            std::thread::spawn(move || while serve_http1(stream.as_ref().unwrap(), &seen).is_some() {});
        }
    });
    address
}

fn serve_http1(mut stream: &TcpStream, seen: &Seen) -> Option<()> {
    stream.set_nodelay(true).unwrap();
    let mut reader = BufReader::with_capacity(1, stream);
    let head = read_lines(&mut reader)?;
    let path = head.split(' ').nth(1)?.to_owned();
    match &*path {
        "/early" => {
            stream.write_all(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno").ok()?;
            let _ = stream.read(&mut [0; 1024]);
            return None;
        }
        "/cut" => {
            stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n").ok()?;
            return None;
        }
        "/interim" => stream.write_all(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n").ok()?,
        "/echo" => stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").ok()?,
        _ => {}
    }
    let (mut length, mut trailers) = (0, String::new());
    if head.to_lowercase().contains("transfer-encoding: chunked") {
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).ok()?;
            let size = usize::from_str_radix(line.trim(), 16).ok()?;
            if size == 0 {
                break;
            }
            let mut chunk = vec![0; size + 2];
            reader.read_exact(&mut chunk).ok()?;
            if path == "/echo" {
                stream.write_all(&[format!("{size:x}\r\n").as_bytes(), &chunk].concat()).ok()?;
            }
            length += size;
        }
        trailers = read_lines(&mut reader)?;
    }
    seen.lock().unwrap().push((head, length, trailers));
    let head = if path == "/echo" { "" } else { "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n" };
    stream.write_all(format!("{head}0\r\nX-Sum: 1\r\nSet-Cookie: a=b\r\n\r\n").as_bytes()).ok()
}

/// Reads lines up to an empty one.
fn read_lines(reader: &mut impl BufRead) -> Option<String> {
    let mut lines = String::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        if line == "\r\n" {
            return Some(lines);
        }
        lines += &line;
    }
}

/// Starts an upstream that answers in the same way over HTTP/2.
fn http2_upstream(seen: &Seen) -> SocketAddr {
    let seen = Arc::clone(seen);
    let answer = move |request, respond| {
        let seen = Arc::clone(&seen);
        async move { serve_http2(request, respond, &seen).await }
    };
    http2_upstream::serve(h2::server::Builder::new(), || {}, answer)
}

async fn serve_http2(
    request: Request<h2::RecvStream>,
    mut respond: h2::server::SendResponse<Bytes>,
    seen: &Seen,
) -> Result<(), h2::Error> {
    let (head, mut body) = request.into_parts();
    let ok = Response::new(());
    let mut stream = match head.uri.path() {
        "/early" => {
            let forbidden = Response::builder().status(403).header("content-length", "2").body(()).unwrap();
            respond.send_response(forbidden, false)?.send_data(Bytes::from_static(b"no"), true)?;
            return Ok(());
        }
        "/cut" => {
            let mut stream = respond.send_response(ok, false)?;
            stream.send_data(Bytes::from_static(b"half"), false)?;
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            stream.send_reset(h2::Reason::INTERNAL_ERROR);
            return Ok(());
        }
        "/echo" => Some(respond.send_response(Response::new(()), false)?),
        "/interim" => {
            let interim = Response::builder().status(103).header("link", "</a>").body(()).unwrap();
            respond.send_informational(interim)?;
            None
        }
        _ => None,
    };
    let mut length = 0;
    while let Some(part) = body.data().await {
        let part = part?;
        body.flow_control().release_capacity(part.len())?;
        length += part.len();
        if let Some(stream) = &mut stream {
            stream.send_data(part, false)?;
        }
    }
    let trailers = body.trailers().await?.unwrap_or_default();
    let text = |fields: &HeaderMap| -> String {
        fields.iter().map(|(name, value)| format!("{name}: {}\r\n", value.to_str().unwrap())).collect()
    };
    let line = format!("{} {} {:?}\r\n", head.method, head.uri, head.version);
    seen.lock().unwrap().push((line + &text(&head.headers), length, text(&trailers)));
    let mut stream = match stream {
        Some(stream) => stream,
        None => {
            let mut stream = respond.send_response(ok, false)?;
            stream.send_data(Bytes::from_static(b"ok"), false)?;
            stream
        }
    };
    let mut trailers = HeaderMap::new();
    trailers.insert("x-sum", HeaderValue::from_static("1"));
    trailers.insert("set-cookie", HeaderValue::from_static("a=b"));
    stream.send_trailers(trailers)
}

/// Encodes a message as a chunk, this many times.
fn chunks(message: &[u8], count: usize) -> String {
    format!("{:x}\r\n{}\r\n", message.len(), String::from_utf8_lossy(message)).repeat(count)
}

#[test]
fn trailers_pass_both_ways_but_for_those_that_belong_into_a_head() {
    each_pair(|protocol, gateway, seen| {
        match protocol {
            Protocol::Http1 => {
                let mut client = gateway.client();
                client.write(&format!(
                    "POST /trailers HTTP/1.1\r\nHost: a.test\r\nConnection: TE\r\nTE: trailers\r\n\
                     Transfer-Encoding: chunked\r\n\r\n{}0\r\nX-Digest: 2\r\nX-Forwarded-For: 1.2.3.4\r\nX_Tenant: other\r\n\
                     Authorization: x\r\n\r\n",
                    chunks(b"hi", 1)
                ));
                let response = client.response("POST").unwrap();
                assert_eq!((response.status, &*response.body), (200, "ok"));
                let trailers: Vec<_> =
                    response.trailers.iter().map(|(name, value)| (name.to_lowercase(), &**value)).collect();
                assert_eq!(trailers, [("x-sum".to_owned(), "1")]);
            }
            Protocol::Http2 => {
                let mut client = Http2Client::connect(gateway.http);
                let mut request = client.begin("POST", "/trailers", &[("te", "trailers")], false);
                request.write(b"hi", false).unwrap();
                let sent =
                    [("x-digest", "2"), ("x-forwarded-for", "1.2.3.4"), ("x_tenant", "other"), ("authorization", "x")];
                let fields = sent.map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
                request.end_with(HeaderMap::from_iter(fields));
                let response = request.response().unwrap();
                assert_eq!((response.status, response.text()), (200, "ok".to_owned()));
                let trailers = response.trailers.unwrap();
                assert_eq!((trailers.len(), &trailers["x-sum"]), (1, &HeaderValue::from_static("1")));
            }
        }
        let (head, length, trailers) = seen.lock().unwrap().last().unwrap().clone();
        assert_eq!((length, &*trailers.to_lowercase()), (2, "x-digest: 2\r\n"), "{head}");
        assert!(head.to_lowercase().contains("te: trailers\r\n"), "{head}");
        assert!(head.to_lowercase().contains("x-tenant: ours\r\n"), "{head}");
    });
}

#[test]
fn interim_responses_pass() {
    each_pair(|protocol, gateway, _| match protocol {
        Protocol::Http1 => {
            let mut client = gateway.client();
            client.write("GET /interim HTTP/1.1\r\nHost: a.test\r\n\r\n");
            let interim = client.until("\r\n\r\n").to_lowercase();
            assert!(interim.starts_with("http/1.1 103 early hints\r\nlink: </a>\r\n\r\n"), "{interim}");
        }
        Protocol::Http2 => {
            let mut client = Http2Client::connect(gateway.http);
            let mut request = client.begin("GET", "/interim", &[], true);
            let interim = request.interim().unwrap();
            assert_eq!(
                (interim.status().as_u16(), &interim.headers()["link"]),
                (103, &HeaderValue::from_static("</a>"))
            );
            assert_eq!(request.response().unwrap().text(), "ok");
        }
    });
}

#[test]
fn an_answer_to_half_an_upload_passes_at_once() {
    each_pair(|protocol, gateway, _| match protocol {
        Protocol::Http1 => {
            let mut client = gateway.client();
            client.write("POST /early HTTP/1.1\r\nHost: a.test\r\nContent-Length: 1000000\r\n\r\nhalf");
            let response = client.response("POST").unwrap();
            assert_eq!((response.status, &*response.body), (403, "no"));
            assert_eq!(response.field("connection").as_deref(), Some("close"));
            assert!(client.is_closed());
        }
        Protocol::Http2 => {
            let mut client = Http2Client::connect(gateway.http);
            let mut request = client.begin("POST", "/early", &[("content-length", "1000000")], false);
            request.write(b"half", false).unwrap();
            let response = request.response().unwrap();
            assert_eq!((response.status, response.text()), (403, "no".to_owned()));
            assert_eq!(client.get("/", &[]).status, 200);
        }
    });
}

#[test]
fn a_response_that_ends_early_never_looks_whole() {
    each_pair(|protocol, gateway, _| match protocol {
        Protocol::Http1 => {
            let mut client = gateway.client();
            client.write("GET /cut HTTP/1.1\r\nHost: a.test\r\n\r\n");
            let error = client.response("GET").unwrap_err();
            assert!(
                matches!(error.kind(), std::io::ErrorKind::UnexpectedEof | std::io::ErrorKind::ConnectionReset),
                "{error}"
            );
            // To a client of HTTP/1.0, the end of the connection would be that of the body.
            let mut client = TcpStream::connect(gateway.http).unwrap();
            client.write_all(b"GET /cut HTTP/1.0\r\nHost: a.test\r\n\r\n").unwrap();
            let mut read = Vec::new();
            let error = client.read_to_end(&mut read).unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
        }
        Protocol::Http2 => {
            let mut client = Http2Client::connect(gateway.http);
            let error = client.begin("GET", "/cut", &[], true).response().unwrap_err();
            assert!(error.is_reset(), "{error}");
            assert_eq!(client.get("/", &[]).status, 200);
        }
    });
}

#[test]
fn ten_thousand_messages_pass_both_ways_as_they_come() {
    const MESSAGES: usize = 10_000;
    const MESSAGE: &[u8] = b"message!";
    each_pair(|protocol, gateway, seen| {
        match protocol {
            Protocol::Http1 => {
                let mut client = gateway.client();
                client.write("POST /echo HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n");
                client.write(&chunks(MESSAGE, 1));
                // It is answered before the next one is sent.
                assert!(client.first_bytes().ends_with("message!\r\n"));
                let mut writer = client.writer();
                let writing = std::thread::spawn(move || {
                    writer.write_all((chunks(MESSAGE, MESSAGES - 1) + "0\r\n\r\n").as_bytes()).unwrap();
                });
                let response = client.response("POST").unwrap();
                writing.join().unwrap();
                assert!(response.body.as_bytes() == MESSAGE.repeat(MESSAGES));
            }
            Protocol::Http2 => {
                let mut client = Http2Client::connect(gateway.http);
                let call = [("te", "trailers"), ("content-type", "application/grpc")];
                let mut request = client.begin("POST", "/echo", &call, false);
                request.write(MESSAGE, false).unwrap();
                let mut response = request.streaming().unwrap();
                assert_eq!(response.part().unwrap(), MESSAGE);
                for _ in 1..MESSAGES {
                    response.write_ahead(MESSAGE, false);
                }
                response.write(b"", true).unwrap();
                assert!(response.rest().unwrap() == MESSAGE.repeat(MESSAGES - 1));
            }
        }
        assert_eq!(seen.lock().unwrap().last().unwrap().1, MESSAGES * MESSAGE.len());
    });
}
