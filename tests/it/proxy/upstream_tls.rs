//! TLS and HTTP/2 to upstreams: verified certificates, client certificates, and shared connections.

use std::io::Write;
use std::net::{SocketAddr, TcpListener};

use crate::support::{Certificates, Gateway, GatewayBuilder, SecureUpstream, eventually};

/// Returns a configuration with one upstream that has this endpoint, and a route to it.
fn file(url: &str, keys: &str) -> String {
    // A handshake takes long on a busy machine.
    let timeouts = "upstream_timeouts: {connect: 10s}";
    format!(
        "{timeouts}\nupstreams: {{api: {{endpoints: [\"{url}\"]{keys}}}}}\nroutes: [{{name: all, upstream: api}}]\n"
    )
}

fn https(address: SocketAddr, keys: &str) -> String {
    file(&format!("https://{address}"), keys)
}

fn builder(certificates: &Certificates, text: &str) -> GatewayBuilder {
    let (client, key) = &certificates.client;
    let files = [("ca.pem", &*certificates.authority), ("gw.pem", client), ("gw.key", key)];
    Gateway::before_url("").with(text).files(&files)
}

const VERIFIED: &str = ", tls: {ca_file: ca.pem, server_name: localhost}";

#[track_caller]
fn expect_failure(certificates: &Certificates, text: &str, kind: &str) -> Gateway {
    expect_failure_of(builder(certificates, text).start(), kind)
}

#[track_caller]
fn expect_failure_of(gateway: Gateway, kind: &str) -> Gateway {
    assert_eq!(gateway.client().get("/", &[]).status, 502);
    gateway.expect("tollgate_upstream_errors_total", &[&format!("kind=\"{kind}\"")], 1.0);
    gateway
}

#[test]
fn a_certificate_is_verified_for_its_name_and_by_its_authority() {
    let (certificates, others) = (Certificates::new(), Certificates::new());
    let upstream = SecureUpstream::tls(&certificates, &["h2", "http/1.1"]);
    let gateway = builder(&certificates, &https(upstream.address, VERIFIED)).start();
    let mut client = gateway.client();
    (0..5).for_each(|_| assert_eq!(client.get("/a", &[]).status, 200));
    let seen = upstream.seen();
    // Over the protocol of the file, and on one connection.
    assert!(
        seen.len() == 5 && seen.iter().all(|one| !one.is_h2 && one.connection == 0 && one.path == "/a"),
        "{seen:?}"
    );
    let named = expect_failure(&certificates, &https(upstream.address, ", tls: {ca_file: ca.pem}"), "certificate");
    named.expect_logged("it is not for `127.0.0.1`, but for ");
    let signed = expect_failure(&others, &https(upstream.address, VERIFIED), "certificate");
    signed.expect_logged("invalid peer certificate");
    // The system does not trust it.
    expect_failure(&certificates, &https(upstream.address, ""), "certificate");
    let short = Gateway::before_url(&format!("https://{}", upstream.address)).with(
        "upstream_timeouts: {connect: 10s}
",
    );
    expect_failure_of(short.start(), "certificate");
    assert_eq!(upstream.seen().len(), 5);
    let unverified = builder(&others, &https(upstream.address, ", tls: {ca_file: ca.pem, verify: false}")).start();
    assert_eq!(unverified.client().get("/", &[]).status, 200);
    unverified.expect_logged("unverified_server");
}

#[test]
fn a_server_without_tls_is_told_apart_from_one_that_is_not_there() {
    let plain = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = plain.local_addr().unwrap();
    // As nginx answers what is not HTTP.
    let server =
        std::thread::spawn(move || plain.accept().unwrap().0.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap());
    expect_failure(Certificates::shared(), &https(address, VERIFIED), "tls");
    server.join().unwrap();
}

#[test]
fn a_client_certificate_is_presented() {
    let certificates = Certificates::new();
    let upstream = SecureUpstream::mutual_tls(&certificates);
    let presented = ", tls: {ca_file: ca.pem, server_name: localhost, cert_file: gw.pem, key_file: gw.key}";
    let gateway = builder(&certificates, &https(upstream.address, presented)).start();
    assert_eq!(gateway.client().get("/", &[]).status, 200);
    assert!(upstream.seen()[0].has_certificate);
    expect_failure(&certificates, &https(upstream.address, VERIFIED), "tls");
}

