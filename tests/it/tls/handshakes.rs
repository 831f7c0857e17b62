//! TLS handshakes: versions, names, resumption, and refusals.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustls::version::{TLS12, TLS13};

use super::{BOTH, before};
use crate::support::authority::Authority;
use crate::support::curl::curl;
use crate::support::http2::Http2Client;
use crate::support::tls_client::TlsSettings;
use crate::support::{Client, Gateway, Upstream, eventually};

const HANDSHAKES: &str = "tollgate_tls_handshakes_total";

#[test]
fn curl_is_served_with_either_version_and_the_upstream_learns_the_scheme() {
    let (upstream, authority) = (Upstream::start(), Authority::new("ca"));
    let gateway = before(&upstream, &authority, &[("a", &authority.issue(&["a.test"]), "")], "").start();
    for version in [&["--tlsv1.2", "--tls-max", "1.2"][..], &["--tlsv1.3"], &["--http1.1", "-X", "POST", "-d", "body"]]
    {
        let output = curl(&gateway, "a.test", version);
        assert_eq!((output.code, output.status), (0, 200), "{output:?}");
    }
    let forged =
        curl(&gateway, "a.test", &["-H", "X-Forwarded-Client-Cert: By=me", "-H", "X_Forwarded_Client_Cert: By=me"]);
    assert_eq!(forged.status, 200);
    let last = upstream.last();
    assert_eq!(last.field("x-forwarded-proto"), Some("https"));
    assert!(last.fields.iter().all(|(name, _)| !name.to_ascii_lowercase().contains("client")), "{last:?}");
    gateway.expect(HANDSHAKES, &["result=\"full\""], 4.0);
    gateway.expect("tollgate_http_connections", &["listener=\"http\""], 0.0);
}

