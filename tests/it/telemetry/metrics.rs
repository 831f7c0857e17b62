//! The metrics of a gateway.

use std::io::Write;
use std::time::Duration;

use crate::support::{Client, Gateway, Upstream, eventually};

#[test]
fn the_upstream_counters_match_the_requests_that_it_received() {
    let upstream = Upstream::answering(|seen, stream| {
        if seen.line.contains("/broken") {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        } else if seen.line.contains("/slow") {
            std::thread::sleep(Duration::from_secs(5));
        } else {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        }
    });
    let gateway = Gateway::start(
        &upstream,
        "
upstream_timeouts: {read: 3s}
rules:
  - {name: denied, match: {path: /denied}, action: deny}
  - {name: user, limit_keys: [query:user], algorithm_config: {rate: 5/day, cost_source: query:cost}}",
    );
    let targets = ["/?user=a", "/?user=b", "/?user=a&cost=9", "/denied", "/?user=a&user=b", "/%00", "/plain"];
    let mut late = [gateway.client(), gateway.client()];
    for client in &mut late {
        client.write("POST /slow HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx");
    }
    for round in 0..8 {
        let mut client = gateway.client();
        for target in targets {
            client.get(target, &[]);
        }
        if round % 4 == 0 {
            assert_eq!(gateway.client().send("POST", "/broken", &[], "x").status, 502);
        }
        // Gone before its answer: the upstream saw it all the same.
        let mut impatient = gateway.client();
        let before = upstream.seen().len();
        impatient.write("GET /slow HTTP/1.1\r\nHost: a\r\n\r\n");
        eventually("the request arrives", || upstream.seen().len() > before);
    }
    for client in &mut late {
        assert_eq!(client.response("POST").unwrap().status, 504);
    }
    let counted = |labels: &[&str]| gateway.metric("tollgate_http_requests_total", labels);
    let of_upstream = || counted(&["origin=\"upstream\""]) + counted(&["code=\"502\""]) + counted(&["code=\"504\""]);
    let seen = f64::from(u32::try_from(upstream.seen().len()).unwrap());
    eventually("conservation", || of_upstream() == seen);
    let decisions = gateway.metric("rate_limiter_decisions_total", &[]);
    assert_eq!(decisions, counted(&[]));
    gateway.expect("rate_limiter_allowed_total", &[], 10.0);
    assert_eq!(
        gateway.metric("tollgate_refused_requests_total", &[]),
        gateway.metric("rate_limiter_decisions_total", &["refused"])
    );
}

#[test]
fn every_series_of_every_rule_is_there_from_the_start_at_zero() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &upstream,
        "
policies:
  - name: plans
    rules:
      - {name: free, limit_keys: [ip:address], limits: {second: {rate: 1/s}, day: {rate: 9/day}}}
      - {name: trial, mode: shadow, limit_keys: [ip:address], algorithm_config: {rate: 1/s}}",
    );
    for (rule, mode) in [("free.second", "enforce"), ("free.day", "enforce"), ("trial", "shadow")] {
        let labels = ["policy=\"plans\"", &format!("rule=\"{rule}\""), &format!("mode=\"{mode}\"")];
        for name in ["rate_limiter_requests_total", "rate_limiter_allowed_total"] {
            gateway.expect(name, &labels, 0.0);
        }
        for reason in ["token_bucket_exceeded", "cost_too_large"] {
            let labels = [labels[0], labels[1], labels[2], &format!("reason=\"{reason}\"")];
            gateway.expect("rate_limiter_rejected_total", &labels, 0.0);
        }
        gateway.expect("rate_limiter_near_limit_total", &labels[..2], 0.0);
    }
    for (name, labels) in [
        ("rate_limiter_unmatched_total", &["policy=\"plans\""][..]),
        ("tollgate_refused_requests_total", &["denied"]),
        ("tollgate_upstream_errors_total", &["connect_failed"]),
        ("rate_limiter_evicted_total", &[]),
        ("rate_limiter_buckets", &[]),
    ] {
        gateway.expect(name, labels, 0.0);
    }
    assert_eq!(gateway.metric("tollgate_build_info", &[&format!("version=\"{}\"", env!("CARGO_PKG_VERSION"))]), 1.0);
    gateway.expect("tollgate_config_info", &["hash=\""], 1.0);
    assert!(gateway.metric("process_resident_memory_bytes", &[]) > 1e6);
}

#[test]
fn buckets_and_connections_are_gauged_and_freed() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &upstream,
        "
rules:
  - {name: user, limit_keys: [query:user], algorithm_config: {rate: 20/min, burst: 1}}",
    );
    let mut client = gateway.client();
    for user in 0..50 {
        client.get(&format!("/?user={user}"), &[]);
    }
    assert!(gateway.metric("rate_limiter_buckets", &[]) >= 1.0);
    gateway.expect("tollgate_http_connections", &["listener=\"http\""], 1.0);
    drop(client);
    eventually("the connection is gone", || gateway.metric("tollgate_http_connections", &[]) == 0.0);
    eventually("full buckets are freed", || gateway.metric("rate_limiter_buckets", &[]) == 0.0);
}

#[test]
fn the_store_keeps_no_more_buckets_than_it_may() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &upstream,
        "
store: {memory: {max_buckets: 10}}
rules:
  - {name: user, limit_keys: [query:user], algorithm_config: {rate: 100/day}}",
    );
    let mut client = gateway.client();
    for user in 0..25 {
        client.get(&format!("/?user={user}"), &[]);
    }
    gateway.expect("rate_limiter_buckets", &[], 10.0);
    gateway.expect("rate_limiter_evicted_total", &[], 15.0);
}

#[test]
fn durations_are_histograms_with_the_documented_bounds() {
    let upstream = Upstream::start();
    let gateway =
        Gateway::start(&upstream, "rules: [{name: ip, limit_keys: [ip:address], algorithm_config: {rate: 9/s}}]");
    gateway.client().get("/", &[]);
    eventually("samples are counted", || {
        gateway.metric("rate_limiter_latency_seconds_count", &["source=\"store\""]) == 1.0
    });
    let bound = |bound: &str| gateway.metric("rate_limiter_latency_seconds_bucket", &[&format!("le=\"{bound}\"")]);
    assert_eq!(bound("+Inf"), 1.0);
    assert!(bound("0.00001") <= bound("0.05") && bound("0.05") <= bound("1"));
    gateway.expect("tollgate_http_request_duration_seconds_count", &["origin=\"upstream\""], 1.0);
    gateway.expect("tollgate_upstream_request_duration_seconds_count", &[], 1.0);
}

#[test]
fn the_admin_listener_answers_only_what_it_should() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "");
    let mut admin = Client::connect(gateway.admin);
    let live = admin.get("/livez", &[]);
    assert_eq!((live.status, &*live.body), (200, "alive\n"));
    let ready = admin.get("/readyz", &[]);
    assert_eq!((ready.status, &ready.json()["status"]), (200, &"ready".into()));
    let metrics = admin.get("/metrics", &[]);
    assert_eq!(metrics.field("content-type").as_deref(), Some("text/plain; version=0.0.4"));
    assert_eq!(admin.get("/", &[]).status, 200);
    assert_eq!(admin.get("/anything", &[]).status, 404);
    assert_eq!(admin.send("POST", "/metrics", &[], "").status, 405);
    // None of it is on the public listener.
    gateway.client().get("/metrics", &[]);
    assert_eq!(upstream.last().line, "GET /metrics HTTP/1.1");
}
