//! HTTP/1.1 over TLS: pipelining, bodies, upgrades, refusals, drains and handovers.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use rustls::version::{TLS12, TLS13};

use super::{BOTH, before};
use crate::support::authority::Authority;
use crate::support::curl::curl;
use crate::support::tls_client::TlsSettings;
use crate::support::websocket::{SWITCHED, upgrade};
use crate::support::{Gateway, Upstream, await_more, continue_upload, eventually, hand_over, now, short_or_long};

/// Starts an upstream that answers with the request line and the length of the body.
fn echo() -> Upstream {
    Upstream::answering(|request, stream| {
        let body = format!("{} {}", request.line, request.body.len());
        let _ = write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    })
}

fn gateway(upstream: &Upstream, authority: &Authority, more: &str) -> Gateway {
    before(upstream, authority, &[("a", &authority.issue(&["a.test"]), "")], "").with(more).start()
}

#[test]
fn pipelined_requests_are_answered_in_order_however_their_bytes_arrive() {
    let (upstream, authority) = (echo(), Authority::new("ca"));
    let gateway = gateway(&upstream, &authority, "");
    for version in [&TLS13, &TLS12] {
        let mut client = TlsSettings::new(&authority.pem(), None, &[version]).connect(gateway.http, "a.test").unwrap();
        let mut requests = String::new();
        for number in 0..60 {
            requests += &match number % 3 {
                0 => format!("GET /{number} HTTP/1.1\r\nHost: a.test\r\n\r\n"),
                1 => format!("POST /{number} HTTP/1.1\r\nHost: a.test\r\nContent-Length: 3\r\n\r\nabc"),
                _ => {
                    let head = "Host: a.test\r\nTransfer-Encoding: chunked";
                    format!("POST /{number} HTTP/1.1\r\n{head}\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")
                }
            };
        }
        // Records of many sizes, the first of all requests and a bit.
        let mut rest = requests.as_str();
        for size in [700, 1, 2, 61, 3, 500, 17, 1000].into_iter().cycle() {
            let (part, more) = rest.split_at(size.min(rest.len()));
            client.write(part);
            rest = more;
            if rest.is_empty() {
                break;
            }
        }
        for number in 0..60 {
            let (method, length) = [("GET", 0), ("POST", 3), ("POST", 5)][number % 3];
            let (status, _, body) = client.response();
            assert_eq!((status, body), (200, format!("{method} /{number} HTTP/1.1 {length}")));
        }
    }
}

#[test]
fn bodies_of_many_records_arrive_whole_in_both_directions() {
    let authority = Authority::new("ca");
    let upstream = Upstream::answering(|request, stream| {
        let _ = write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", request.body.len());
        let _ = stream.write_all(&request.body);
    });
    let gateway = gateway(&upstream, &authority, "");
    let body: String = (0..3_000_000_u32).map(|at| char::from(b'a' + u8::try_from(at % 26).unwrap())).collect();
    std::fs::write(gateway.file("body"), &body).unwrap();
    let output = curl(&gateway, "a.test", &["--http1.1", "--data-binary", "@body", "--output", "returned"]);
    assert_eq!((output.code, output.status), (0, 200), "{output:?}");
    let returned = std::fs::read_to_string(gateway.file("returned")).unwrap();
    assert!(returned.ends_with(&body), "{} bytes", returned.len());
    for length in [0, 1] {
        let part = "x".repeat(length);
        let output = curl(&gateway, "a.test", &["--http1.1", "--data-binary", &part]);
        assert_eq!(output.status, 200, "{output:?}");
        assert!(output.text.contains(&format!("\r\nContent-Length: {length}\r\n")), "{output:?}");
        assert_eq!(upstream.last().body.len(), length);
    }
}

