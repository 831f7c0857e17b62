//! Upstreams that fail before they answer: a 502, a 504, or the request is sent once more.

use std::io::Write;
use std::net::TcpListener;
use std::time::Duration;

use crate::support::{Gateway, Lateness, Upstream, now};

/// Closes the connection of a request for `/break`.
fn breaking() -> Upstream {
    Upstream::answering(|seen, stream| {
        if seen.line.contains("/break") {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        } else {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        }
    })
}

#[test]
fn an_upstream_that_refuses_connections_is_a_502() {
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let gateway = Gateway::before_url(&format!("http://{gone}")).start();
    let response = gateway.client().get("/", &[]);
    assert_eq!(response.status, 502);
    assert_eq!(response.json()["type"], "about:blank");
    assert!(!format!("{response:?}").contains(&gone.port().to_string()), "{response:?}");
    assert_eq!(response.field("x-tollgate-reason"), None);
    gateway.expect("tollgate_upstream_errors_total", &["connect_failed"], 1.0);
    gateway.expect("tollgate_http_requests_total", &["502", "gateway"], 1.0);
}

#[test]
fn an_upstream_that_sends_nothing_is_a_504_in_time() {
    let upstream = Upstream::answering(|_, _| std::thread::sleep(Duration::from_secs(5)));
    let gateway = Gateway::start(&upstream, "upstream_timeouts: {read: 300ms}");
    let late = Lateness::measure();
    let start = now();
    let response = gateway.client().get("/", &[]);
    assert_eq!(response.status, 504);
    assert!(start.elapsed() < Duration::from_secs(2) + late.of_a_request(), "{:?}", start.elapsed());
    gateway.expect("tollgate_upstream_errors_total", &["read_timeout"], 1.0);
}

#[test]
fn an_upstream_that_sends_nonsense_or_closes_is_a_502() {
    let upstream = Upstream::answering(|seen, stream| {
        if seen.line.contains("nonsense") {
            let _ = stream.write_all(b"this is no HTTP\r\n\r\n");
        }
        let _ = stream.shutdown(std::net::Shutdown::Both);
    });
    let gateway = Gateway::start(&upstream, "");
    assert_eq!(gateway.client().send("POST", "/nonsense", &[], "x").status, 502);
    assert_eq!(gateway.client().send("POST", "/hang-up", &[], "x").status, 502);
}

#[test]
fn a_failed_request_shows_what_it_was_charged_and_ends_its_connection() {
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let gateway = Gateway::before_url(&format!("http://{gone}"))
        .with("rules: [{name: ip, limit_keys: [ip:address], algorithm_config: {rate: 3/day}}]")
        .start();
    let response = gateway.client().get("/", &[]);
    assert_eq!((response.status, response.number("ratelimit-remaining")), (502, 2));
    assert_eq!(response.field("connection").as_deref(), Some("close"));
}

#[test]
fn an_upstream_that_fails_after_100_continue_is_a_502() {
    let upstream = Upstream::answering(|_, stream| {
        let _ = stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n");
        let _ = stream.shutdown(std::net::Shutdown::Both);
    });
    let gateway = Gateway::start(&upstream, "");
    let mut client = gateway.client();
    client.write("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\nok");
    assert_eq!(client.response("POST").unwrap().status, 502);
    gateway.expect("tollgate_http_requests_total", &["code=\"502\"", "origin=\"gateway\""], 1.0);
}

#[test]
fn an_idempotent_request_is_sent_once_more_when_its_pooled_connection_breaks_and_no_other() {
    let upstream = breaking();
    let gateway = Gateway::start(&upstream, "");
    for (method, sightings) in [("GET", 2), ("POST", 1)] {
        let mut client = gateway.client();
        assert_eq!(client.send(method, "/warm", &[], "").status, 200);
        assert_eq!(client.send(method, "/break", &[], "").status, 502);
        let line = format!("{method} /break HTTP/1.1");
        assert_eq!(upstream.seen().iter().filter(|seen| seen.line == line).count(), sightings, "{method}");
    }
    gateway.expect("tollgate_upstream_errors_total", &["kind=\"closed\""], 3.0);
}

#[test]
fn without_retries_nothing_is_sent_twice() {
    let upstream = breaking();
    let api = |retries: &str| {
        format!("upstreams: {{api: {{endpoints: [\"http://{}\"], ejection: false{retries}}}}}\n", upstream.address)
    };
    for (text, sightings) in [
        (api(", retries: {max: 0}") + "routes: [{name: all, upstream: api}]", 1u8),
        (api("") + "routes: [{name: all, upstream: api, retries: {max: 0}}]", 1),
        (api(", retries: {max: 1}") + "routes: [{name: all, upstream: api}]", 2),
    ] {
        let gateway = Gateway::before_url("").with(&text).start();
        let (mut client, before) = (gateway.client(), upstream.count());
        assert_eq!(client.get("/warm", &[]).status, 200);
        assert_eq!(client.get("/break", &[]).status, 502);
        assert_eq!(upstream.count() - before, 1 + usize::from(sightings), "{text}");
        gateway.expect("tollgate_upstream_retries_total", &[], f64::from(sightings) - 1.0);
        // A single endpoint has its own numbers.
        let endpoint = format!("endpoint=\"{}\"", upstream.address);
        gateway.expect("tollgate_endpoint_requests_total", &[&endpoint], 1.0 + f64::from(sightings));
        gateway.expect("tollgate_endpoint_failures_total", &[&endpoint], 1.0);
        gateway.expect("tollgate_endpoint_up", &[&endpoint], 1.0);
    }
}

#[test]
fn repeats_are_in_the_budget_of_retries() {
    let upstream = breaking();
    let text = format!(
        "upstreams: {{api: {{endpoints: [\"http://{}\"], ejection: false, retries: {{budget: 0%}}}}}}
routes: [{{name: all, upstream: api}}]",
        upstream.address
    );
    let gateway = Gateway::before_url("").with(&text).start();
    for _ in 0..15 {
        let mut client = gateway.client();
        assert_eq!(client.get("/warm", &[]).status, 200);
        assert_eq!(client.get("/break", &[]).status, 502);
    }
    // Ten are saved up at the start.
    gateway.expect("tollgate_upstream_retries_total", &[], 10.0);
    assert_eq!(upstream.seen().iter().filter(|seen| seen.line.contains("/break")).count(), 25);
}