#[test]
fn another_authority_is_used_for_new_connections_and_ends_the_old_ones() {
    let (old, new) = (Certificates::new(), Certificates::new());
    let upstream = SecureUpstream::tls(&old, &[]);
    let gateway = builder(&old, &https(upstream.address, VERIFIED)).start();
    assert_eq!(gateway.client().get("/", &[]).status, 200);
    std::fs::write(gateway.file("ca.pem"), &new.authority).unwrap();
    gateway.signal("HUP");
    // The kept connection was verified by the authority before.
    eventually("the authority is another", || gateway.client().get("/", &[]).status == 502);
    std::fs::write(gateway.file("ca.pem"), "nothing").unwrap();
    gateway.signal("HUP");
    eventually("the file is reported", || gateway.has_logged("there is no certificate in it"));
    std::fs::write(gateway.file("ca.pem"), &old.authority).unwrap();
    gateway.signal("HUP");
    eventually("it is the first again", || gateway.client().get("/", &[]).status == 200);
}

#[test]
fn requests_over_http2_share_a_connection_and_survive_its_end() {
    let certificates = Certificates::shared();
    let secure = SecureUpstream::tls(certificates, &["h2"]);
    let clear = SecureUpstream::h2c();
    let secure_text = https(secure.address, &format!("{VERIFIED}, protocol: h2"));
    let clear_text = file(&format!("http://{}", clear.address), ", protocol: h2c");
    for (upstream, text) in [(secure, secure_text), (clear, clear_text)] {
        let gateway = builder(certificates, &text).start();
        let mut client = gateway.client();
        let response = client.send("POST", "/first", &[("Host", "api.example")], &"x".repeat(100_000));
        assert_eq!((response.status, &*response.body), (200, "ok"));
        for _ in 0..20 {
            assert_eq!(client.get("/next", &[]).status, 200);
        }
        let seen = upstream.seen();
        assert!(seen.iter().all(|one| one.is_h2 && one.connection == 0), "{seen:?}");
        assert_eq!((&*seen[0].authority, seen[0].body, seen.len()), ("api.example", 100_000, 21));
        // The connection on which GOAWAY arrives gets no other request.
        assert_eq!(client.get("/goaway", &[]).status, 200);
        for _ in 0..5 {
            assert_eq!(client.get("/after", &[]).status, 200);
        }
        assert!(upstream.seen().iter().filter(|one| one.path == "/after").all(|one| one.connection == 1));
        gateway.expect("tollgate_http_requests_total", &["origin=\"upstream\"", "code=\"200\""], 27.0);
    }
}

#[test]
fn a_server_that_offers_no_http2_gets_http1() {
    let certificates = Certificates::shared();
    let upstream = SecureUpstream::tls(certificates, &[]);
    let gateway = builder(certificates, &https(upstream.address, &format!("{VERIFIED}, protocol: h2"))).start();
    let mut client = gateway.client();
    (0..3).for_each(|_| assert_eq!(client.get("/", &[]).status, 200));
    assert!(upstream.seen().iter().all(|one| !one.is_h2));
}

#[test]
fn checks_are_made_over_the_protocol_of_the_upstream() {
    let certificates = Certificates::shared();
    let every = "interval: 1s, fall: 1, rise: 1";
    let path = format!(", protocol: h2, health: {{path: /healthz, {every}}}");
    let grpc = format!(", protocol: h2c, health: {{grpc: api.v1.Users, {every}}}");
    let (secure, clear) = (SecureUpstream::tls(certificates, &["h2"]), SecureUpstream::h2c());
    let available = |gateway: &Gateway, count: f64| {
        gateway.expect("tollgate_upstream_endpoints", &["state=\"available\""], count);
    };
    let checked = builder(certificates, &https(secure.address, &format!("{VERIFIED}{path}"))).start();
    eventually("a check", || secure.seen().len() > 2);
    assert!(secure.seen().iter().all(|one| one.is_h2 && one.path == "/healthz"), "{:?}", secure.seen());
    available(&checked, 1.0);
    // The certificate is verified for checks as well.
    let unnamed = format!(", tls: {{ca_file: ca.pem}}{path}");
    let unverified = builder(certificates, &https(secure.address, &unnamed)).start();
    available(&unverified, 0.0);
    eventually("it is logged", || unverified.has_logged("TLS: invalid peer certificate"));
    let asked = builder(certificates, &file(&format!("http://{}", clear.address), &grpc)).start();
    eventually("a check", || clear.seen().len() > 2);
    assert!(clear.seen().iter().all(|one| one.path == "/grpc.health.v1.Health/Check" && one.body == 19));
    available(&asked, 1.0);
    clear.set_serving(false);
    available(&asked, 0.0);
    eventually("it is logged", || asked.has_logged("the service is not serving"));
}
