//! Upstreams that respond before they have read the request, send unsolicited responses, or do not read the request.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use socket2::{Domain, Socket, Type};

use crate::support::{Gateway, Lateness, Upstream, now};

/// The request lines that arrived.
type Lines = Arc<Mutex<Vec<String>>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AfterResponse {
    Closes,
    Continues,
}

/// Starts an upstream that responds `ok` to each head at once, and reads the body only afterwards.
fn early_upstream(then: AfterResponse) -> (SocketAddr, Lines) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, lines) = (listener.local_addr().unwrap(), Lines::default());
    let all = Arc::clone(&lines);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let all = Arc::clone(&all);
            std::thread::spawn(move || serve(stream.unwrap(), then, &all));
        }
    });
    (address, lines)
}

fn serve(mut stream: TcpStream, then: AfterResponse, lines: &Lines) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if !matches!(reader.read_line(&mut head), Ok(1..)) {
                return;
            }
        }
        lines.lock().unwrap().push(head.lines().next().unwrap().to_owned());
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        if then == AfterResponse::Closes {
            let _ = stream.shutdown(Shutdown::Write);
        }
        let length = head.to_ascii_lowercase();
        let length = length.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
        let mut body = vec![0; length.unwrap_or_default()];
        if reader.read_exact(&mut body).is_err() {
            return;
        }
    }
}

#[test]
fn the_rest_of_a_body_with_an_early_response_is_never_a_request() {
    let smuggled = b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n".repeat(140);
    let body = &smuggled[..4900];
    for then in [AfterResponse::Closes, AfterResponse::Continues] {
        let (address, lines) = early_upstream(then);
        let gateway = Gateway::before_url(&format!("http://{address}"))
            .with("upstream_timeouts: {read: 10s, write: 10s}")
            .start();
        let mut client = gateway.client();
        client.write(&format!("POST /first HTTP/1.1\r\nHost: a\r\nContent-Length: 5000\r\n\r\n{}", "x".repeat(100)));
        let early = client.response("POST").unwrap();
        assert_eq!((early.status, &*early.body), (200, "ok"), "{then:?}");
        // The connection may be closed by now, and the write fail.
        let _ = client.write_bytes(body);
        let _ = client.write_bytes(b"GET /next HTTP/1.1\r\nHost: a\r\n\r\n");
        if let Ok(next) = client.response("GET") {
            assert_eq!((next.status, &*next.body), (200, "ok"), "{then:?}");
        }
        assert_eq!(gateway.client().get("/other", &[]).body, "ok", "{then:?}");
        let lines = lines.lock().unwrap();
        let sent = ["POST /first HTTP/1.1", "GET /next HTTP/1.1", "GET /other HTTP/1.1"];
        assert!(lines.iter().all(|line| sent.contains(&&**line)), "{then:?}: {lines:?}");
        assert_eq!(
            (lines.first().map(String::as_str), lines.last().map(String::as_str)),
            (Some(sent[0]), Some(sent[2]))
        );
    }
}

#[test]
fn an_unsolicited_response_reaches_no_client() {
    let (sent, second) = mpsc::channel();
    let upstream = Upstream::answering(move |seen, stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ngood");
        if seen.line.contains("/twice") {
            std::thread::sleep(Duration::from_millis(30));
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nX-Smuggled: 1\r\n\r\nevil");
            let _ = sent.send(());
        }
    });
    let gateway = Gateway::start(&upstream, "");
    for _ in 0..5 {
        let mut client = gateway.client();
        assert_eq!(client.get("/twice", &[]).body, "good");
        // The connection is idle when the second response arrives.
        second.recv().unwrap();
        let next = client.get("/good", &[]);
        assert_eq!((next.status, &*next.body, next.field("x-smuggled")), (200, "good", None));
    }
}

#[test]
fn an_upstream_that_accepts_no_connection_is_a_504() {
    // The backlog has room for one connection, and it is used up.
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
    socket.listen(0).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    let mut waiting = Vec::new();
    while let Ok(stream) = TcpStream::connect_timeout(&address, Duration::from_millis(200)) {
        waiting.push(stream);
    }
    let gateway = Gateway::before_url(&format!("http://{address}")).with("upstream_timeouts: {connect: 300ms}").start();
    let late = Lateness::measure();
    let start = now();
    assert_eq!(gateway.client().get("/", &[]).status, 504);
    let (took, most) = (start.elapsed(), Duration::from_secs(2) + late.of_a_request());
    assert!((Duration::from_millis(250)..most).contains(&took), "{took:?}");
    gateway.expect("tollgate_upstream_errors_total", &["kind=\"connect_timeout\""], 1.0);
}

#[test]
fn an_upstream_that_reads_no_body_is_a_504() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let holding = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 16]);
        stream
    });
    let gateway =
        Gateway::before_url(&format!("http://{address}")).with("upstream_timeouts: {write: 300ms, read: 2s}").start();
    // More than the kernel buffers. Writing ends where the gateway reads no more.
    let body = vec![b'x'; 50_000_000];
    let (mut client, late) = (gateway.client(), Lateness::measure());
    let start = now();
    client.write("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 50000000\r\n\r\n");
    let _ = client.write_bytes(&body);
    assert_eq!(client.response("POST").unwrap().status, 504);
    assert!(start.elapsed() < Duration::from_secs(4) + late.of_a_request(), "{:?}", start.elapsed());
    gateway.expect("tollgate_upstream_errors_total", &["kind=\"write_timeout\""], 1.0);
    drop(holding.join());
}
