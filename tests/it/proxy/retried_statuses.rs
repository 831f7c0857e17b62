//! Responses with 502, 503 and 504 after which `retries` sends a request to another server.

use std::io::Write;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;

use super::upstreams::{log, start, statuses};
use crate::support::http2::Http2Client;
use crate::support::http2_frames::{DATA, END_HEADERS, END_STREAM, HEADERS, fields_block, frame, upstream};
use crate::support::websocket::UPGRADE;
use crate::support::{Gateway, Upstream, eventually};

const ON: &str = "retries: {on: [connect, reset, 502, 503, 504]}";

/// Starts a server that answers with a status, a cost and a body.
fn ill(status: u16) -> Upstream {
    Upstream::answering(move |_, stream| {
        let body = "x".repeat(100_000);
        let _ = write!(stream, "HTTP/1.1 {status} Ill\r\nX-Cost: 9\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    })
}

#[test]
fn the_first_errors_of_an_ill_server_are_no_clients() {
    for status in [502, 503, 504] {
        let (good, ill) = (Upstream::start(), ill(status));
        let rest = "access_log: {to: access.log, when: [allowed, error]}
policies:
  - {name: rate, rules: [{name: all, limit_keys: [], algorithm_config: {rps: 0.001, burst: 40}}]}
  - {name: slot, rules: [{name: one, limit_keys: [], algorithm: concurrency, algorithm_config: {limit: 1}}]}";
        let gateway = start(&[good.address, ill.address], &format!(", {ON}"), rest);
        assert_eq!(statuses(&gateway, "GET", 40), [200; 40]);
        // It is ejected after five failures in a row, as ever.
        assert_eq!((good.count(), ill.count()), (40, 5));
        gateway.expect_logged("endpoint ejected");
        // One decision, one charge, one slot and one response cover all attempts.
        assert_eq!(gateway.client().get("/", &[]).status, 429);
        gateway.expect("rate_limiter_decisions_total", &["allowed"], 40.0);
        gateway.expect("rate_limiter_in_flight", &[], 0.0);
        gateway.expect("tollgate_http_requests_total", &["origin=\"upstream\""], 40.0);
        gateway.expect("tollgate_http_requests_total", &[&format!("code=\"{status}\"")], 0.0);
        gateway.expect("tollgate_upstream_retries_total", &[&format!("kind=\"{status}\"")], 5.0);
        gateway.expect("tollgate_endpoint_failures_total", &["kind=\"status\""], 5.0);
        eventually("the log is written", || log(&gateway).len() == 40);
        let retried: Vec<Value> = log(&gateway).into_iter().filter(|line| !line["failed_attempts"].is_null()).collect();
        assert_eq!(retried.len(), 5);
        let attempt = &retried[0]["failed_attempts"][0];
        assert_eq!(
            (attempt["endpoint"].as_str(), attempt["error"].as_str()),
            (Some(ill.address.to_string().as_str()), Some(status.to_string().as_str()))
        );
    }
}

/// Starts an HTTP/2 server that answers with a status and a body. It counts heads.
fn http2(status: u16) -> (std::net::SocketAddr, Arc<AtomicUsize>) {
    let heads = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&heads);
    let address = upstream(&[], move |_, connection| {
        while let Some(head) = connection.next_of_stream() {
            if head.kind == HEADERS {
                counted.fetch_add(1, Ordering::Relaxed);
                let body = frame(DATA, END_STREAM, head.stream, b"body");
                let block = fields_block(&[(":status", &status.to_string())]);
                let head = frame(HEADERS, END_HEADERS, head.stream, &block);
                if connection.try_write(&[head, body].concat()).is_err() {
                    return;
                }
            }
        }
    });
    (address, heads)
}

#[test]
fn a_status_is_retried_for_each_pair_of_protocols() {
    for (protocol, count) in [("http/1.1", None), ("h2c", Some(()))] {
        let (good_1, ill_1, (good_2, seen_2), (ill_2, refused_2)) =
            (Upstream::start(), ill(503), http2(200), http2(503));
        let (good, ill) = if count.is_some() { (good_2, ill_2) } else { (good_1.address, ill_1.address) };
        let gateway = Gateway::before_url("")
            .with(&format!(
                "listeners: [{{address: 127.0.0.1:0, protocols: [h2c, http/1.1]}}]
upstreams: {{api: {{endpoints: [\"http://{good}\", \"http://{ill}\"], protocol: {protocol}, ejection: false}}}}
routes: [{{name: all, upstream: api, {ON}}}]"
            ))
            .start();
        assert_eq!(statuses(&gateway, "GET", 6), [200; 6], "{protocol}");
        let mut client = Http2Client::connect(gateway.http);
        for _ in 0..6 {
            assert_eq!(client.get("/", &[]).status, 200, "{protocol}");
        }
        let seen = match count {
            Some(()) => (seen_2.load(Ordering::Relaxed), refused_2.load(Ordering::Relaxed)),
            None => (good_1.count(), ill_1.count()),
        };
        assert_eq!(seen, (12, 6), "{protocol}");
        gateway.expect("tollgate_upstream_retries_total", &["kind=\"503\""], 6.0);
    }
}

#[test]
fn a_status_is_retried_only_if_that_cannot_do_harm_twice() {
    for (method, body, retried) in [
        ("HEAD", "", true),
        ("DELETE", "", true),
        ("PUT", "", true),
        ("POST", "", false),
        ("PATCH", "", false),
        ("PUT", "body", false),
    ] {
        let (good, ill) = (
            Upstream::start(),
            Upstream::answering(|_, stream| drop(stream.write_all(b"HTTP/1.1 503 Ill\r\nContent-Length: 0\r\n\r\n"))),
        );
        let gateway = start(&[good.address, ill.address], &format!(", ejection: false, {ON}"), "");
        let passed = (0..6).filter(|_| gateway.client().send(method, "/", &[], body).status == 503).count();
        assert_eq!((passed, ill.count()), (if retried { 0 } else { 3 }, 3), "{method} {body}");
    }
}

#[test]
fn a_refused_upgrade_is_retried() {
    let (good, ill) = (Upstream::start(), ill(503));
    let gateway = start(&[good.address, ill.address], &format!(", ejection: false, {ON}"), "");
    for _ in 0..4 {
        assert_eq!(gateway.client().get("/", &UPGRADE).status, 200);
    }
    assert_eq!(ill.count(), 2);
}

#[test]
fn the_last_response_passes_where_no_retry_is_left() {
    // The keys of the upstream and of the route, and how many of 40 requests get the status.
    for (upstream, route, passed) in [
        ("", "", 20),
        (ON, "retries: {on: [502, 504]}", 20),
        (ON, "retries: {max: 0}", 20),
        ("retries: {max: 0, on: [503]}", "", 20),
        ("retries: {budget: 0%, on: [503]}", "", 10),
        ("retries: {max: 0, budget: 100%}", "retries: {max: 1, on: [503]}", 0),
    ] {
        let (good, ill) = (Upstream::start(), ill(503));
        let own = |keys: &str| if keys.is_empty() { String::new() } else { format!(", {keys}") };
        let gateway = Gateway::before_url("")
            .with(&format!(
                "upstreams: {{api: {{endpoints: [\"http://{}\", \"http://{}\"], ejection: false{}}}}}
routes: [{{name: all, upstream: api{}}}]",
                good.address,
                ill.address,
                own(upstream),
                own(route)
            ))
            .start();
        let statuses = statuses(&gateway, "GET", 40);
        assert_eq!(statuses.iter().filter(|status| **status == 503).count(), passed, "{upstream} {route}");
        let over_budget = if upstream.contains(" 0%") { 10.0 } else { 0.0 };
        gateway.expect("tollgate_upstream_retries_over_budget_total", &[], over_budget);
    }
    let servers = [ill(503), ill(504)];
    let gateway = start(&[servers[0].address, servers[1].address], &format!(", ejection: false, {ON}"), "");
    let response = gateway.client().get("/", &[]);
    assert!(matches!(response.status, 503 | 504), "{response:?}");
    assert_eq!((response.field("x-cost").as_deref(), response.body.len()), (Some("9"), 100_000));
    assert_eq!(servers.iter().map(Upstream::count).sum::<usize>(), 2);
}

#[test]
fn a_list_without_connect_and_reset_retries_only_statuses() {
    let closing = Upstream::answering(|_, stream| drop(stream.shutdown(std::net::Shutdown::Both)));
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for (bad, on, failed) in [
        (closing.address, "[connect, 503]", 3),
        (closing.address, "[reset]", 0),
        (nobody, "[reset, 503]", 3),
        (nobody, "[connect]", 0),
    ] {
        let good = Upstream::start();
        let gateway = start(&[good.address, bad], &format!(", ejection: false, retries: {{on: {on}}}"), "");
        let statuses = statuses(&gateway, "GET", 6);
        assert_eq!(statuses.iter().filter(|status| **status == 502).count(), failed, "{on}: {statuses:?}");
    }
}

#[test]
fn a_response_is_not_retried_after_an_interim_one_has_passed() {
    let hinting = Upstream::answering(|_, stream| {
        let _ = stream
            .write_all(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 503 Ill\r\nContent-Length: 0\r\n\r\n");
    });
    let good = Upstream::start();
    let gateway = start(&[good.address, hinting.address], &format!(", ejection: false, {ON}"), "");
    let passed = (0..4).filter(|_| gateway.client().get("/", &[]).status == 503).count();
    assert_eq!((passed, good.count(), hinting.count()), (2, 2, 2));
}

#[test]
fn a_retried_response_counts_and_costs_nothing() {
    let (good, ill) = (
        Upstream::answering(|_, stream| {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nX-Cost: 2\r\nContent-Length: 0\r\n\r\n");
        }),
        ill(503),
    );
    let rest = "rules:
  - name: spent
    limit_keys: []
    algorithm: fixed_window
    expose: true
    limits:
      cost: {limit: 100, window: 366d, cost_source: \"response_header:x-cost\", reserve: 1, default_cost: 50}
      errors: {limit: 10, window: 366d, count_on: [5xx]}";
    let gateway = start(&[good.address, ill.address], &format!(", ejection: false, {ON}"), rest);
    assert_eq!(statuses(&gateway, "GET", 10), [200; 10]);
    assert_eq!(ill.count(), 5);
    // Ten times what the last response names, and no error.
    eventually("all are settled", || gateway.metric("rate_limiter_held", &[]) == 0.0);
    gateway.expect("rate_limiter_settled_cost_total", &["rule=\"spent.cost\""], 20.0);
    gateway.expect("rate_limiter_settled_cost_total", &["rule=\"spent.errors\""], 0.0);
}

#[test]
fn a_client_that_leaves_before_the_request_is_sent_again_costs_nothing() {
    let ill = ill(503);
    // It accepts connections, and never answers a TLS handshake.
    let hanging = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoints = format!("endpoints: [\"http://{}\", \"https://{}\"]", ill.address, hanging.local_addr().unwrap());
    let gateway = Gateway::before_url("")
        .with(&format!(
            "upstreams: {{api: {{{endpoints}, ejection: false, timeouts: {{connect: 1m, total: none}}, {ON}}}}}
routes: [{{name: all, upstream: api}}]
rules:
  - {{name: answered, limit_keys: [], algorithm: fixed_window, algorithm_config: {{limit: 10, window: 366d, count_on: [2xx]}}}}"
        ))
        .start();
    // One of the two is sent to the other server first.
    let mut clients = [(); 2].map(|()| gateway.client());
    clients.iter_mut().for_each(|client| client.write("GET / HTTP/1.1\r\nHost: a\r\n\r\n"));
    let waiting = [(); 2].map(|()| hanging.accept().unwrap());
    assert_eq!(ill.count(), 1);
    drop(clients);
    gateway.expect("rate_limiter_settled_total", &["rule=\"answered\""], 2.0);
    gateway.expect("rate_limiter_settled_cost_total", &["rule=\"answered\""], 0.0);
    drop(waiting);
}
