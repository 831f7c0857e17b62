//! What is no head, and what is one: bytes on a socket, split in every way.

use std::time::Duration;

use crate::support::{Client, Gateway, Response, Upstream};

/// Each by name, with the status that answers it.
fn bad_heads() -> Vec<(&'static str, Vec<u8>, u16)> {
    let mut heads: Vec<(&'static str, Vec<u8>, u16)> = Vec::new();
    let mut add = |name, bytes: &[u8], status| heads.push((name, bytes.to_vec(), status));

    // RFC 9112, section 3: the request line.
    add("a method that is none", b"G(T / HTTP/1.1\r\nHost: a\r\n\r\n", 400);
    add("no method", b" / HTTP/1.1\r\nHost: a\r\n\r\n", 400);
    add("a method without an end", &[b'A'; 100], 400);
    add("nothing but a method", b"GET\r\nHost: a\r\n\r\n", 400);
    add("HTTP/0.9", b"GET /\r\n\r\n", 400);
    add("HTTP/1.2", b"GET / HTTP/1.2\r\nHost: a\r\n\r\n", 400);
    add("HTTP/2.0", b"GET / HTTP/2.0\r\nHost: a\r\n\r\n", 400);
    add("HTTP/11", b"GET / HTTP/11\r\nHost: a\r\n\r\n", 400);
    add("http/1.1", b"GET / http/1.1\r\nHost: a\r\n\r\n", 400);
    add("two spaces", b"GET  / HTTP/1.1\r\nHost: a\r\n\r\n", 400);
    add("a tab", b"GET\t/ HTTP/1.1\r\nHost: a\r\n\r\n", 400);
    add("a space in the target", b"GET /a b HTTP/1.1\r\nHost: a\r\n\r\n", 400);
    add("a space behind the version", b"GET / HTTP/1.1 \r\nHost: a\r\n\r\n", 400);
    add("two empty lines before", b"\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", 400);
    add("a bare line feed before", b"\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", 400);
    add("HTTP/2, as it begins", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400);
    add("TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400);
    add("a PROXY line that nobody asked for", b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\nGET / HTTP/1.1\r\n\r\n", 400);
    add("Redis", b"*1\r\n$4\r\nPING\r\n", 400);

    // Methods that make a proxy something else.
    add("TRACE", b"TRACE / HTTP/1.1\r\nHost: a\r\n\r\n", 405);
    add("CONNECT", b"CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n", 405);

    // Section 3.2: the target.
    add("a fragment", b"GET /#a HTTP/1.1\r\nHost: a\r\n\r\n", 400);
    add("a control byte", b"GET /\x01 HTTP/1.1\r\nHost: a\r\n\r\n", 400);
    add("NUL", b"GET /\0 HTTP/1.1\r\nHost: a\r\n\r\n", 400);
    add("DEL", b"GET /\x7f HTTP/1.1\r\nHost: a\r\n\r\n", 400);
    add("not UTF-8", b"GET /\xff HTTP/1.1\r\nHost: a\r\n\r\n", 400);
    add("overlong UTF-8", b"GET /\xc0\xaf HTTP/1.1\r\nHost: a\r\n\r\n", 400);
    add("angle brackets", b"GET /<script> HTTP/1.1\r\nHost: a\r\n\r\n", 400);
    add("no slash", b"GET a HTTP/1.1\r\nHost: a\r\n\r\n", 400);
    add("only a query", b"GET ?a HTTP/1.1\r\nHost: a\r\n\r\n", 400);
    add("an asterisk, but not for OPTIONS", b"GET * HTTP/1.1\r\nHost: a\r\n\r\n", 400);
    add("an authority, but not for CONNECT", b"GET a:80 HTTP/1.1\r\nHost: a:80\r\n\r\n", 400);
    add("another host in the target", b"GET http://b/ HTTP/1.1\r\nHost: a\r\n\r\n", 400);
    add("another port in the target", b"GET http://a:81/ HTTP/1.1\r\nHost: a:80\r\n\r\n", 400);
    add("another case in the target", b"GET http://A/ HTTP/1.1\r\nHost: a\r\n\r\n", 400);
    add("a user in the target", b"GET http://u@a/ HTTP/1.1\r\nHost: a\r\n\r\n", 400);
    add("a user in both", b"GET http://u@a/ HTTP/1.1\r\nHost: u@a\r\n\r\n", 400);
    add("no host in the target", b"GET http:///a HTTP/1.1\r\nHost: a\r\n\r\n", 400);
    add("a backslash in the authority", b"GET http://a\\b/ HTTP/1.1\r\nHost: a\r\n\r\n", 400);
    add("one slash", b"GET http:/a HTTP/1.1\r\nHost: a\r\n\r\n", 400);
    add("another scheme", b"GET ftp://a/ HTTP/1.1\r\nHost: a\r\n\r\n", 400);

    // Host.
    add("no Host", b"GET / HTTP/1.1\r\n\r\n", 400);
    add("two Hosts", b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400);
    add("the same Host twice", b"GET / HTTP/1.1\r\nHost: a\r\nhost: a\r\n\r\n", 400);
    add("two Hosts in HTTP/1.0", b"GET / HTTP/1.0\r\nHost: a\r\nHost: a\r\n\r\n", 400);
    add("an empty Host", b"GET / HTTP/1.1\r\nHost: \r\n\r\n", 400);
    add("two in one Host", b"GET / HTTP/1.1\r\nHost: a, b c\r\n\r\n", 400);
    add("a path in Host", b"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", 400);
    add("a port that is none", b"GET / HTTP/1.1\r\nHost: a:b\r\n\r\n", 400);
    add("two ports", b"GET / HTTP/1.1\r\nHost: a:1:2\r\n\r\n", 400);
    add("a bracket", b"GET / HTTP/1.1\r\nHost: [::1\r\n\r\n", 400);

    // Section 5: lines and fields.
    add("a bare line feed behind the request line", b"GET / HTTP/1.1\nHost: a\r\n\r\n", 400);
    add("a bare line feed behind a field", b"GET / HTTP/1.1\r\nHost: a\nX: y\r\n\r\n", 400);
    add("a bare line feed at the end", b"GET / HTTP/1.1\r\nHost: a\r\n\n", 400);
    add("a bare carriage return", b"GET / HTTP/1.1\r\nHost: a\r\nX: y\rZ: a\r\n\r\n", 400);
    add("a folded field", b"GET / HTTP/1.1\r\nHost: a\r\nX: y\r\n z\r\n\r\n", 400);
    add("a folded first field", b"GET / HTTP/1.1\r\n Host: a\r\n\r\n", 400);
    add("a space before the colon", b"GET / HTTP/1.1\r\nHost : a\r\n\r\n", 400);
    add("no colon", b"GET / HTTP/1.1\r\nHost: a\r\nX\r\n\r\n", 400);
    add("no name", b"GET / HTTP/1.1\r\nHost: a\r\n: x\r\n\r\n", 400);
    add("a name with a space", b"GET / HTTP/1.1\r\nHost: a\r\nX Y: z\r\n\r\n", 400);
    add("a name with brackets", b"GET / HTTP/1.1\r\nHost: a\r\nX(Y): z\r\n\r\n", 400);
    add("a name beyond ASCII", b"GET / HTTP/1.1\r\nHost: a\r\n\xc3\xa9: z\r\n\r\n", 400);
    add("NUL in a name", b"GET / HTTP/1.1\r\nHost: a\r\nX\0: z\r\n\r\n", 400);
    add("NUL in a value", b"GET / HTTP/1.1\r\nHost: a\r\nX: y\0z\r\n\r\n", 400);
    add("a vertical tab in a value", b"GET / HTTP/1.1\r\nHost: a\r\nX: \x0by\r\n\r\n", 400);
    add("DEL in a value", b"GET / HTTP/1.1\r\nHost: a\r\nX: \x7f\r\n\r\n", 400);

    // Section 6: two ways of saying where the body ends.
    let mut framed = |name, fields: &str, status| {
        let head =
            format!("POST / HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n");
        add(name, head.as_bytes(), status);
    };
    framed("a length and chunks", "Content-Length: 5\r\nTransfer-Encoding: chunked", 400);
    framed("chunks and a length", "Transfer-Encoding: chunked\r\nContent-Length: 5", 400);
    framed("chunks and no length at all", "Transfer-Encoding: chunked\r\nContent-Length: 0", 400);
    framed("two lengths", "Content-Length: 5\r\nContent-Length: 6", 400);
    framed("the same length twice", "Content-Length: 5\r\nContent-Length: 5", 400);
    framed("a list of lengths", "Content-Length: 5, 5", 400);
    framed("a negative length", "Content-Length: -1", 400);
    framed("a length with a sign", "Content-Length: +5", 400);
    framed("a hexadecimal length", "Content-Length: 0x5", 400);
    framed("a length in words", "Content-Length: five", 400);
    framed("an empty length", "Content-Length:", 400);
    framed("a length with a fraction", "Content-Length: 5.0", 400);
    framed("a length with a space", "Content-Length: 1 0", 400);
    framed("a length beyond 64 bits", "Content-Length: 18446744073709551621", 400);
    framed("identity", "Transfer-Encoding: identity", 400);
    framed("gzip", "Transfer-Encoding: gzip", 400);
    framed("gzip, then chunked", "Transfer-Encoding: gzip, chunked", 400);
    framed("chunked, then identity", "Transfer-Encoding: chunked, identity", 400);
    framed("chunked twice", "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", 400);
    framed("chunked in a list", "Transfer-Encoding: chunked, chunked", 400);
    framed("xchunked", "Transfer-Encoding: xchunked", 400);
    framed("quoted chunked", "Transfer-Encoding: \"chunked\"", 400);
    framed("chunked with a parameter", "Transfer-Encoding: chunked;q=1", 400);
    framed("chunked behind a vertical tab", "Transfer-Encoding: \x0bchunked", 400);
    framed("an empty encoding", "Transfer-Encoding:", 400);
    framed("an encoding and a folded one", "Transfer-Encoding: x\r\n chunked", 400);
    framed("an upgrade with a body", "Upgrade: websocket\r\nConnection: Upgrade\r\nContent-Length: 5", 400);
    add("chunks in HTTP/1.0", b"POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400);

    // RFC 9110, section 7.6.1: what may not be taken off on the way.
    let mut options = |name, value: &str| {
        add(name, format!("GET / HTTP/1.1\r\nHost: a\r\nConnection: {value}\r\n\r\n").as_bytes(), 400);
    };
    options("Host in Connection", "close, Host");
    options("Content-Length in Connection", "content-length");
    options("Transfer-Encoding in Connection", "TRANSFER-ENCODING");
    options("X-Forwarded-For in Connection", "keep-alive,x-forwarded-for");
    options("X-Request-Id in Connection", "x-request-id");
    options("a pseudo field in Connection", ":authority");
    options("a quoted name in Connection", "\"close\"");
    options("too much in Connection", "a, b, c, d, e, f, g, h, i, j");

    // Bounds, as they are where nobody set them.
    let long = |length: usize| "x".repeat(length);
    add("a long target", format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", long(8192)).as_bytes(), 414);
    add("a target without an end", format!("GET /{}", long(9000)).as_bytes(), 414);
    add("a long field", format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", long(65_505)).as_bytes(), 431);
    add("a field without an end", format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}", long(66_000)).as_bytes(), 431);
    add("a long name", format!("GET / HTTP/1.1\r\nHost: a\r\n{}: y\r\n\r\n", long(2000)).as_bytes(), 431);
    let many = "X: y\r\n".repeat(100);
    add("101 fields", format!("GET / HTTP/1.1\r\nHost: a\r\n{many}\r\n").as_bytes(), 431);
    heads
}

/// How bytes are written: in parts of so many.
#[derive(Clone, Copy, Debug)]
enum Split {
    Whole,
    Bytes,
    Random,
}

/// Writes as long as the other side takes it.
fn send(client: &mut Client, bytes: &[u8], split: Split, random: &mut fastrand::Rng) {
    let mut rest = bytes;
    while !rest.is_empty() {
        // What is long would take long.
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

/// Whether it says what every refusal of a head does.
fn is_refusal(response: &Response, status: u16) -> bool {
    let fields =
        ["content-type", "x-tollgate-reason", "connection", "cache-control"].map(|field| response.field(field));
    let expected = ["application/problem+json", "bad_request", "close", "no-store"].map(|value| Some(value.to_owned()));
    let id = response.field("x-request-id").unwrap_or_default();
    let body: serde_json::Value = serde_json::from_str(&response.body).unwrap_or_default();
    let told = response.field("date").is_some() && response.field("server").is_none();
    (response.status, fields) == (status, expected) && body["status"] == status && body["request_id"] == id && told
}

#[track_caller]
fn check(name: &str, response: &Response, status: u16) {
    assert!(is_refusal(response, status), "{name}, {status}: {response:?}");
}

#[test]
fn what_is_no_head_is_answered_and_never_a_request_however_it_is_split() {
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
fn what_is_a_head_passes_however_it_is_split() {
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
        ("get / HTTP/1.1\r\nhost:a\r\n\r\n", "get / HTTP/1.1"),
        ("M-SEARCH / HTTP/1.1\r\nHost: \t a:80 \r\n\r\n", "M-SEARCH / HTTP/1.1"),
        ("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", "OPTIONS * HTTP/1.1"),
        ("GET http://a:80/b?c HTTP/1.1\r\nHost: a:80\r\n\r\n", "GET http://a:80/b?c HTTP/1.1"),
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
fn a_refused_head_keeps_its_id_and_says_what_its_status_wants() {
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
    let errors = gateway.errors();
    assert!(errors.contains("head refused") && errors.contains("bad field name"), "{errors}");
}

#[test]
fn bounds_are_those_of_the_file() {
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
fn what_is_refused_for_its_head_has_paid_nothing() {
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
fn a_client_that_sends_on_can_still_read_that_it_was_refused() {
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
