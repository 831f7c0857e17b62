//! The upstream read timeout of streams. Depending on the protocol, the stream or Pingora enforces it.

use std::io::{Read, Write};
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::Duration;

use super::before;
use crate::support::http2::Http2Client;
use crate::support::{Upstream, eventually, now};

const TIMEOUT: Duration = Duration::from_secs(15);

#[test]
fn an_upstream_that_stops_sending_is_given_up_and_other_streams_go_on() {
    let upstream = Upstream::answering(|request, stream| {
        let bytes: &[u8] = match request.line.split(' ').nth(1) {
            Some("/whole") => b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
            Some("/head") => b"HTTP/1.1 200 OK\r\nContent-Le",
            Some("/interim") => b"HTTP/1.1 103 Early Hints\r\n\r\n",
            Some("/body") => b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf",
            _ => b"",
        };
        let _ = stream.write_all(bytes);
        if !request.line.contains("/whole") {
            // Until the gateway closes the connection.
            let _ = stream.read(&mut [0]);
        }
    });
    let gateway = before(&upstream).with("upstream_timeouts: {read: 2s}").start();
    let mut client = Http2Client::connect(gateway.http);
    let mut requests = Vec::new();
    for method in ["GET", "POST"] {
        for (path, status) in [("/nothing", Some(504)), ("/head", Some(504)), ("/interim", Some(504)), ("/body", None)]
        {
            let began = now();
            let mut request = client.begin(method, path, &[], method == "GET");
            if method == "POST" {
                request.write(b"hello", true).unwrap();
            }
            assert_eq!(client.get("/whole", &[]).status, 200);
            requests.push((method, path, status, began, request));
        }
    }
    // They have waited together.
    for (method, path, status, began, request) in requests {
        let response = request.response();
        let took = began.elapsed();
        assert_eq!(response.ok().map(|response| response.status), status, "{method} {path}");
        assert!((Duration::from_millis(1950)..Duration::from_secs(8)).contains(&took), "{method} {path}: {took:?}");
    }
    gateway.expect("tollgate_upstream_errors_total", &["read_timeout"], 8.0);
    assert_eq!(client.get("/whole", &[]).status, 200);
}

#[test]
fn what_arrives_while_the_process_stands_still_is_no_timeout() {
    let (arrived, arrivals) = channel();
    let (answer, answers) = channel();
    let (written, all_written) = channel();
    let answers = Mutex::new(answers);
    let upstream = Upstream::answering(move |_, stream| {
        arrived.send(()).unwrap();
        answers.lock().unwrap().recv().unwrap();
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        written.send(()).unwrap();
    });
    let gateway = before(&upstream).with("upstream_timeouts: {read: 1s}").start();
    const REQUESTS: usize = 24;
    for _ in 0..2 {
        let mut client = Http2Client::connect(gateway.http);
        let streams: Vec<_> = (0..REQUESTS / 2).map(|_| client.begin("GET", "/", &[], true)).collect();
        let mut connections: Vec<_> = (0..REQUESTS / 2).map(|_| gateway.client()).collect();
        for connection in &mut connections {
            connection.write("GET / HTTP/1.1\r\nHost: a.test\r\n\r\n");
        }
        (0..REQUESTS).for_each(|_| arrivals.recv_timeout(TIMEOUT).unwrap());
        gateway.signal("STOP");
        let stopped = now();
        (0..REQUESTS).for_each(|_| answer.send(()).unwrap());
        (0..REQUESTS).for_each(|_| all_written.recv_timeout(TIMEOUT).unwrap());
        eventually("the timeout has passed", || stopped.elapsed() > Duration::from_millis(1200));
        gateway.signal("CONT");
        let over_http2: Vec<_> = streams.into_iter().map(|request| request.response().unwrap().status).collect();
        let over_http1: Vec<_> =
            connections.iter_mut().map(|connection| connection.response("GET").unwrap().status).collect();
        let all = [200; REQUESTS / 2];
        assert_eq!((&over_http2[..], &over_http1[..]), (&all[..], &all[..]));
    }
    gateway.expect("tollgate_upstream_errors_total", &[], 0.0);
}

#[test]
fn every_stream_and_every_part_of_a_response_has_the_whole_timeout() {
    const PAUSE: Duration = Duration::from_millis(600);
    let upstream = Upstream::answering(|request, stream| {
        if request.line.contains("/never") {
            let _ = stream.read(&mut [0]);
            return;
        }
        for part in ["", "HTTP/1.1 103 Early Hints\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n", "ha", "lf"]
        {
            let _ = stream.write_all(part.as_bytes());
            std::thread::sleep(PAUSE);
        }
    });
    // Less than all parts together take, and far more than each: on a busy machine they arrive late.
    let gateway = before(&upstream).with("upstream_timeouts: {read: 2s}").start();
    let mut client = Http2Client::connect(gateway.http);
    // A later stream has the timer of an earlier one, which was set for that.
    for _ in 0..2 {
        let response = client.get("/", &[]);
        assert_eq!((response.status, response.text()), (200, "half".to_owned()));
    }
    let began = now();
    assert_eq!(client.get("/never", &[]).status, 504);
    let took = began.elapsed();
    assert!((Duration::from_millis(1950)..Duration::from_secs(8)).contains(&took), "{took:?}");
    gateway.expect("tollgate_upstream_errors_total", &[], 1.0);
}
