//! Responses that end early: if the end of the connection is the end of the body, only a reset shows the client that bytes
//! are missing.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use rustls::version::{TLS12, TLS13};

use crate::support::authority::Authority;
use crate::support::tls_client::TlsSettings;
use crate::support::{Gateway, Upstream, eventually};

const GET: &str = "GET / HTTP/1.0\r\nHost: a.test\r\n\r\n";

/// Starts an upstream that answers with two chunks, without the last chunk.
fn truncating() -> Upstream {
    Upstream::answering(|_, stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n3\r\ntwo\r\n");
        std::thread::sleep(Duration::from_millis(50));
        let _ = stream.shutdown(Shutdown::Both);
    })
}

#[test]
fn a_truncated_response_to_http10_ends_with_a_reset() {
    let upstream = truncating();
    let gateway = Gateway::start(&upstream, "");
    let mut client = TcpStream::connect(gateway.http).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(15))).unwrap();
    client.write_all(GET.as_bytes()).unwrap();
    let mut read = Vec::new();
    let end = client.read_to_end(&mut read).map_err(|error| error.kind());
    assert_eq!(end, Err(std::io::ErrorKind::ConnectionReset), "{}", String::from_utf8_lossy(&read));
    assert!(read.ends_with(b"onetwo"), "{}", String::from_utf8_lossy(&read));
    gateway.expect("tollgate_http_connections", &[], 0.0);
}

#[test]
fn over_tls_it_ends_without_close_notify() {
    let (upstream, authority) = (truncating(), Authority::new("ca"));
    let issued = authority.issue(&["a.test"]);
    let gateway = Gateway::before(&upstream)
        .with("listeners: [{address: 127.0.0.1:0, tls: {certificates: [{cert_file: a.pem, key_file: a.key}]}}]")
        .files(&[("a.pem", &issued.certificate), ("a.key", &issued.key)])
        .start();
    for version in [&TLS12, &TLS13] {
        let mut client = TlsSettings::new(&authority.pem(), None, &[version]).connect(gateway.http, "a.test").unwrap();
        client.write(GET);
        client.until("onetwo");
        assert!(!client.is_closed_cleanly(), "{version:?}");
    }
}

#[test]
fn what_a_drain_cuts_off_does_not_look_whole() {
    let upstream = Upstream::answering(|_, stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nbegun");
        std::thread::sleep(Duration::from_secs(60));
    });
    let mut gateway = Gateway::start(&upstream, "drain: {timeout: 300ms}");
    let mut client = TcpStream::connect(gateway.http).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(15))).unwrap();
    client.write_all(GET.as_bytes()).unwrap();
    eventually("the request arrives", || upstream.count() == 1);
    gateway.signal("TERM");
    let mut read = Vec::new();
    let end = client.read_to_end(&mut read).map_err(|error| error.kind());
    assert_eq!(end, Err(std::io::ErrorKind::ConnectionReset), "{}", String::from_utf8_lossy(&read));
    assert_eq!(gateway.wait().0.code(), Some(0));
}
