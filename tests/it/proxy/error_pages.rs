//! `error_pages`: the operator's own texts instead of problem documents.

use crate::support::{Client, Gateway, Upstream, tollgate};

const CONFIG: &str = "
error_pages:
  - {match: {path: /login}, status: [429], body_file: limit.html, headers: {X-Upgrade: https://example.com/plans}}
  - {match: {header:accept: {prefix: application/json}}, body_file: limit.json, content_type: application/json}
  - {status: [400], body_file: bad.txt, content_type: text/plain}
rules:
  - {name: all, limit_keys: [path], algorithm_config: {rps: 0.001, burst: 1}}
";
const FILES: [(&str, &str); 3] = [
    ("limit.html", "<style>p{color:red}</style><p>{status} {request_id} {retry_after}</p>"),
    ("limit.json", "{\"error\":{\"code\":{status},\"id\":\"{request_id}\",\"in\":{retry_after}}}"),
    ("bad.txt", "{status}"),
];

#[test]
fn a_page_replaces_the_problem_document_and_no_field() {
    let gateway = Gateway::before(&Upstream::start()).with(CONFIG).files(&FILES).start();
    let mut client = gateway.client();
    let id = ("X-Request-Id", "mine");
    for path in ["/login", "/a", "/b", "/c"] {
        assert_eq!(client.get(path, &[]).status, 200);
    }
    let page = client.get("/login", &[id]);
    let wait = page.number("retry-after");
    assert_eq!(page.body, format!("<style>p{{color:red}}</style><p>429 mine {wait}</p>"));
    for (name, value) in [
        ("content-type", "text/html; charset=utf-8"),
        ("x-upgrade", "https://example.com/plans"),
        ("x-tollgate-reason", "token_bucket_exceeded"),
        ("cache-control", "no-store"),
        ("x-request-id", "mine"),
        ("ratelimit-remaining", "0"),
    ] {
        assert_eq!(page.field(name).as_deref(), Some(value), "{name}");
    }
    let head = client.send("HEAD", "/login", &[id], "");
    assert_eq!((head.status, &*head.body), (429, ""));
    let json = client.get("/a", &[id, ("Accept", "application/json")]);
    assert_eq!(json.json()["error"]["in"], json.number("retry-after"));
    let document = client.get("/b", &[]);
    assert_eq!(document.field("content-type").as_deref(), Some("application/problem+json"));
    let grpc = client.get("/c", &[("Content-Type", "application/grpc"), ("Accept", "application/json")]);
    assert_eq!((grpc.status, &*grpc.body, grpc.field("grpc-status").as_deref()), (200, "", Some("8")));
    // Of an invalid head nothing is known but its status.
    let mut broken = gateway.client();
    broken.write("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n");
    let broken = broken.response("GET").unwrap();
    assert_eq!((broken.status, &*broken.body), (400, "400"));
}

#[test]
fn faults_have_a_page_as_refusals_do() {
    let config = "error_pages: [{match: {route: default}, status: [502], body_file: gone.xml, content_type: text/xml}]";
    let gateway =
        Gateway::before_url("http://127.0.0.1:1").with(config).file("gone.xml", "<a>{status}{retry_after}</a>").start();
    let fault = gateway.client().get("/", &[]);
    assert_eq!((fault.status, &*fault.body), (502, "<a>502</a>"));
}

#[test]
fn a_changed_text_is_in_force_within_seconds_and_explain_names_it() {
    let config = "error_pages: [{body_file: page.txt, content_type: text/plain}]\nrules: [{name: no, action: deny}]";
    let gateway = Gateway::before(&Upstream::start()).with(config).file("page.txt", "one").start();
    let body = || gateway.client().get("/", &[]).body;
    assert_eq!(body(), "one");
    std::fs::write(gateway.file("page.txt"), "two").unwrap();
    crate::support::eventually("the text has changed", || body() == "two");
    let explained = tollgate(&["explain", "-c", gateway.file("gateway.yaml").to_str().unwrap(), "/"]);
    assert!(explained.out.contains("the text is that of error_pages[0]"), "{explained:?}");
}

#[test]
fn a_call_whose_target_is_too_long_gets_no_page_since_it_may_be_of_grpc() {
    let config = "\
listeners:
  - {address: 127.0.0.1:0, decide: [http], clients: [127.0.0.1], original_request: path, refuse_with: 403}
  - {address: 127.0.0.1:0}
upstream: http://127.0.0.1:9
limits: {target_bytes: 100B}
error_pages: [{status: [414], body_file: page.txt, content_type: text/plain}]
";
    let gateway = Gateway::deciding().with(config).file("page.txt", "too long").start();
    let asked = |address, fields: &str| {
        let mut client = Client::connect(address);
        client.write(&format!("GET /decide/{} HTTP/1.1\r\nHost: a\r\n{fields}", "x".repeat(200)));
        let response = client.response("GET").unwrap();
        (response.status, response.body == "too long")
    };
    let [door, public] = gateway.listeners[..] else { panic!() };
    // Whether its head has arrived or not.
    assert_eq!([asked(door, "\r\n"), asked(door, "")], [(403, true), (403, false)]);
    assert_eq!(asked(door, "Content-Type: application/grpc\r\n\r\n"), (403, false));
    assert_eq!([asked(public, "\r\n"), asked(public, "")], [(414, true); 2]);
}