#[test]
fn a_client_that_expects_100_continue_gets_it_and_then_sends() {
    let (listener, authority) = (std::net::TcpListener::bind("127.0.0.1:0").unwrap(), Authority::new("ca"));
    let issued = authority.issue(&["a.test"]);
    let tls = "tls: {certificates: [{cert_file: a.pem, key_file: a.key}]}";
    let gateway = Gateway::before_url(&format!("http://{}", listener.local_addr().unwrap()))
        .with(&format!("listeners: [{{address: 127.0.0.1:0, {tls}}}]"))
        .files(&[("a.pem", &issued.certificate), ("a.key", &issued.key)])
        .start();
    let mut client = TlsSettings::new(&authority.pem(), None, &BOTH).connect(gateway.http, "a.test").unwrap();
    client.write("POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n");
    continue_upload(&listener, || {
        assert!(client.until("\r\n\r\n").starts_with("HTTP/1.1 100"));
        client.write("hello");
    });
    assert_eq!(client.response().0, 200);
}

#[test]
fn a_web_socket_goes_both_ways_and_is_charged_once() {
    let authority = Authority::new("ca");
    let upstream = Upstream::answering(|request, stream| {
        assert_eq!(request.field("upgrade"), Some("websocket"));
        let _ = stream.write_all(format!("{SWITCHED}hello").as_bytes());
        let mut part = [0; 5];
        stream.read_exact(&mut part).unwrap();
        let _ = stream.write_all(&part);
        let _ = stream.shutdown(std::net::Shutdown::Write);
    });
    let rule = "rules: [{name: one, limit_keys: [], algorithm_config: {rate: 9/day}}]";
    let gateway = gateway(&upstream, &authority, rule);
    let mut client = TlsSettings::new(&authority.pem(), None, &BOTH).connect(gateway.http, "a.test").unwrap();
    client.write(&upgrade("/"));
    assert!(client.until("\r\n\r\nhello").starts_with("HTTP/1.1 101 "));
    client.write("there");
    client.until("there");
    assert!(client.is_closed_cleanly());
    gateway.expect("rate_limiter_allowed_total", &[], 1.0);
}

#[test]
fn refusals_and_invalid_requests_are_answered_and_the_end_is_announced() {
    let (upstream, authority) = (echo(), Authority::new("ca"));
    let rule = "rules: [{name: one, match: {path: /limited}, limit_keys: [], algorithm_config: {rate: 1/day}}]";
    let gateway = gateway(&upstream, &authority, rule);
    let mut client = TlsSettings::new(&authority.pem(), None, &BOTH).connect(gateway.http, "a.test").unwrap();
    assert_eq!((client.get("a.test", "/limited"), client.get("a.test", "/limited")), (200, 429));
    assert_eq!(client.get("a.test", "/"), 200);
    client.write("GET / HTTP/1.1\r\nHost: a.test\r\nContent_Length: 3\r\n\r\n");
    assert_eq!(client.response().0, 400);
    assert!(client.is_closed_cleanly(), "closed without close_notify");
    // A refusal before an upload is whole.
    std::fs::write(gateway.file("body"), vec![b'x'; 3_000_000]).unwrap();
    let output = curl(&gateway, "a.test", &["--http1.1", "-T", "body", "--request-target", "/limited"]);
    assert_eq!(output.status, 429, "{output:?}");
}

#[test]
fn an_absolute_target_has_the_scheme_of_its_connection_and_goes_on_as_a_path() {
    let (upstream, authority) = (echo(), Authority::new("ca"));
    let gateway = gateway(&upstream, &authority, "");
    for (target, status, line) in [
        ("https://a.test/x?y", 200, Some("GET /x?y HTTP/1.1")),
        ("HTTPS://a.test", 200, Some("GET / HTTP/1.1")),
        ("https://a.test?y=https://b/", 200, Some("GET /?y=https://b/ HTTP/1.1")),
        ("http://a.test/x", 400, None),
        ("https://b.test/x", 400, None),
    ] {
        let before = upstream.count();
        let mut client = TlsSettings::new(&authority.pem(), None, &BOTH).connect(gateway.http, "a.test").unwrap();
        client.write(&format!("GET {target} HTTP/1.1\r\nHost: a.test\r\n\r\n"));
        assert_eq!(client.response().0, status, "{target}");
        let seen = upstream.seen();
        assert_eq!(seen.get(before).map(|seen| &*seen.line), line, "{target}");
        assert!(seen.get(before).is_none_or(|seen| seen.field("host") == Some("a.test")), "{target}");
    }
}

