//! Invalid and valid heads as bytes on a socket, split in many ways.

use std::time::Duration;

use crate::support::byte_lists::{entries, unescaped};
use crate::support::{Client, Gateway, Response, Upstream};

/// Invalid heads by name, with the status of the response to each.
fn bad_heads() -> Vec<(&'static str, Vec<u8>, u16)> {
    let head = |(status, text): (&'static str, &'static str)| {
        let (name, bytes) = text.split_once(": ").unwrap();
        (name, unescaped(bytes), status.parse().unwrap())
    };
    entries(include_str!("../../heads.txt")).map(head).collect()
}

/// The sizes of the parts in which bytes are written.
#[derive(Clone, Copy, Debug)]
enum Split {
    Whole,
    Bytes,
    Random,
}

/// Writes the bytes until a write fails, because the other side has closed the connection.
fn send(client: &mut Client, bytes: &[u8], split: Split, random: &mut fastrand::Rng) {
    let mut rest = bytes;
    while !rest.is_empty() {
        // Byte by byte, a long head would take too long.
        let most = match split {
            Split::Whole => rest.len(),
            Split::Bytes => 1 + bytes.len() / 500,
            Split::Random => random.usize(1..=1 + bytes.len() / 4),
        };
        let (part, behind) = rest.split_at(most.min(rest.len()));
        if client.write_bytes(part).is_err() {
            return;
        }
        rest = behind;
        if !matches!(split, Split::Whole) {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

const SPLITS: [Split; 3] = [Split::Whole, Split::Bytes, Split::Random];

/// Whether a response has everything that the rejection of a head must have.
fn is_refusal(response: &Response, status: u16) -> bool {
    let fields =
        ["content-type", "x-tollgate-reason", "connection", "cache-control"].map(|field| response.field(field));
    let expected = ["application/problem+json", "bad_request", "close", "no-store"].map(|value| Some(value.to_owned()));
    let id = response.field("x-request-id").unwrap_or_default();
    let body: serde_json::Value = serde_json::from_str(&response.body).unwrap_or_default();
    let has_date_only = response.field("date").is_some() && response.field("server").is_none();
    (response.status, fields) == (status, expected)
        && body["status"] == status
        && body["request_id"] == id
        && has_date_only
}

#[track_caller]
fn check(name: &str, response: &Response, status: u16) {
    assert!(is_refusal(response, status), "{name}, {status}: {response:?}");
}

#[test]
fn an_invalid_head_is_answered_and_never_forwarded_however_it_is_split() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "");
    let mut random = fastrand::Rng::with_seed(7);
    let heads = bad_heads();
    assert!(heads.len() >= 100, "{} heads", heads.len());
    let mut wrong = Vec::new();
    for (name, bytes, status) in &heads {
        for split in SPLITS {
            let mut client = gateway.client();
            send(&mut client, bytes, split, &mut random);
            match client.response("GET") {
                Ok(response) if is_refusal(&response, *status) && client.is_closed() => {}
                other => wrong.push(format!("{name}, {split:?}: {other:?}")),
            }
        }
    }
    assert!(wrong.is_empty(), "{} of them are wrong:\n{}", wrong.len(), wrong.join("\n"));
    assert_eq!(upstream.count(), 0, "{:?}", upstream.seen());
    let number = |count: usize| f64::from(u32::try_from(count * SPLITS.len()).unwrap());
    let answered = number(heads.len());
    let posts = number(heads.iter().filter(|(_, bytes, _)| bytes.starts_with(b"POST ")).count());
    gateway.expect("tollgate_refused_requests_total", &["bad_request"], answered);
    gateway.expect("tollgate_http_requests_total", &["origin=\"gateway\""], answered);
    gateway.expect("tollgate_http_requests_total", &["method=\"POST\"", "code=\"400\""], posts);
    gateway.expect("tollgate_http_request_duration_seconds_count", &["gateway"], answered);
    gateway.expect("rate_limiter_decisions_total", &[], 0.0);
    gateway.expect("tollgate_http_connections", &[], 0.0);
}

#[test]
fn a_valid_head_is_forwarded_however_it_is_split() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "");
    let mut random = fastrand::Rng::with_seed(7);
    let target = |length: usize| format!("/{}", "x".repeat(length - 1));
    let fields = "X: y\r\n".repeat(99);
    // Each with the request line that arrives.
    let heads: Vec<(String, String)> = [
        ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", "GET / HTTP/1.1"),
        ("\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", "GET / HTTP/1.1"),
        ("GET / HTTP/1.0\r\n\r\n", "GET / HTTP/1.1"),
        ("QUERY / HTTP/1.1\r\nhost:a\r\n\r\n", "QUERY / HTTP/1.1"),
        ("PROPFIND / HTTP/1.1\r\nHost: \t a:80 \r\n\r\n", "PROPFIND / HTTP/1.1"),
        ("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", "OPTIONS * HTTP/1.1"),
        ("GET http://a:80/b?c HTTP/1.1\r\nHost: a:80\r\n\r\n", "GET /b?c HTTP/1.1"),
        (
            "GET /\u{e9}{|}^\\[]'?$&(;)@:!*~%zz HTTP/1.1\r\nHost: [::1]:80\r\n\r\n",
            "GET /\u{e9}{|}^\\[]'?$&(;)@:!*~%zz HTTP/1.1",
        ),
        ("GET / HTTP/1.1\r\nHost: a\r\nX:\r\nY: \u{e9}\t(\"\r\n\r\n", "GET / HTTP/1.1"),
        ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0005\r\n\r\nhello", "POST / HTTP/1.1"),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\n\r\n5;a=b\r\nhello\r\n0\r\nX: y\r\n\r\n",
            "POST / HTTP/1.1",
        ),
        ("GET / HTTP/1.1\r\nHost: a\r\nConnection: a, b, c, d, e, f, g, h, , i\r\n\r\n", "GET / HTTP/1.1"),
        ("GET / HTTP/1.1\r\nHost: a\r\nUpgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\n\r\n", "GET / HTTP/1.1"),
    ]
    .map(|(head, line)| (head.to_owned(), line.to_owned()))
    .into_iter()
    .chain([
        (format!("GET {} HTTP/1.1\r\nHost: a\r\n\r\n", target(8192)), format!("GET {} HTTP/1.1", target(8192))),
        (format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n"), "GET / HTTP/1.1".to_owned()),
        (format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "x".repeat(65_536 - 32)), "GET / HTTP/1.1".to_owned()),
    ])
    .collect();
    for (head, line) in &heads {
        for split in SPLITS {
            let mut client = gateway.client();
            send(&mut client, head.as_bytes(), split, &mut random);
            let shown: String = head.chars().take(200).collect();
            assert_eq!(client.response("GET").unwrap().status, 200, "{shown}");
            let seen = upstream.last();
            assert_eq!(&seen.line, line, "{shown}");
            let body: &[u8] = if head.starts_with("POST") { b"hello" } else { b"" };
            assert_eq!(seen.body, body, "{shown}, {split:?}");
        }
    }
    assert_eq!(upstream.count(), heads.len() * SPLITS.len());
}

