//! Upstreams that answer before they were asked all, speak out of turn, or do not take what they are sent.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use socket2::{Domain, Socket, Type};

use crate::support::{Gateway, Upstream, now};

/// The request lines that came.
type Lines = Arc<Mutex<Vec<String>>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    Closes,
    Goes,
}

/// Answers `ok` to each head at once, and reads its body only then.
fn hasty(then: Then) -> (SocketAddr, Lines) {
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

fn serve(mut stream: TcpStream, then: Then, lines: &Lines) {
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
        if then == Then::Closes {
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
fn the_rest_of_a_body_that_was_answered_early_is_never_a_request() {
    let smuggled = b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n".repeat(140);
    let body = &smuggled[..4900];
    for then in [Then::Closes, Then::Goes] {
        let (address, lines) = hasty(then);
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
        let lines = lines.lock().unwrap();
        let asked = ["POST /first HTTP/1.1", "GET /next HTTP/1.1", "GET /other HTTP/1.1"];
        assert!(lines.iter().all(|line| asked.contains(&&**line)), "{then:?}: {lines:?}");
        assert_eq!(
            (lines.first().map(String::as_str), lines.last().map(String::as_str)),
            (Some(asked[0]), Some(asked[2]))
        );
    }
}

#[test]
fn an_answer_that_nobody_asked_for_is_nobodys() {
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
        // The connection is idle when the second comes.
        second.recv().unwrap();
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