#[test]
fn a_client_that_leaves_ends_its_request_however_it_leaves() {
    let authority = Authority::new("ca");
    let upstream = Upstream::answering(|_, stream| {
        // Until the gateway closes the connection.
        let _ = stream.read(&mut [0; 1]);
    });
    let gateway = gateway(&upstream, &authority, "access_log: {to: log}");
    let settings = TlsSettings::new(&authority.pem(), None, &BOTH);
    for (number, announced) in [true, false].into_iter().enumerate() {
        let mut client = settings.connect(gateway.http, "a.test").unwrap();
        client.write("GET / HTTP/1.1\r\nHost: a.test\r\n\r\n");
        eventually("the request arrives", || upstream.count() == number + 1);
        if announced {
            client.announce_end();
        }
        drop(client);
        let log = || std::fs::read_to_string(gateway.file("log")).unwrap_or_default();
        eventually("the request ends", || log().matches("\"code\":499").count() == number + 1);
    }
}

#[test]
fn an_idle_connection_is_closed_with_an_announcement() {
    let (upstream, authority) = (echo(), Authority::new("ca"));
    let gateway = gateway(&upstream, &authority, "limits: {idle_timeout: 3s}");
    let mut client = TlsSettings::new(&authority.pem(), None, &BOTH).connect(gateway.http, "a.test").unwrap();
    assert_eq!(client.get("a.test", "/"), 200);
    assert!(client.is_closed_cleanly());
}

#[test]
fn an_upgrade_loses_no_request_and_a_drain_ends_every_connection() {
    let (upstream, authority) = (echo(), Authority::new("ca"));
    let mut gateway = gateway(&upstream, &authority, "");
    let (done, served) = (AtomicBool::new(false), AtomicUsize::new(0));
    let (settings, address) = (TlsSettings::new(&authority.pem(), None, &BOTH), gateway.http);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let mut client = settings.connect(address, "a.test").unwrap();
                    assert_eq!(client.get("a.test", "/"), 200);
                    served.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        hand_over(&mut gateway, short_or_long(2, 50), || await_more(std::slice::from_ref(&served)));
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(upstream.count(), served.load(Ordering::Relaxed));
    // The tickets of the previous process are not known to the next one: a full handshake.
    let mut client = settings.connect(gateway.http, "a.test").unwrap();
    assert_eq!(client.get("a.test", "/"), 200);
}

#[test]
fn a_web_socket_ends_with_the_drain() {
    let authority = Authority::new("ca");
    let upstream = Upstream::answering(|_, stream| {
        let _ = stream.write_all(format!("{SWITCHED}hello").as_bytes());
        // Until the gateway closes the connection.
        let _ = stream.read(&mut [0; 1]);
    });
    let mut gateway = gateway(&upstream, &authority, "drain: {timeout: 800ms}");
    let mut client = TlsSettings::new(&authority.pem(), None, &BOTH).connect(gateway.http, "a.test").unwrap();
    client.write(&upgrade("/"));
    client.until("hello");
    let begun = now();
    gateway.signal("TERM");
    let (status, _) = gateway.wait();
    let took = begun.elapsed();
    assert!(status.success() && took >= Duration::from_millis(800), "{took:?}: {}", gateway.errors());
    assert!(!client.is_open());
}

#[test]
fn a_drain_ends_idle_connections_and_serves_what_is_under_way() {
    let authority = Authority::new("ca");
    let (upstream, answer) = Upstream::answering_when_told();
    let mut gateway = gateway(&upstream, &authority, "");
    let settings = TlsSettings::new(&authority.pem(), None, &BOTH);
    let (mut idle, mut busy) =
        (settings.connect(gateway.http, "a.test").unwrap(), settings.connect(gateway.http, "a.test").unwrap());
    busy.write("GET /slow HTTP/1.1\r\nHost: a.test\r\n\r\n");
    eventually("the request arrives", || upstream.count() == 1);
    gateway.signal("TERM");
    assert!(idle.is_closed_cleanly());
    answer.send(()).unwrap();
    let (status, head, _) = busy.response();
    assert_eq!(status, 200);
    assert!(head.to_ascii_lowercase().contains("connection: close"), "{head}");
    let (status, duration) = gateway.wait();
    assert!(status.success() && duration < Duration::from_secs(5), "{duration:?}");
}