#[test]
fn a_rejected_head_keeps_its_id_and_has_the_fields_that_its_status_requires() {
    let gateway = Gateway::start(&Upstream::start(), "log: {level: debug}");
    let ask = |head: &str, method: &str| {
        let mut client = gateway.client();
        client.write(head);
        client.response(method).unwrap()
    };
    let kept = ask("GET / HTTP/1.1\r\nX-Request-ID: mine-1\r\nHost : a\r\n\r\n", "GET");
    assert_eq!((kept.status, kept.field("x-request-id").as_deref()), (400, Some("mine-1")));
    let made = ask("GET / HTTP/1.1\r\nX-Request-ID: a\"b\r\nHost : a\r\n\r\n", "GET");
    assert_eq!(made.field("x-request-id").unwrap().len(), 32);
    let trace = ask("TRACE / HTTP/1.1\r\nHost: a\r\n\r\n", "TRACE");
    assert_eq!(trace.field("allow").as_deref(), Some("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"));
    let head = ask("HEAD / HTTP/1.1\r\n\r\n", "HEAD");
    assert_eq!((head.status, head.number("content-length") > 0), (400, true));
    gateway.expect_logged("head refused");
    gateway.expect_logged("bad field name");
}

#[test]
fn limits_are_those_of_the_configuration() {
    let upstream = Upstream::start();
    let gateway =
        Gateway::start(&upstream, "limits: {header_bytes: 1KiB, headers: 3, target_bytes: 64B, body_bytes: 10B}");
    let ask = |text: String| {
        let mut client = gateway.client();
        client.write(&text);
        client.response("POST").unwrap()
    };
    let target = |length: usize| ask(format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "x".repeat(length - 1)));
    assert_eq!(target(64).status, 200);
    check("target", &target(65), 414);
    let bytes = |length: usize| ask(format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "x".repeat(length - 32)));
    assert_eq!(bytes(1024).status, 200);
    check("head", &bytes(1025), 431);
    let fields = |count: usize| ask(format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "X: y\r\n".repeat(count - 1)));
    assert_eq!(fields(3).status, 200);
    check("fields", &fields(4), 431);
    let body = |length: usize| {
        ask(format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n{}", "x".repeat(length)))
    };
    assert_eq!(body(10).status, 200);
    check("body", &body(11), 413);
    assert_eq!(upstream.count(), 4);
}