#[test]
fn only_the_versions_and_ciphers_that_are_safe_are_spoken() {
    let (upstream, authority) = (Upstream::start(), Authority::new("ca"));
    let issued = authority.issue(&["a.test"]);
    let both = before(&upstream, &authority, &[("a", &issued, "")], "").start();
    let newest = before(&upstream, &authority, &[("a", &issued, "")], ", min_version: \"1.3\"").start();
    let handshake = |gateway: &Gateway, arguments: &[&str]| {
        let output = Command::new("openssl")
            .args(["s_client", "-connect", &gateway.http.to_string(), "-servername", "a.test", "-brief"])
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    for (gateway, arguments, expected) in [
        (&both, &["-tls1_3"][..], "TLSv1.3"),
        (&both, &["-tls1_2"], "TLSv1.2"),
        (&both, &["-tls1_2", "-cipher", "ECDHE-ECDSA-AES128-GCM-SHA256"], "ECDHE-ECDSA-AES128-GCM-SHA256"),
        (&both, &["-tls1_2", "-cipher", "ECDHE-ECDSA-AES128-SHA:@SECLEVEL=0"], "handshake failure"),
        (&both, &["-tls1_1", "-cipher", "ALL:@SECLEVEL=0"], "alert"),
        (&newest, &["-tls1_3"], "TLSv1.3"),
        (&newest, &["-tls1_2"], "alert protocol version"),
    ] {
        let output = handshake(gateway, arguments);
        assert!(output.contains(expected), "{arguments:?}: {output}");
    }
    newest.expect(HANDSHAKES, &["result=\"protocol\""], 1.0);
}

#[test]
fn the_certificate_is_that_of_the_name_then_of_the_wildcard_then_the_first() {
    let (upstream, authority) = (Upstream::start(), Authority::new("ca"));
    let (a, wild, b) = (
        authority.issue(&["a.x.test"]),
        authority.issue(&["*.x.test"]),
        authority.issue(&["b.x.test", "*.sub.x.test"]),
    );
    let gateway = before(&upstream, &authority, &[("a", &a, ""), ("wild", &wild, ""), ("b", &b, "")], "").start();
    for host in ["a.x.test", "b.x.test", "other.x.test", "c.sub.x.test", "A.X.TEST"] {
        let output = curl(&gateway, host, &[]);
        assert_eq!((output.code, output.status), (0, 200), "{host}: {output:?}");
    }
    let settings = TlsSettings::new(&authority.pem(), None, &BOTH);
    let presented = |name: &str| settings.connect(gateway.http, name).unwrap().certificate();
    let (of_a, of_b) = (presented("a.x.test"), presented("b.x.test"));
    assert_ne!(of_a, of_b);
    assert_ne!(presented("other.x.test"), of_a);
    // 60: the certificate is not for the host. A wildcard is one label, so what is presented is the first.
    assert_eq!(curl(&gateway, "c.d.x.test", &[]).code, 60);
    let unverified = curl(&gateway, "c.d.x.test", &["--insecure"]);
    assert_eq!(unverified.status, 200, "{unverified:?}");
    // The name is compared after the handshake, the authority in it.
    std::fs::write(gateway.file("other.pem"), Authority::new("other").pem()).unwrap();
    assert_eq!(curl(&gateway, "a.x.test", &["--cacert", "other.pem"]).code, 60);
    gateway.expect(HANDSHAKES, &["result=\"alert\""], 1.0);
    // By address, which is no name.
    let output = curl(&gateway, "127.0.0.1", &["--insecure"]);
    assert_eq!(output.status, 200, "{output:?}");
}

#[test]
fn with_strict_sni_other_names_are_closed_and_other_hosts_refused() {
    let (upstream, authority) = (Upstream::start(), Authority::new("ca"));
    let (a, b) = (authority.issue(&["a.test", "c.test"]), authority.issue(&["b.test"]));
    let gateway = before(&upstream, &authority, &[("a", &a, ""), ("b", &b, "")], ", strict_sni: true").start();
    assert_eq!(curl(&gateway, "a.test", &[]).status, 200);
    for host in ["other.test", "127.0.0.1"] {
        let output = curl(&gateway, host, &["--insecure"]);
        // 35: the handshake failed.
        assert_eq!((output.code, output.status), (35, 0), "{host}: {output:?}");
    }
    gateway.expect(HANDSHAKES, &["result=\"unknown_name\""], 2.0);
    let mut client = TlsSettings::new(&authority.pem(), None, &BOTH).connect(gateway.http, "a.test").unwrap();
    assert_eq!(client.get("c.test:8443", "/"), 200, "the certificate covers it");
    for host in ["b.test", "B.Test", "b.test.", "b.test:8443", "b.test.:8443", "a.test.b.test", "127.0.0.1", "[::1]"] {
        client.write(&format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        let (status, head, body) = client.response();
        assert_eq!(status, 421, "{host}: {head}");
        assert!(head.contains("X-Tollgate-Reason: bad_request\r\n"), "{host}: {head}");
        assert!(body.contains(r#""title":"Misdirected Request","status":421"#), "{host}: {body}");
    }
    client.write("GET https://b.test/ HTTP/1.1\r\nHost: b.test\r\n\r\n");
    assert_eq!(client.response().0, 421);
    assert_eq!(client.get("A.test.", "/"), 200, "a refusal leaves the connection open");
    assert_eq!(upstream.count(), 3);
}

#[test]
fn a_session_is_resumed_by_every_thread() {
    let (upstream, authority) = (Upstream::start(), Authority::new("ca"));
    let gateway = before(&upstream, &authority, &[("a", &authority.issue(&["a.test"]), "")], "").start();
    for version in [&TLS13, &TLS12] {
        let settings = TlsSettings::new(&authority.pem(), None, &[version]);
        for attempt in 0..9 {
            let mut client = settings.connect(gateway.http, "a.test").unwrap();
            // The ticket of TLS 1.3 is read with the response.
            assert_eq!(client.get("a.test", "/"), 200);
            assert_eq!(client.is_resumed(), attempt > 0, "{version:?} {attempt}");
        }
    }
    gateway.expect(HANDSHAKES, &["result=\"resumed\""], 16.0);
}

#[test]
fn what_is_no_handshake_is_closed_and_counted() {
    let (upstream, authority) = (Upstream::start(), Authority::new("ca"));
    let gateway = before(&upstream, &authority, &[("a", &authority.issue(&["a.test"]), "")], "").start();
    let mut plain = TcpStream::connect(gateway.http).unwrap();
    plain.write_all(b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n").unwrap();
    let mut rest = Vec::new();
    let _ = plain.read_to_end(&mut rest);
    assert!(!rest.starts_with(b"HTTP"), "{rest:?}");
    drop(TcpStream::connect(gateway.http).unwrap());
    gateway.expect(HANDSHAKES, &["result=\"protocol\""], 1.0);
    gateway.expect(HANDSHAKES, &["result=\"closed\""], 1.0);
    assert_eq!(upstream.count(), 0);
}

#[test]
fn handshakes_have_a_deadline_and_are_bounded() {
    let (upstream, authority) = (Upstream::start(), Authority::new("ca"));
    let issued = authority.issue(&["a.test"]);
    let gateway = before(&upstream, &authority, &[("a", &issued, "")], "")
        .with("limits: {handshakes_at_once: 1}\n")
        .interval("tls_handshake", Duration::from_secs(5))
        .start();
    // What a client has sent of its first message that arrived does not matter: one that sends nothing takes no place.
    let silent = Client::connect(gateway.http);
    assert_eq!(curl(&gateway, "a.test", &[]).status, 200);
    // A client that has sent its first message and nothing more. Its time runs from here on.
    let hello = hello(&gateway);
    let mut stalled = TcpStream::connect(gateway.http).unwrap();
    stalled.write_all(&hello).unwrap();
    stalled.read_exact(&mut [0; 5]).unwrap();
    assert_eq!(curl(&gateway, "a.test", &[]).code, 35);
    gateway.expect(HANDSHAKES, &["result=\"too_many\""], 1.0);
    gateway.expect(HANDSHAKES, &["result=\"timeout\""], 2.0);
    let mut rest = Vec::new();
    let _ = stalled.read_to_end(&mut rest);
    drop(silent);
    assert_eq!(curl(&gateway, "a.test", &[]).status, 200);
    assert_eq!(upstream.count(), 2);
}

#[test]
fn one_client_leaves_handshakes_for_others() {
    let (upstream, authority) = (Upstream::start(), Authority::new("ca"));
    let issued = authority.issue(&["a.test"]);
    let tls = "tls: {certificates: [{cert_file: a.pem, key_file: a.key}]}";
    let gateway = Gateway::before(&upstream)
        .with(&format!("listeners: [{{address: 127.0.0.1:0, proxy_protocol: true, {tls}}}]"))
        .with("limits: {handshakes_at_once: 20}")
        .files(&[("a.pem", &issued.certificate), ("a.key", &issued.key)])
        .interval("tls_handshake", Duration::from_secs(60))
        .start();
    let connect = |client: &str| {
        let mut stream = TcpStream::connect(gateway.http).unwrap();
        stream.write_all(format!("PROXY TCP4 {client} 192.0.2.1 4711 443\r\n").as_bytes()).unwrap();
        stream
    };
    let hello = hello(&gateway);
    let begin = |client: &str| {
        let mut stream = connect(client);
        stream.write_all(&hello).unwrap();
        stream
    };
    let stalled: Vec<_> = (0..20).map(|_| begin("203.0.113.1")).collect();
    gateway.expect(HANDSHAKES, &["result=\"too_many\""], 12.0);
    let settings = TlsSettings::new(&authority.pem(), None, &BOTH);
    assert_eq!(settings.over(connect("203.0.113.2"), "a.test").unwrap().get("a.test", "/"), 200);
    // All of them are bounded as before.
    let others: Vec<_> = (0..20).map(|number| begin(&format!("203.0.113.{}", 100 + number))).collect();
    gateway.expect(HANDSHAKES, &["result=\"too_many\""], 20.0);
    drop((stalled, others));
    eventually("there is room again", || {
        settings.over(connect("203.0.113.1"), "a.test").is_ok_and(|mut client| client.get("a.test", "/") == 200)
    });
}

#[test]
fn a_client_with_too_many_connections_is_disconnected_before_anything_is_computed_for_it() {
    let (upstream, authority) = (Upstream::start(), Authority::new("ca"));
    let gateway = before(&upstream, &authority, &[("a", &authority.issue(&["a.test"]), "")], "")
        .with("limits: {connections_per_client: 3}\n")
        .start();
    // Connections that have been served stay open, whereas a handshake that never begins would end by its deadline.
    let settings = TlsSettings::new(&authority.pem(), None, &BOTH);
    let mut kept: Vec<_> = (0..3).map(|_| settings.connect(gateway.http, "a.test").unwrap()).collect();
    for client in &mut kept {
        assert_eq!(client.get("a.test", "/"), 200);
    }
    assert_eq!(curl(&gateway, "a.test", &[]).code, 35);
    gateway.expect(HANDSHAKES, &[], 3.0);
    drop(kept.pop());
    eventually("there is room again", || curl(&gateway, "a.test", &[]).status == 200);
}

/// Returns the first message of a TLS client.
fn hello(gateway: &Gateway) -> Vec<u8> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let mut client = Command::new("openssl")
        .args(["s_client", "-connect", &address, "-servername", "a.test"])
        .current_dir(gateway.file(""))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    let mut hello = vec![0; 5];
    stream.read_exact(&mut hello).unwrap();
    let length = usize::from(u16::from_be_bytes([hello[3], hello[4]]));
    hello.resize(5 + length, 0);
    stream.read_exact(&mut hello[5..]).unwrap();
    client.kill().unwrap();
    client.wait().unwrap();
    hello
}

#[test]
fn a_proxy_protocol_header_precedes_the_handshake() {
    let (upstream, authority) = (Upstream::start(), Authority::new("ca"));
    let issued = authority.issue(&["a.test"]);
    let tls = "tls: {certificates: [{cert_file: a.pem, key_file: a.key}]}";
    let gateway = Gateway::before(&upstream)
        .with(&format!("listeners: [{{address: 127.0.0.1:0, proxy_protocol: true, {tls}}}]"))
        .files(&[("a.pem", &issued.certificate), ("a.key", &issued.key)])
        .start();
    // In version 2 as load balancers send it: with the name and the protocol that the client asked for, and what they
    // know of TLS. None of these is believed in place of what TLS says here.
    let mut version2 = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\0".to_vec();
    version2.extend([203, 0, 113, 9, 192, 0, 2, 1, 0x12, 0x67, 1, 187]);
    version2.extend(b"\x02\0\x0aother.test\x01\0\x02h2\x20\0\x05\x01\0\0\0\0");
    let length = u16::try_from(version2.len() - 16).unwrap();
    version2[14..16].copy_from_slice(&length.to_be_bytes());
    for header in [&b"PROXY TCP4 203.0.113.9 192.0.2.1 4711 443\r\n"[..], &version2] {
        let mut stream = TcpStream::connect(gateway.http).unwrap();
        stream.write_all(header).unwrap();
        let mut client = TlsSettings::new(&authority.pem(), None, &BOTH).over(stream, "a.test").unwrap();
        assert_eq!(client.get("a.test", "/"), 200);
        assert_eq!(upstream.last().field("x-forwarded-for"), Some("203.0.113.9"));
        let mut stream = TcpStream::connect(gateway.http).unwrap();
        stream.write_all(header).unwrap();
        let mut client = Http2Client::over_tls(&TlsSettings::new(&authority.pem(), None, &BOTH), stream, "a.test");
        assert_eq!(client.get("/h2", &[]).status, 200);
        let last = upstream.last();
        assert_eq!((&*last.line, last.field("x-forwarded-for")), ("GET /h2 HTTP/1.1", Some("203.0.113.9")));
    }
}
