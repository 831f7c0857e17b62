//! Forwarded messages: order and spelling of fields, trailers, interim responses, and responses before the end of an upload.

use std::io::Write;
use std::sync::Mutex;
use std::sync::mpsc;
use std::time::Duration;

use crate::support::{Gateway, Upstream, eventually};

#[test]
fn fields_of_a_request_keep_their_order_spelling_and_repeats() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "");
    let sent = [("Host", "a"), ("X-b", "1"), ("X-A", " 2"), ("x-B", "3"), ("X-C", "4, 5"), ("X-A", "6")];
    let mut client = gateway.client();
    let lines: String = sent.iter().map(|(name, value)| format!("{name}:{value}\r\n")).collect();
    client.write(&format!("GET / HTTP/1.1\r\n{lines}\r\n"));
    assert_eq!(client.response("GET").unwrap().status, 200);
    let expected = sent.map(|(name, value)| (name.to_owned(), value.trim().to_owned()));
    assert_eq!(upstream.last().fields[..sent.len()], expected);
}

#[test]
fn fields_of_a_response_keep_their_order_spelling_and_repeats() {
    let lines = "SERVER: x\r\nX-b: 1\r\nSet-Cookie: b=1\r\nx-B: 2\r\nSet-Cookie: a=2\r\nContent-Length: 0\r\n";
    let upstream = Upstream::answering(move |_, stream| {
        let _ = write!(stream, "HTTP/1.1 200 Very Well\r\n{lines}\r\n");
    });
    let gateway = Gateway::start(&upstream, "");
    let mut client = gateway.client();
    client.write("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let head = client.until("\r\n\r\n");
    assert!(head.starts_with(&format!("HTTP/1.1 200 Very Well\r\n{lines}")), "{head}");
}

#[test]
fn trailers_pass_both_ways_but_for_those_that_belong_into_a_head() {
    let upstream = Upstream::answering(|_, stream| {
        let _ = stream.write_all(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n2\r\nok\r\n0\r\nX-Sum: 1\r\n\
              Set-Cookie: a=b\r\nRateLimit-Limit: 9\r\n\r\n",
        );
    });
    let gateway = Gateway::start(&upstream, "");
    let mut client = gateway.client();
    for (te, expected) in [("Connection: TE\r\nTE: trailers\r\n", Some("trailers")), ("TE: trailers\r\n", None)] {
        client.write(&format!(
            "POST / HTTP/1.1\r\nHost: a\r\n{te}Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nX-Digest: 2\r\n\
             X-Forwarded-For: 1.2.3.4\r\nX_Real_IP: 1.2.3.4\r\nAuthorization: x\r\n\r\n"
        ));
        let answer = client.until("\r\n0\r\nX-Sum: 1\r\n\r\n");
        assert!(answer.contains("\r\nTrailer: X-Sum\r\n") && answer.ends_with("\r\n\r\n"), "{answer}");
        let seen = upstream.last();
        assert_eq!(seen.trailers, [("X-Digest".to_owned(), "2".to_owned())]);
        assert_eq!((seen.field("te"), &*seen.body), (expected, &b"hi"[..]));
    }
}

#[test]
fn trailers_have_nothing_that_the_route_sets_or_removes() {
    let upstream = Upstream::start();
    let changes = "request_headers: {set: {X-Tenant: ours}, remove: [x-debug]}";
    let text = format!(
        "upstreams: {{api: {{endpoints: [\"http://{}\"]}}}}\nroutes: [{{name: all, upstream: api, {changes}}}]",
        upstream.address
    );
    let gateway = Gateway::before_url("").with(&text).start();
    let mut client = gateway.client();
    client.write(
        "POST / HTTP/1.1\r\nHost: a\r\nTrailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nX-Tenant: other\r\n\
         X-Sum: 1\r\nx_tenant: other\r\nX-Debug: 1\r\nX.Debug: 1\r\ntraceparent: x\r\nTraceState: x\r\n\r\n",
    );
    assert_eq!(client.response("POST").unwrap().status, 200);
    let seen = upstream.last();
    assert_eq!(seen.trailers, [("X-Sum".to_owned(), "1".to_owned())]);
    assert_eq!((seen.field("x-tenant"), seen.field("trailer")), (Some("ours"), Some("X-Sum")));
}

#[test]
fn the_gateways_own_fields_are_removed_however_long_their_names_are() {
    let upstream = Upstream::answering(|_, stream| {
        let _ = stream.write_all(
            b"HTTP/1.1 103 Early Hints\r\nConnection: x-hop\r\nX-Hop: 1\r\nX-Request-Id: theirs\r\nX-Tollgate-A: 1\r\n\
              Link: </a>\r\n\r\nHTTP/1.1 200 OK\r\nX-Tollgate-A: 1\r\nX-Tollgate-AB: 1\r\nX-Tollgate-: 1\r\n\
              X-Request-Id: theirs\r\nX-Twelve-Let: 1\r\nContent-Length: 0\r\n\r\n",
        );
    });
    let gateway = Gateway::start(&upstream, "");
    let mut client = gateway.client();
    client.write("GET / HTTP/1.1\r\nHost: a\r\nX-Request-Id: mine\r\n\r\n");
    let heads = client.until("\r\nX-Request-Id: mine\r\n\r\n");
    assert!(
        heads.starts_with("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nX-Twelve-Let: 1\r\n"),
        "{heads}"
    );
    assert!(!heads.contains("Tollgate") && !heads.contains("theirs"), "{heads}");
}

#[test]
fn a_response_may_have_more_fields_than_a_request() {
    let upstream = Upstream::answering(|_, stream| {
        let cookies: String = (0..200).map(|number| format!("Set-Cookie: c{number}=1\r\n")).collect();
        let _ = write!(stream, "HTTP/1.1 200 OK\r\n{cookies}Content-Length: 0\r\n\r\n");
    });
    let gateway = Gateway::start(&upstream, "");
    let response = gateway.client().get("/", &[]);
    assert_eq!((response.status, response.fields.iter().filter(|(name, _)| name == "Set-Cookie").count()), (200, 200));
}

#[test]
fn interim_responses_pass_as_they_come() {
    let (go_on, told) = mpsc::channel::<()>();
    let told = Mutex::new(told);
    let upstream = Upstream::answering(move |_, stream| {
        let _ = stream.write_all(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\nConnection: close\r\n\r\n");
        let _ = told.lock().unwrap().recv_timeout(Duration::from_secs(10));
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    });
    let gateway = Gateway::start(&upstream, "");
    let mut client = gateway.client();
    client.write("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.until("\r\n\r\n"), "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n");
    go_on.send(()).unwrap();
    assert_eq!(client.response("GET").unwrap().status, 200);
}

#[test]
fn an_answer_to_half_an_upload_passes_at_once() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let gateway = Gateway::before_url(&format!("http://{}", listener.local_addr().unwrap())).start();
    let mut client = gateway.client();
    client.write("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\nhalf");
    let mut upstream = crate::support::Client::over(listener.accept().unwrap().0);
    upstream.until("half");
    upstream.write("HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno");
    let response = client.response("POST").unwrap();
    assert_eq!((response.status, &*response.body), (403, "no"));
    assert_eq!(response.field("connection").as_deref(), Some("close"));
    assert!(client.is_closed());
}

#[test]
fn a_request_whose_client_leaves_counts_once() {
    let (upstream, answer) = Upstream::answering_when_told();
    let gateway = Gateway::start(&upstream, "");
    let mut client = gateway.client();
    client.write("GET /slow HTTP/1.1\r\nHost: a\r\n\r\n");
    eventually("the request arrives", || upstream.count() == 1);
    drop(client);
    gateway.expect("tollgate_http_requests_total", &["code=\"499\""], 1.0);
    gateway.expect("tollgate_http_connections", &[], 0.0);
    drop(answer);
    gateway.expect("tollgate_http_requests_total", &["code=\"499\""], 1.0);
}