#[test]
fn a_method_that_is_not_registered_is_forwarded_only_if_the_file_names_it() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &upstream,
        "
limits: {extra_methods: [PURGE, m-search]}
rules: [{name: ip, limit_keys: [ip:address], algorithm_config: {rate: 9/day}}]",
    );
    for (method, status) in [
        ("PURGE", 200),
        ("m-search", 200),
        ("GET", 200),
        ("purge", 400),
        ("M-SEARCH", 400),
        ("post", 400),
        ("trace", 405),
    ] {
        let mut client = gateway.client();
        client.write(&format!("{method} / HTTP/1.1\r\nHost: a\r\n\r\n"));
        let response = client.response(method).unwrap();
        assert_eq!(response.status, status, "{method}");
        assert_eq!(response.field("ratelimit").is_some(), status == 200, "{method}");
    }
    assert_eq!(upstream.count(), 3);
}

#[test]
fn extra_methods_change_with_a_reload_also_on_open_connections() {
    let upstream = Upstream::start();
    let rules = "rules: [{name: ip, limit_keys: [ip:address], algorithm_config: {rate: 9/day}}]";
    let gateway = Gateway::start(&upstream, rules);
    let mut open = gateway.client();
    assert_eq!(open.get("/", &[]).status, 200);
    let purge = |client: &mut Client| {
        client.write("PURGE / HTTP/1.1\r\nHost: a\r\n\r\n");
        client.response("PURGE").unwrap().status
    };
    assert_eq!(purge(&mut gateway.client()), 400);
    gateway.reload(&upstream, &format!("limits: {{extra_methods: [PURGE]}}\n{rules}"));
    assert_eq!([purge(&mut open), purge(&mut gateway.client())], [200, 200]);
    gateway.reload(&upstream, &format!("limits: {{extra_methods: [BAN]}}\n{rules}"));
    assert_eq!([purge(&mut open), purge(&mut gateway.client())], [400, 400]);
    gateway.expect("rate_limiter_requests_total", &["rule=\"ip\""], 3.0);
}

#[test]
fn a_request_that_is_rejected_for_its_head_is_not_charged() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &upstream,
        "
limits: {body_bytes: 10B}
rules: [{name: ip, limit_keys: [ip:address], algorithm_config: {rate: 2/day}}]",
    );
    for head in [
        "GET / HTTP/1.1\r\nHost: a\r\nConnection: host\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nConnection: x-forwarded-for\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nAuthorization: Basic eA==\r\nConnection: authorization\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nCookie: a=b\r\nConnection: Cookie\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 11\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n",
    ] {
        let mut client = gateway.client();
        client.write(head);
        let response = client.response("GET").unwrap();
        assert!([400, 413].contains(&response.status), "{head}: {response:?}");
        assert_eq!(response.field("ratelimit"), None, "{head}");
    }
    gateway.expect("rate_limiter_requests_total", &[], 0.0);
    assert_eq!(gateway.client().get("/", &[]).number("ratelimit-remaining"), 1);
}

#[test]
fn a_client_that_goes_on_sending_can_still_read_that_it_was_rejected() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "limits: {body_bytes: 1MiB}");
    let body = vec![b'x'; 20 << 20];
    for _ in 0..3 {
        let mut client = gateway.client();
        client.write(&format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", body.len()));
        client.write_bytes(&body).unwrap();
        check("a large body", &client.response("POST").unwrap(), 413);
        let mut client = gateway.client();
        client.write("G(T / HTTP/1.1\r\n");
        client.write_bytes(&body).unwrap();
        check("bytes", &client.response("POST").unwrap(), 400);
    }
    assert_eq!(upstream.count(), 0);
}
