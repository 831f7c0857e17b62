//! Upstreams that answer before they were asked all, speak out of turn, or do not take what they are sent.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use socket2::{Domain, Socket, Type};

use crate::support::{Gateway, Upstream, now};

/// What came over each connection.
type Came = Arc<Mutex<Vec<Vec<u8>>>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    Closes,
    /// Whatever comes from then on.
    Reads,
}

/// Answers `ok` to each head at once, before any body.
fn hasty(then: Then) -> (SocketAddr, Came) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, came) = (listener.local_addr().unwrap(), Came::default());
    let all = Arc::clone(&came);
    std::thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            all.lock().unwrap().push(Vec::new());
            let all = Arc::clone(&all);
            std::thread::spawn(move || {
                answer(stream.unwrap(), then, |bytes| all.lock().unwrap()[number].extend(bytes))
            });
        }
    });
    (address, came)
}

fn answer(mut stream: TcpStream, then: Then, note: impl Fn(&[u8])) {
    let (mut unanswered, mut buffer) = (Vec::new(), [0; 4096]);
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        note(&buffer[..count]);
        unanswered.extend_from_slice(&buffer[..count]);
        if unanswered.windows(4).any(|bytes| bytes == b"\r\n\r\n") {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
            if then == Then::Closes {
                let _ = stream.shutdown(Shutdown::Write);
            }
            // What follows, on this connection, is a body.
            while let Ok(count @ 1..) = stream.read(&mut buffer) {
                note(&buffer[..count]);
            }
        }
    }
}

#[test]
fn the_rest_of_a_body_that_was_answered_early_is_never_a_request() {
    let smuggled = b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n".repeat(140);
    let body = &smuggled[..4900];
    for then in [Then::Closes, Then::Reads] {
        let (address, came) = hasty(then);
        let gateway = Gateway::start_for(&format!("http://{address}"), "upstream_timeouts: {read: 2s, write: 2s}");
        let mut client = gateway.client();
        client.write(&format!("POST /first HTTP/1.1\r\nHost: a\r\nContent-Length: 5000\r\n\r\n{}", "x".repeat(100)));
        let early = client.response("POST").unwrap();
        assert_eq!((early.status, &*early.body), (200, "ok"), "{then:?}");
        // It may be closed by now, and what is written refused.
        let _ = client.write_bytes(body);
        let _ = client.write_bytes(b"GET /next HTTP/1.1\r\nHost: a\r\n\r\n");
        if let Ok(next) = client.response("GET") {
            assert_eq!((next.status, &*next.body), (200, "ok"), "{then:?}");
        }
        assert_eq!(gateway.client().get("/other", &[]).body, "ok", "{then:?}");
        for bytes in &*came.lock().unwrap() {
            let text = String::from_utf8_lossy(bytes);
            let head = text.split("\r\n\r\n").next().unwrap_or_default();
            assert!(
                ["POST /first ", "GET /next ", "GET /other "].iter().any(|begin| head.starts_with(begin)),
                "{text}"
            );
            // One request each: whatever stands behind the first is of its body.
            assert!(
                bytes.len() - head.len() - 4 <= if head.starts_with("POST") { 5000 } else { 0 },
                "{then:?}: {text}"
            );
        }
    }
}

#[test]
fn an_answer_that_nobody_asked_for_is_nobodys() {
    let upstream = Upstream::answering(|seen, stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ngood");
        if seen.line.contains("/twice") {
            std::thread::sleep(Duration::from_millis(30));
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nX-Smuggled: 1\r\n\r\nevil");
        }
    });
    let gateway = Gateway::start(&upstream, "");
    for _ in 0..5 {
        let mut client = gateway.client();
        assert_eq!(client.get("/twice", &[]).body, "good");
        // The connection is idle when the second comes.
        std::thread::sleep(Duration::from_millis(60));
        let next = client.get("/good", &[]);
        assert_eq!((next.status, &*next.body, next.field("x-smuggled")), (200, "good", None));
    }
}

#[test]
fn an_upstream_that_does_not_take_connections_is_a_504() {
    // Room for one that is not accepted, and it is taken.
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
    socket.listen(0).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    let mut waiting = Vec::new();
    while let Ok(stream) = TcpStream::connect_timeout(&address, Duration::from_millis(200)) {
        waiting.push(stream);
    }
    let gateway = Gateway::start_for(&format!("http://{address}"), "upstream_timeouts: {connect: 300ms}");
    let start = now();
    assert_eq!(gateway.client().get("/", &[]).status, 504);
    assert!((Duration::from_millis(250)..Duration::from_secs(2)).contains(&start.elapsed()), "{:?}", start.elapsed());
    gateway.expect("tollgate_upstream_errors_total", &["kind=\"connect_timeout\""], 1.0);
}

#[test]
fn an_upstream_that_takes_no_body_is_a_504() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let holding = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 16]);
        stream
    });
    let gateway = Gateway::start_for(&format!("http://{address}"), "upstream_timeouts: {write: 300ms, read: 400ms}");
    let mut client = gateway.client();
    let start = now();
    client.write("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 50000000\r\n\r\n");
    // More than the kernel takes on its way. It ends where the gateway takes no more.
    let _ = client.write_bytes(&vec![b'x'; 50_000_000]);
    assert_eq!(client.response("POST").unwrap().status, 504);
    assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
    gateway.expect("tollgate_upstream_errors_total", &["kind=\"write_timeout\""], 1.0);
    drop(holding.join());
}
