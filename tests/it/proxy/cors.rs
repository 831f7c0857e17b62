//! CORS: preflights of browsers, and the responses that pages of another origin may read.

use std::io::Write;

use serde_json::Value;

use crate::support::http2::Http2Client;
use crate::support::{Gateway, Response, Upstream, tollgate};

const ORIGIN: (&str, &str) = ("Origin", "https://app.example");
const ASKED: (&str, &str) = ("Access-Control-Request-Method", "PUT");
const CONFIG: &str = "
jwt: {algorithms: [HS256], on_missing: reject, keys: {secret: 0123456789abcdef0123456789abcdef}}
access_log: {to: access.log, when: [allowed, refused, error]}
cors:
  - {match: {path: /public/*}, origins: [\"*\"]}
  - {match: {path: /v1/*}, origins: [\"https://app.example\"], methods: [GET, PUT], headers: [Authorization], credentials: true, max_age: 1h}
check: {allow: [guessable_names]}
rules:
  - {name: all, limit_keys: [ip:address], algorithm_config: {rps: 0.001, burst: 1}}
";

fn cors_fields(response: &Response) -> Vec<(String, String)> {
    let of_cors = |name: &str| name.starts_with("access-control-") || name == "vary";
    let lower = response.fields.iter().map(|(name, value)| (name.to_ascii_lowercase(), value.clone()));
    lower.filter(|(name, _)| of_cors(name)).map(|(name, value)| (name.replace("access-control-", ""), value)).collect()
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn a_preflight_of_a_listed_origin_is_answered_without_credentials_and_charges_nothing() {
    let gateway = Gateway::start(&Upstream::start(), CONFIG);
    let mut client = gateway.client();
    for _ in 0..3 {
        // A body is read and discarded, so that the connection stays usable.
        let answer = client.send("OPTIONS", "/v1/a?b", &[ORIGIN, ASKED, ("X-Request-Id", "mine")], "body");
        assert_eq!((answer.status, &*answer.body, answer.field("x-request-id").as_deref()), (204, "", Some("mine")));
        assert_eq!(answer.field("content-length"), None);
        let expected = [
            ("vary", "Origin"),
            ("allow-origin", "https://app.example"),
            ("allow-credentials", "true"),
            ("allow-methods", "GET, PUT"),
            ("allow-headers", "authorization"),
            ("max-age", "3600"),
        ];
        assert_eq!(cors_fields(&answer), pairs(&expected));
    }
    let other = client.send("OPTIONS", "/v1/a", &[("Origin", "https://evil.example"), ASKED], "");
    assert_eq!((other.status, cors_fields(&other)), (401, pairs(&[("vary", "Origin")])));
    // It is refused like any other request that has two readings.
    assert_eq!(client.send("OPTIONS", "/v1/a", &[ORIGIN, ASKED, ("Connection", "authorization")], "").status, 400);
    gateway.expect("rate_limiter_decisions_total", &["result=\"unlimited\""], 3.0);
    gateway.expect("tollgate_http_requests_total", &["code=\"204\"", "origin=\"gateway\"", "method=\"OPTIONS\""], 3.0);
    gateway.expect("rate_limiter_requests_total", &["rule=\"all\""], 0.0);
    crate::support::eventually("the log has all of them", || {
        std::fs::read_to_string(gateway.file("access.log")).unwrap().lines().count() == 5
    });
    let log = std::fs::read_to_string(gateway.file("access.log")).unwrap();
    let first: Value = serde_json::from_str(log.lines().next().unwrap()).unwrap();
    assert_eq!((&first["kind"], &first["code"], first.get("decision_us")), (&"allowed".into(), &204.into(), None));
    // What was not decided is not replayed.
    let file = gateway.file("gateway.yaml");
    let replayed =
        tollgate(&["replay", "-c", file.to_str().unwrap(), "--json", gateway.file("access.log").to_str().unwrap()]);
    assert_eq!(replayed.json()["requests"], 0, "{replayed:?}");
}

#[test]
fn our_own_responses_can_be_read_by_pages_of_listed_origins() {
    let gateway = Gateway::start(&Upstream::start(), &CONFIG.replace("on_missing: reject", "on_missing: anonymous"));
    let mut client = gateway.client();
    let exposed =
        "RateLimit-Policy, RateLimit, RateLimit-Limit, RateLimit-Remaining, RateLimit-Reset, Retry-After, X-Request-Id";
    let credentials = [
        ("vary", "Origin"),
        ("allow-origin", "https://app.example"),
        ("allow-credentials", "true"),
        ("expose-headers", exposed),
    ];
    let passed = client.get("/v1/a", &[ORIGIN]);
    assert_eq!((passed.status, cors_fields(&passed)), (200, pairs(&credentials)));
    let refused = client.get("/v1/a", &[ORIGIN]);
    assert_eq!((refused.status, cors_fields(&refused)), (429, pairs(&credentials)));
    assert!(refused.number("retry-after") > 0);
    let anybody = client.get("/public/a", &[("Origin", "https://evil.example")]);
    let public = [("vary", "Origin"), ("allow-origin", "*"), ("expose-headers", exposed)];
    assert_eq!((anybody.status, cors_fields(&anybody)), (429, pairs(&public)));
    let no_page = client.get("/v1/a", &[]);
    assert_eq!(cors_fields(&no_page), pairs(&[("vary", "Origin")]));
    let unmatched = client.get("/other", &[ORIGIN]);
    assert_eq!(cors_fields(&unmatched), []);
    let invalid = client.get("/v1/a", &[ORIGIN, ("Authorization", "Bearer x")]);
    assert_eq!((invalid.status, cors_fields(&invalid)), (401, pairs(&credentials)));
}

#[test]
fn a_response_of_the_upstream_gets_only_what_it_lacks() {
    let upstream = Upstream::answering(|_, stream| {
        let fields =
            "Access-Control-Allow-Origin: https://b.example\r\nVary: Accept\r\nAccess-Control-Expose-Headers: X-B\r\n";
        let _ = write!(stream, "HTTP/1.1 200 OK\r\n{fields}Content-Length: 2\r\n\r\nok");
    });
    let config = "cors: [{origins: [\"https://app.example\"], credentials: true}]\nheaders: []";
    let gateway = Gateway::start(&upstream, config);
    let response = gateway.client().get("/", &[ORIGIN]);
    let expected = [
        ("allow-origin", "https://b.example"),
        ("vary", "Accept"),
        ("expose-headers", "X-B"),
        ("vary", "Origin"),
        ("expose-headers", "Retry-After, X-Request-Id"),
    ];
    assert_eq!(cors_fields(&response), pairs(&expected));
}

#[test]
fn answers_of_routes_and_faults_of_upstreams_have_the_fields_too() {
    let config = "upstreams: {gone: {endpoints: [\"http://127.0.0.1:1\"]}}
routes:
  - {name: closed, match: {path: /closed}, respond: {status: 503, body: later}}
  - {name: rest, upstream: gone}
cors: [{origins: [\"https://app.example\"]}]";
    let gateway = Gateway::before_url("").with(config).start();
    let mut client = gateway.client();
    for (path, status) in [("/closed", 503), ("/", 502)] {
        let response = client.get(path, &[ORIGIN]);
        assert_eq!(response.status, status);
        assert_eq!(response.field("access-control-allow-origin").as_deref(), Some("https://app.example"), "{path}");
        client = gateway.client();
    }
}

#[test]
fn explain_says_what_a_browser_may() {
    let gateway = Gateway::start(&Upstream::start(), CONFIG);
    let file = gateway.file("gateway.yaml");
    let explain = |more: &[&str]| tollgate(&[&["explain", "-c", file.to_str().unwrap()], more].concat());
    let asked = explain(&[
        "-X",
        "OPTIONS",
        "-H",
        "Origin: https://app.example",
        "-H",
        "Access-Control-Request-Method: PUT",
        "/v1/a",
    ]);
    assert!(asked.out.contains("ANSWERED 204: a preflight, by cors[1]\n"), "{asked:?}");
    let other = explain(&["-H", "Origin: https://evil.example", "/v1/a"]);
    assert!(other.out.contains("cors[1] does not list \"https://evil.example\""), "{other:?}");
    let public = explain(&["-H", "Origin: https://evil.example", "/public/a"]);
    assert!(public.out.contains("pages of \"https://evil.example\" may read the answer: cors[0]"), "{public:?}");
}

#[test]
fn a_reload_changes_who_may() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, CONFIG);
    let asks = || gateway.client().send("OPTIONS", "/v1/a", &[ORIGIN, ASKED], "").status;
    assert_eq!(asks(), 204);
    gateway.reload(&upstream, &CONFIG.replace("https://app.example", "https://other.example"));
    assert_eq!(asks(), 401);
}

#[test]
fn a_page_may_read_that_its_request_was_too_large_or_malformed() {
    let config = "cors: [{origins: ['https://app.example'], credentials: true}]\nlimits: {target_bytes: 1KiB, body_bytes: 1KiB}\n";
    let gateway = Gateway::start(&Upstream::start(), config);
    for (origin, allowed) in [("https://app.example", Some("https://app.example")), ("https://evil.example", None)] {
        let long = format!("/{}", "a".repeat(2000));
        for (target, length, status) in [(&*long, "0", 414), ("/", "2000", 413), ("/", "x", 400)] {
            let mut client = gateway.client();
            client.write(&format!(
                "POST {target} HTTP/1.1\r\nHost: a\r\nOrigin: {origin}\r\nContent-Length: {length}\r\n\r\n"
            ));
            let response = client.response("POST").unwrap();
            assert_eq!(response.status, status);
            assert_eq!(response.field("access-control-allow-origin").as_deref(), allowed, "{response:?}");
            assert_eq!(response.field("vary").as_deref(), Some("Origin"));
        }
    }
}

/// A path to which the entry with a condition applies, and a path without an entry.
const PATHS: [(&str, Option<&str>); 2] = [("/v1/a", Some("https://app.example")), ("/other", None)];

fn with_a_condition(rest: &str) -> Gateway {
    let limits = "header_timeout: 1s, body_timeout: 500ms, target_bytes: 1KiB, body_bytes: 1KiB, headers: 8";
    Gateway::before(&Upstream::start())
        .with("listeners: [{address: 127.0.0.1:0, protocols: [h2c, http/1.1]}]")
        .with(&format!(
            "cors: [{{match: {{path: /v1/*}}, origins: ['https://app.example']}}]\nlimits: {{{limits}}}\n{rest}"
        ))
        .start()
}

#[test]
fn a_condition_decides_about_rejected_requests_whose_head_was_read() {
    let gateway = with_a_condition("");
    let many = "X: 1\r\n".repeat(9);
    let long = format!("?{}", "a".repeat(1100));
    for (path, allowed) in PATHS {
        for (query, fields, status) in [
            ("", "Host: a\r\nContent-Length: 2000\r\n", 413),
            ("", "Host: a\r\nContent-Length: x\r\n", 400),
            ("", "", 400),
            (&*long, "Host: a\r\n", 414),
            ("", &*format!("Host: a\r\n{many}"), 431),
            // A body that stops.
            ("", "Host: a\r\nContent-Length: 3\r\n", 408),
        ] {
            let mut client = gateway.client();
            client.write(&format!("POST {path}{query} HTTP/1.1\r\nOrigin: https://app.example\r\n{fields}\r\n"));
            let response = client.response("POST").unwrap();
            assert_eq!(response.status, status, "{fields}");
            assert_eq!(response.field("access-control-allow-origin").as_deref(), allowed, "{response:?}");
        }
    }
    // A head whose end never arrives: which entry decides is not known.
    let mut client = gateway.client();
    client.write("POST /v1/a HTTP/1.1\r\nOrigin: https://app.example\r\nHost: a\r\n");
    let response = client.response("POST").unwrap();
    assert_eq!((response.status, response.field("access-control-allow-origin")), (408, None));
}

#[test]
fn the_same_holds_over_http2() {
    let gateway = with_a_condition("");
    let mut client = Http2Client::connect(gateway.http);
    const ORIGIN: (&str, &str) = ("origin", "https://app.example");
    let many: Vec<_> = [ORIGIN].into_iter().chain((0..9).map(|_| ("x", "1"))).collect();
    let long = "a".repeat(1100);
    for (path, allowed) in PATHS {
        for (target, fields, status) in [
            (path.to_owned(), &[ORIGIN, ("content-length", "2000")][..], 413),
            (path.to_owned(), &[ORIGIN, ("host", "b")], 400),
            (format!("{path}?{long}"), &[ORIGIN], 414),
            (path.to_owned(), &many, 431),
        ] {
            let response = client.begin("POST", &target, fields, false).response().unwrap();
            assert_eq!(response.status, status, "{target} {fields:?}");
            let field = response.head.get("access-control-allow-origin").map(|value| value.to_str().unwrap());
            assert_eq!(field, allowed, "{target} {fields:?}");
        }
        let mut stalled = client.begin("POST", path, &[ORIGIN], false);
        stalled.write(b"begun", false).unwrap();
        let response = stalled.response().unwrap();
        let field = response.head.get("access-control-allow-origin").map(|value| value.to_str().unwrap());
        assert_eq!((response.status, field), (408, allowed));
    }
}
