//! Refusals, and the responses of routes.

use super::before;
use crate::support::authority::Authority;
use crate::support::curl::curl;
use crate::support::http2::Http2Client;
use crate::support::http2_frames::{END_STREAM, FrameClient, HEADERS, request};
use crate::support::tls_client::TlsSettings;
use crate::support::{Gateway, Upstream, eventually};
use crate::tls::BOTH;

const RULE: &str =
    "rules: [{name: one, match: {path: /limited}, limit_keys: [ip:address], algorithm_config: {rate: 1/day}}]\n";

#[test]
fn a_refusal_has_all_fields_and_ends_its_stream_alone() {
    let upstream = Upstream::start();
    let gateway = before(&upstream).with(RULE).with("access_log: {to: log, when: [refused]}").start();
    let mut client = Http2Client::connect(gateway.http);
    let granted = client.get("/limited", &[]);
    assert_eq!((granted.status, granted.field("ratelimit")), (200, "\"one\";r=0;t=86400"));
    let refused = client.get("/limited", &[]);
    assert_eq!(refused.status, 429);
    for (name, value) in [
        ("x-tollgate-reason", "token_bucket_exceeded"),
        ("cache-control", "no-store"),
        ("content-type", "application/problem+json"),
        ("ratelimit-remaining", "0"),
    ] {
        assert_eq!(refused.field(name), value);
    }
    assert!(refused.field("retry-after").parse::<u64>().unwrap() > 0);
    let body = serde_json::from_slice::<serde_json::Value>(&refused.body).unwrap();
    assert_eq!(body["violated-policies"], serde_json::json!(["one"]));
    let head = client.send("HEAD", "/limited", &[], &[]);
    assert_eq!((head.status, head.body.len()), (429, 0));
    assert_eq!(client.get("/", &[]).status, 200);
    gateway.expect("rate_limiter_rejected_total", &["rule=\"one\""], 2.0);
    gateway.expect("tollgate_http_connections", &["protocol=\"h2c\""], 1.0);
    let log = || std::fs::read_to_string(gateway.file("log")).unwrap();
    eventually("the refusals are logged", || log().matches("\"rule\":\"one\"").count() == 2);
    assert_eq!(upstream.count(), 2);
}

#[test]
fn a_grpc_call_is_refused_with_trailers_only() {
    let upstream = Upstream::start();
    let gateway = before(&upstream).with(RULE).start();
    let mut client = Http2Client::connect(gateway.http);
    assert_eq!(client.get("/limited", &[]).status, 200);
    for kind in ["application/grpc", "application/grpc+proto"] {
        let refused = client.send("POST", "/limited", &[("content-type", kind), ("te", "trailers")], &[b"\0\0\0\0\0"]);
        assert_eq!((refused.status, refused.field("grpc-status")), (200, "8"));
        assert_eq!(refused.field("grpc-message"), "token_bucket_exceeded");
        assert!(refused.head.contains_key("retry-after"));
    }
    // The stream ends with the head: clients take these fields for trailers only there.
    let mut client = FrameClient::connect(gateway.http);
    client.write(&request(1, "POST", "/limited", &[("content-type", "application/grpc")], END_STREAM));
    let head = client.until(|frame| frame.kind == HEADERS);
    assert_eq!(head.flags & END_STREAM, END_STREAM);
}

#[test]
fn a_client_that_uploads_sees_a_refusal_that_comes_before_the_end() {
    let (upstream, authority) = (Upstream::start(), Authority::new("ca"));
    let issued = authority.issue(&["a.test"]);
    let listener = "{address: 127.0.0.1:0, tls: {certificates: [{cert_file: a.pem, key_file: a.key}]}}";
    let gateway = Gateway::before(&upstream)
        .with(&format!("listeners: [{listener}]\nlimits: {{body_bytes: 4MiB}}\n{RULE}"))
        .files(&[("ca.pem", &authority.pem()), ("a.pem", &issued.certificate), ("a.key", &issued.key)])
        .start();
    let mut client = Http2Client::connect_tls(&TlsSettings::new(&authority.pem(), None, &BOTH), gateway.http, "a.test");
    assert_eq!(client.get("/limited", &[]).status, 200);
    std::fs::write(gateway.file("body"), vec![b'x'; 3_000_000]).unwrap();
    let upload = ["--http2", "-T", "body", "--request-target", "/limited"];
    for expect in ["Expect:", "Expect: 100-continue"] {
        let output = curl(&gateway, "a.test", &[&upload[..], &["-H", expect]].concat());
        assert_eq!((output.code, output.status), (0, 429), "{output:?}");
        assert!(output.text.contains("HTTP/2 429"), "{output:?}");
    }
    // Too long, with a length that says so and without.
    std::fs::write(gateway.file("body"), vec![b'x'; 5_000_000]).unwrap();
    for length in ["Expect:", "Transfer-Encoding: chunked"] {
        let output = curl(&gateway, "a.test", &["--http2", "-T", "body", "-H", length]);
        assert_eq!(output.status, 413, "{output:?}");
    }
    assert!(upstream.seen().iter().all(|seen| seen.line.starts_with("GET /limited")), "{:?}", upstream.seen().len());
    gateway.expect("tollgate_http_connections", &["protocol=\"h2\""], 1.0);
}

