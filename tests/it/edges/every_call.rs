//! Every call of a door: preflights, heads that are refused before the decision, and the access log.

use std::io::BufRead;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use super::grpc_caller::{Caller, descriptor};
use super::http_door::forwarded;
use crate::support::authority::Authority;
use crate::support::tls_client::TlsSettings;
use crate::support::{Client, Gateway, eventually};

const LISTENER: &str = "address: 127.0.0.1:0, clients: [127.0.0.0/8], original_request: x-forwarded";

#[test]
fn a_preflight_is_decided_as_any_request_without_credentials() {
    let config = format!(
        "listeners: [{{{LISTENER}, decide: [http]}}]
cors: [{{origins: [\"https://app.example\"]}}]
api_keys: {{from: header:x-key, file: keys.txt}}
rules:
  - {{name: gone, match: {{path: /gone}}, action: deny}}
  - {{name: keys, limit_keys: [key:id], algorithm_config: {{rate: 100/day}}}}
  - {{name: addresses, limit_keys: [ip:address], algorithm_config: {{rate: 2/day}}}}
"
    );
    let hash = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    let gateway = Gateway::deciding().with(&config).file("keys.txt", &format!("{hash} a gold\n")).start();
    let mut client = gateway.client();
    let mut ask = |path: &str, more: &[(&str, &str)]| {
        let own = [("Origin", "https://app.example"), ("Access-Control-Request-Method", "PUT")];
        forwarded(&mut client, "OPTIONS", &format!("http://a{path}"), &[&own, more].concat())
    };
    assert_eq!(ask("/gone", &[]).status, 403);
    assert_eq!(ask("/x", &[]).field("ratelimit-remaining").as_deref(), Some("1"));
    // No key is looked at, a known one as little as another.
    assert_eq!(ask("/x", &[("X-Key", "abc")]).field("ratelimit-remaining").as_deref(), Some("0"));
    let refused = ask("/x", &[("X-Key", "guess")]);
    assert_eq!((refused.status, refused.field("x-tollgate-reason").as_deref()), (429, Some("token_bucket_exceeded")));
    gateway.expect("rate_limiter_decisions_total", &["door=\"http\"", "unlimited"], 0.0);
}

const PAGE: &str = "error_pages: [{status: [400, 414, 431], body_file: page.txt, content_type: text/plain}]\n";

#[test]
fn heads_that_are_not_read_are_refused_as_the_proxy_expects_it() {
    let config =
        format!("listeners: [{{{LISTENER}, decide: [http], refuse_with: 403, protocols: [h2c, http/1.1]}}]\n{PAGE}");
    let gateway = Gateway::deciding().with(&config).file("page.txt", "a page").start();
    let many: Vec<String> = (0..101).map(|number| format!("x-{number}: a")).collect();
    let long = "x".repeat(9000);
    for (head, status) in [
        (format!("GET /decide HTTP/1.1\r\nHost: a\r\n{}\r\n", many.join("\r\n") + "\r\n"), 431),
        (format!("GET /decide?{long} HTTP/1.1\r\nHost: a\r\n\r\n"), 414),
        ("GET /decide HTTP/1.1\r\nHost: a\r\nContent_Length: 3\r\n\r\n".to_owned(), 400),
    ] {
        // Behind a target that is too long, nothing is read: it may be a call of gRPC, which gets no page.
        let plain = if status == 414 { "about:blank" } else { "a page" };
        for (more, body) in [("", plain), ("Content-Type: application/grpc\r\n", "about:blank")] {
            let mut client = Client::connect(gateway.http);
            client.write(&head.replacen("Host: a\r\n", &format!("Host: a\r\n{more}"), 1));
            let answer = client.response("GET").unwrap();
            assert_eq!((answer.status, answer.number("x-tollgate-status")), (403, status), "{answer:?}");
            assert!(answer.body.contains(body), "{answer:?}");
        }
    }
    let fields: Vec<String> = many.iter().map(|field| format!("-H{field}")).collect();
    let mut curl = Command::new("curl");
    curl.args(["-s", "-o", "/dev/null", "--http2-prior-knowledge", "-w", "%{http_code} %header{x-tollgate-status}"]);
    let output = curl.args(fields).arg(format!("http://{}/decide", gateway.http)).output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    // An older curl prints no fields.
    assert!(printed.starts_with("403"), "{printed}");
    gateway.expect("tollgate_http_requests_total", &["code=\"403\"", "origin=\"gateway\""], 7.0);
}

#[test]
fn every_call_that_is_answered_has_its_line() {
    let config = format!(
        "listeners: [{{{LISTENER}, decide: [http, ext_authz, rls], answer_within: 10s}}]
access_log: {{to: stdout, when: [allowed, refused, error]}}
limits: {{body_timeout: 20s}}
"
    );
    let mut gateway = Gateway::before_url("").with(&config).start();
    let mut caller = Caller::new(gateway.http);
    let long = "00".repeat((1 << 20) + 1);
    let authority =
        json!({"source": {"address": {"socket_address": {"address": "::1"}}}, "request": {"http": {"method": "GET"}}});
    let invalid = json!({"attributes": {"request": authority["request"]}});
    for (call, code) in [
        (json!({"method": "ShouldRateLimit", "message": {"descriptors": [descriptor("a=1", None)]}}), "OK"),
        (json!({"method": "ShouldRateLimit", "raw": "ff"}), "INVALID_ARGUMENT"),
        (json!({"method": "ShouldRateLimit", "raw": long}), "OK"),
        (json!({"method": "AuthorizationCheck", "message": invalid}), "INVALID_ARGUMENT"),
        (json!({"method": "AuthorizationCheck", "raw": long}), "OK"),
        (json!({"method": "HealthCheck", "message": {}}), "OK"),
        (json!({"method": "Unknown", "message": {}}), "UNIMPLEMENTED"),
    ] {
        assert_eq!(caller.call(&call)["code"], code, "{call}");
    }
    let mut client = gateway.client();
    assert_eq!(client.get("/other", &[]).status, 404);
    assert_eq!(client.get("/decide", &[]).status, 400);
    let lines: Vec<Value> =
        gateway.output().lines().take(9).map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect();
    let shown: Vec<(&str, &str, u64)> = lines
        .iter()
        .map(|line| {
            let text = |name: &str| line[name].as_str().unwrap();
            (text("door"), text("kind"), line["code"].as_u64().unwrap())
        })
        .collect();
    let (allowed, refused, error) = ("allowed", "refused", "error");
    let expected = [
        ("rls", allowed, 200),
        ("rls", error, 200),
        ("rls", refused, 200),
        ("ext_authz", error, 200),
        ("ext_authz", refused, 200),
        ("http", allowed, 200),
        ("http", error, 200),
        ("http", error, 404),
        ("http", refused, 400),
    ];
    assert_eq!(shown, expected, "{lines:?}");
}

#[test]
fn a_connection_ends_whose_certificate_would_not_be_admitted_any_more() {
    let (authority, other) = (Authority::new("ca"), Authority::new("other"));
    let server = authority.issue(&["localhost"]);
    let (kept, revoked) = (authority.issue(&["kept"]), authority.issue(&["revoked"]));
    let entry =
        "{cert_file: s.pem, key_file: s.key, client_ca_file: ca.pem, client_crl_file: crl.pem, client_auth: required}";
    let config = format!(
        "listeners: [{{address: 127.0.0.1:0, decide: [http], original_request: x-forwarded, tls: {{certificates: [{entry}]}}}}]\n"
    );
    let files = [
        ("s.pem", &*server.certificate),
        ("s.key", &*server.key),
        ("ca.pem", &*authority.pem()),
        ("crl.pem", &*authority.revoke(&[])),
    ];
    let gateway = Gateway::deciding().with(&config).files(&files).interval("watch", Duration::from_millis(50)).start();
    let connect = |shown| {
        let settings = TlsSettings::new(&authority.pem(), Some(shown), &[&rustls::version::TLS13]);
        let mut client = settings.connect(gateway.http, "localhost").unwrap();
        assert_eq!(client.try_get("localhost", "/decide").unwrap(), 400);
        client
    };
    let (mut stays, mut ends, mut idle) = (connect(&kept), connect(&revoked), connect(&revoked));
    gateway.replace("crl.pem", &authority.revoke(&[&revoked]));
    eventually("the connection of a revoked certificate ends", || ends.try_get("localhost", "/decide").is_err());
    assert!(idle.is_closed_cleanly(), "an idle connection ends at its next call only");
    for _ in 0..3 {
        assert_eq!(stays.try_get("localhost", "/decide").unwrap(), 400);
    }
    // Neither list is the other authority's.
    gateway.replace("ca.pem", &other.pem());
    gateway.replace("crl.pem", &other.revoke(&[]));
    eventually("those of another authority end", || stays.try_get("localhost", "/decide").is_err());
}