#[test]
fn routes_answer_and_redirect() {
    let upstream = Upstream::start();
    let routes = format!(
        "upstreams: {{api: {{endpoints: [\"http://{}\"]}}}}\n\
         routes:\n\
         - {{name: legacy, match: {{path: /old/*}}, redirect: {{code: 308, replace_prefix: /v1}}}}\n\
         - {{name: fixed, match: {{path: /fixed}}, respond: {{status: 503, body: soon}}}}\n\
         - {{name: api, match: {{path: /v1/*}}, upstream: api, rewrite: {{strip_prefix: /v1}}}}\n",
        upstream.address
    );
    let gateway = before(&upstream).with(&routes).start();
    let mut client = Http2Client::connect(gateway.http);
    let moved = client.get("/old/a?b", &[]);
    assert_eq!((moved.status, moved.field("location")), (308, "/v1/a?b"));
    let fixed = client.get("/fixed", &[]);
    assert_eq!((fixed.status, fixed.text()), (503, "soon".to_owned()));
    assert_eq!(client.get("/v1/a?b=/v1", &[]).status, 200);
    assert_eq!(upstream.last().line, "GET /a?b=/v1 HTTP/1.1");
    let missing = client.get("/other", &[]);
    assert_eq!((missing.status, missing.field("x-tollgate-reason")), (404, "no_route"));
}

#[test]
fn pages_of_other_origins_and_texts_of_the_operator_are_served() {
    let upstream = Upstream::start();
    let config = "
cors: [{origins: [\"https://app.example\"], methods: [GET, PUT], headers: [authorization], max_age: 1h}]
error_pages: [{status: [400, 429], body_file: page.html, headers: {X-Upgrade: https://example.com/plans}}]
";
    let page = "<p>{status} {request_id}</p>";
    let gateway = before(&upstream).with(&format!("{RULE}{config}")).file("page.html", page).start();
    let mut client = Http2Client::connect(gateway.http);
    let origin = ("origin", "https://app.example");
    let preflight = client.send("OPTIONS", "/limited", &[origin, ("access-control-request-method", "PUT")], &[]);
    assert_eq!((preflight.status, preflight.field("access-control-allow-methods")), (204, "GET, PUT"));
    assert!(!preflight.head.contains_key("content-length") && upstream.count() == 0);
    let granted = client.get("/limited", &[origin]);
    assert_eq!((granted.status, granted.field("access-control-allow-origin")), (200, "https://app.example"));
    let refused = client.get("/limited", &[origin, ("x-request-id", "mine")]);
    assert_eq!((refused.status, refused.text()), (429, "<p>429 mine</p>".to_owned()));
    for (name, value) in [
        ("content-type", "text/html; charset=utf-8"),
        ("x-upgrade", "https://example.com/plans"),
        ("x-tollgate-reason", "token_bucket_exceeded"),
        ("access-control-allow-origin", "https://app.example"),
        ("vary", "Origin"),
    ] {
        assert_eq!(refused.field(name), value, "{name}");
    }
    // A head that is refused before it is a request has the page as well.
    let invalid = client.get("/", &[("host", "b.test"), ("x-request-id", "mine")]);
    assert_eq!((invalid.status, invalid.text()), (400, "<p>400 mine</p>".to_owned()));
}

#[test]
fn a_request_for_another_certificate_than_that_of_its_connection_is_misdirected() {
    let (upstream, authority) = (Upstream::start(), Authority::new("ca"));
    let (first, second) = (authority.issue(&["a.test"]), authority.issue(&["b.test"]));
    let certificates = "[{cert_file: a.pem, key_file: a.key}, {cert_file: b.pem, key_file: b.key}]";
    let gateway = Gateway::before(&upstream)
        .with(&format!(
            "listeners: [{{address: 127.0.0.1:0, tls: {{strict_sni: true, certificates: {certificates}}}}}]"
        ))
        .files(&[("a.pem", &first.certificate), ("a.key", &first.key)])
        .files(&[("b.pem", &second.certificate), ("b.key", &second.key)])
        .start();
    let settings = TlsSettings::new(&authority.pem(), None, &BOTH);
    let mut client = Http2Client::connect_tls(&settings, gateway.http, "a.test");
    assert_eq!(client.get("/", &[]).status, 200);
    assert_eq!(client.get_of("b.test", "/").status, 421);
    assert_eq!(client.get("/", &[]).status, 200);
}
