//! Every end of a request settles its cost once: the table in docs/exactness.md.

use std::time::Duration;

use super::{becomes, begin, budget, budget_with, get, shows, upstream, used};
use crate::support::http2::Http2Client;
use crate::support::websocket::{SWITCHED, UPGRADE};
use crate::support::{Gateway, Upstream, eventually};

/// A whole response costs what it names, or the default, or nothing after some statuses.
#[test]
fn a_whole_response_costs_what_it_names() {
    let (upstream, _finish) = upstream::start();
    let gateway = Gateway::start(&upstream, &budget());
    let mut spent = 0;
    for (path, status, cost) in [
        ("/cost/7", 200, 7),
        ("/cost/0", 200, 0),
        // Parts of a token are shown rounded up.
        ("/cost/2.5", 200, 3),
        ("/cost/0.5", 200, 0),
        ("/none", 200, 3),
        ("/cost/none", 200, 3),
        ("/status/404", 404, 3),
        ("/status/404/cost/1", 404, 1),
        ("/status/500", 500, 0),
        ("/status/500/cost/9", 500, 9),
        ("/status/429", 429, 0),
        ("/status/503/cost/2", 503, 2),
    ] {
        assert_eq!(get(&gateway, path, "ann").status, status, "{path}");
        spent += cost;
        becomes(&gateway, "ann", spent);
    }
    shows(&gateway, "bob", 0);
    gateway.expect("rate_limiter_usage_missing_total", &["rule=\"spend\""], 3.0);
    gateway.expect("rate_limiter_overrun_total", &["rule=\"spend\""], 2.0);
}

#[test]
fn the_cost_of_a_response_to_head_is_in_its_head() {
    let (upstream, _finish) = upstream::start();
    let gateway = Gateway::start(&upstream, &budget());
    assert_eq!(gateway.client().send("HEAD", "/cost/8", &[("X-User", "ann")], "").status, 200);
    becomes(&gateway, "ann", 8);
}

#[test]
fn a_request_on_a_kept_connection_sees_what_the_one_before_has_spent() {
    let (upstream, _finish) = upstream::start();
    let gateway = Gateway::start(&upstream, &budget());
    let mut client = gateway.client();
    for before in 0..20 {
        let response = client.get("/cost/4", &[("X-User", "ann")]);
        assert_eq!(response.number("ratelimit-remaining"), 1000 - 5 - 4 * before);
    }
}

#[test]
fn a_failed_connection_costs_nothing() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let gateway = Gateway::before_url(&format!("http://{free}")).with(&budget()).start();
    for _ in 0..3 {
        let response = get(&gateway, "/", "ann");
        assert_eq!((response.status, response.number("ratelimit-remaining")), (502, 995));
        gateway.expect("rate_limiter_held", &["rule=\"spend\""], 0.0);
    }
    gateway.expect("rate_limiter_settled_total", &["rule=\"spend\""], 3.0);
    gateway.expect("rate_limiter_usage_missing_total", &["rule=\"spend\""], 0.0);
}

#[test]
fn a_retry_settles_the_cost_of_the_last_attempt_once() {
    let (working, _finish) = upstream::start();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let upstreams = format!(
        "upstreams: {{api: {{endpoints: [\"http://{free}\", \"http://{}\"], ejection: false}}}}\nroutes: [{{name: all, upstream: api}}]\n",
        working.address
    );
    let gateway = Gateway::before_url("").with(&format!("{upstreams}{}", budget())).start();
    for sent in 1..=6 {
        assert_eq!(get(&gateway, "/cost/6", "ann").status, 200);
        becomes(&gateway, "ann", 6 * sent);
    }
    assert!(gateway.metric("tollgate_upstream_retries_total", &[]) >= 1.0);
}

#[test]
fn an_upstream_that_leaves_before_the_head_costs_the_default() {
    let (upstream, _finish) = upstream::start();
    let gateway = Gateway::start(&upstream, &budget());
    assert_eq!(get(&gateway, "/silent", "ann").status, 502);
    becomes(&gateway, "ann", 3);
}

#[test]
fn an_upstream_that_is_late_costs_the_default() {
    let (upstream, _finish) = upstream::start();
    let config = format!("upstream_timeouts: {{first_byte: 300ms}}{}", budget());
    let gateway = Gateway::start(&upstream, &config);
    assert_eq!(get(&gateway, "/hold", "ann").status, 504);
    becomes(&gateway, "ann", 3);
}

#[test]
fn a_response_that_the_upstream_cuts_costs_what_its_head_names() {
    let (upstream, _finish) = upstream::start();
    let gateway = Gateway::start(&upstream, &budget());
    let mut spent = 0;
    for (path, cost) in [("/cost/8/cut", 8), ("/cut", 3), ("/status/500/cut", 0)] {
        let mut client = begin(&gateway, path, "ann");
        assert!(client.response("GET").is_err());
        spent += cost;
        becomes(&gateway, "ann", spent);
    }
}

#[test]
fn a_client_that_leaves_before_the_head_costs_the_default() {
    let (upstream, finish) = upstream::start();
    let gateway = Gateway::start(&upstream, &budget());
    let running = begin(&gateway, "/hold/cost/9", "ann");
    eventually("the request runs", || upstream.count() == 1);
    // While it runs, what it has reserved is held.
    shows(&gateway, "ann", 5);
    drop(running);
    becomes(&gateway, "ann", 3);
    finish.send(()).unwrap();
    becomes(&gateway, "ann", 3);
}

#[test]
fn a_client_that_leaves_in_the_body_costs_what_the_head_names() {
    let (upstream, _finish) = upstream::start();
    let gateway = Gateway::start(&upstream, &budget());
    let mut running = begin(&gateway, "/endless/cost/9", "ann");
    running.first_bytes();
    shows(&gateway, "ann", 5);
    drop(running);
    becomes(&gateway, "ann", 9);
}

#[test]
fn a_stream_that_is_reset_costs_what_is_known() {
    let (upstream, _finish) = upstream::start();
    let listeners = "listeners: [{address: 127.0.0.1:0, protocols: [h2c, http/1.1]}]";
    let gateway = Gateway::start(&upstream, &format!("{listeners}{}", budget()));
    let mut client = Http2Client::connect(gateway.http);
    let response = client.get("/cost/4", &[("x-user", "ann")]);
    assert_eq!(response.status, 200);
    becomes(&gateway, "ann", 4);
    let running = client.begin("GET", "/hold", &[("x-user", "ann")], true);
    eventually("the request runs", || used(&gateway, "ann") == 9);
    running.reset();
    becomes(&gateway, "ann", 7);
    let mut streaming = client.begin("GET", "/endless/cost/10", &[("x-user", "ann")], true).streaming().unwrap();
    streaming.part().unwrap();
    shows(&gateway, "ann", 12);
    drop(streaming);
    drop(client);
    becomes(&gateway, "ann", 17);
}

#[test]
fn what_the_gateway_answers_itself_costs_nothing() {
    let (upstream, _finish) = upstream::start();
    let config = format!(
        "upstreams: {{api: {{endpoints: [\"http://{}\"]}}}}\nroutes: [{{name: fixed, match: {{path: /fixed}}, respond: {{status: 200}}}}, {{name: all, upstream: api}}]\n{}",
        upstream.address,
        budget()
    );
    let gateway = Gateway::before_url("").with(&config).start();
    let response = get(&gateway, "/fixed", "ann");
    assert_eq!((response.status, response.number("ratelimit-remaining")), (200, 995));
    becomes(&gateway, "ann", 0);
}

#[test]
fn a_websocket_costs_what_the_head_names_when_it_ends() {
    let upstream = Upstream::answering(|request, stream| {
        use std::io::{Read, Write};
        if request.line.contains("/socket") {
            let _ = stream.write_all(SWITCHED.replacen("\r\n", "\r\nX-Cost: 11\r\n", 1).as_bytes());
            let _ = stream.read(&mut [0]);
            let _ = stream.shutdown(std::net::Shutdown::Both);
        } else {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nX-Cost: 0\r\nContent-Length: 2\r\n\r\nok");
        }
    });
    let gateway = Gateway::start(&upstream, &budget());
    let mut client = gateway.client();
    let fields = [&UPGRADE[..], &[("X-User", "ann")]].concat();
    assert_eq!(client.get("/socket", &fields).status, 101);
    shows(&gateway, "ann", 5);
    drop(client);
    becomes(&gateway, "ann", 11);
}

/// The limit of the file that admitted the request is charged, also when another file holds at its end.
#[test]
fn a_reload_in_between_changes_no_cost() {
    let (upstream, finish) = upstream::start();
    let gateway = Gateway::start(&upstream, &budget());
    let mut running = begin(&gateway, "/hold/cost/9", "ann");
    eventually("the request runs", || used(&gateway, "ann") == 5);
    gateway.reload(&upstream, "rules: [{name: other, limit_keys: [], algorithm_config: {rps: 9, burst: 9}}]");
    finish.send(()).unwrap();
    assert_eq!(running.response("GET").unwrap().status, 200);
    gateway.reload(&upstream, &budget());
    becomes(&gateway, "ann", 9);
}

#[test]
fn a_drain_settles_costs_as_their_requests_end() {
    let (upstream, finish) = upstream::start();
    let gateway = Gateway::start(&upstream, &format!("drain: {{delay: 30s}}{}", budget()));
    let mut running = begin(&gateway, "/hold/cost/9", "ann");
    eventually("the request runs", || used(&gateway, "ann") == 5);
    gateway.drain();
    shows(&gateway, "ann", 5);
    finish.send(()).unwrap();
    assert_eq!(running.response("GET").unwrap().status, 200);
    becomes(&gateway, "ann", 9);
}

/// A panic of the task of a request, after the decision and before anything was sent.
#[test]
#[cfg(feature = "test-hooks")]
fn a_panic_before_the_request_is_sent_costs_nothing() {
    let (upstream, _finish) = upstream::start();
    let gateway = Gateway::before(&upstream).with(&budget()).shell("export TOLLGATE_STUMBLE=decided/stumble").start();
    let mut client = begin(&gateway, "/stumble", "ann");
    assert!(client.response("GET").is_err());
    becomes(&gateway, "ann", 0);
}

/// A period that ends while a request runs: the cost counts in the period in which the request ends.
#[test]
fn a_cost_counts_in_the_period_in_which_it_is_settled() {
    let (upstream, finish) = upstream::start();
    let rules = "
rules:
  - name: spend
    limit_keys: [header:x-user]
    algorithm: fixed_window
    algorithm_config:
      {limit: 1000, window: 2s, cost_source: \"response_header:x-cost\", reserve: 5, default_cost: 3}";
    let gateway = Gateway::start(&upstream, rules);
    let mut running = begin(&gateway, "/hold/cost/90", "ann");
    eventually("the request runs", || used(&gateway, "ann") == 5);
    std::thread::sleep(Duration::from_millis(2100));
    // What is held counts in whatever period is running.
    shows(&gateway, "ann", 5);
    // The cost is read in the period in which it is settled.
    eventually("a period begins", || get(&gateway, "/cost/0", "ann").number("ratelimit-reset") == 2);
    finish.send(()).unwrap();
    assert_eq!(running.response("GET").unwrap().status, 200);
    eventually("the cost is settled", || used(&gateway, "ann") == 90);
    eventually("the next period begins", || used(&gateway, "ann") == 0);
}

/// A budget in shadow mode settles as well, in its own bucket, and refuses nothing.
#[test]
fn a_shadow_settles_its_own_bucket() {
    let (upstream, _finish) = upstream::start();
    let gateway = Gateway::start(
        &upstream,
        &budget_with("cost_source: \"response_header:x-cost\", default_cost: 3, shadow: {limit: 10}"),
    );
    for spent in [9, 18, 27] {
        assert_eq!(get(&gateway, "/cost/9", "ann").status, 200);
        becomes(&gateway, "ann", spent);
    }
    assert!(gateway.metric("rate_limiter_rejected_total", &["mode=\"shadow\""]) >= 1.0);
    // The limit of 10 would have refused all requests but the first, so only the first has settled there.
    gateway.expect("rate_limiter_settled_cost_total", &["mode=\"shadow\""], 9.0);
}

/// With `count_on`, a request costs what it held, or nothing.
#[test]
fn only_the_counted_results_cost_something() {
    let (upstream, _finish) = upstream::start();
    let rules = "
rules:
  - name: guesses
    limit_keys: [header:x-user]
    algorithm: fixed_window
    algorithm_config: {limit: 1000, window: 366d, fixed_cost: 5, count_on: [401, 5xx]}";
    let gateway = Gateway::start(&upstream, rules);
    let mut spent = 0;
    for (path, status, cost) in [
        ("/none", 200, 0),
        ("/status/401", 401, 5),
        ("/status/404", 404, 0),
        ("/status/503", 503, 5),
        ("/silent", 502, 5),
    ] {
        assert_eq!(get(&gateway, path, "ann").status, status, "{path}");
        spent += cost;
        becomes(&gateway, "ann", spent);
    }
    gateway.expect("rate_limiter_usage_missing_total", &["rule=\"guesses\""], 0.0);
}

/// A number in the JSON body of a response, also of one that is cut after it.
#[test]
fn a_json_body_names_the_cost() {
    use std::io::Write;
    let upstream = Upstream::answering(|request, stream| {
        let body = match request.line.split(' ').nth(1).unwrap() {
            "/units" => r#"{"rows": [1, 2], "usage": {"units": 12}}"#,
            "/cut" => r#"{"usage": {"units": 7}, "rows": ["#,
            "/twice" => r#"{"usage": {"units": 1, "units": 2}}"#,
            "/text" => "not JSON",
            _ => r#"{"usage": {"units": 0}}"#,
        };
        let more = if body.ends_with('[') { 10 } else { 0 };
        let _ = write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len() + more);
        if more > 0 {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    });
    let gateway =
        Gateway::start(&upstream, &budget_with("cost_source: \"response_json:/usage/units\", default_cost: 3"));
    let mut spent = 0;
    for (path, cost) in [("/units", 12), ("/cut", 7), ("/twice", 3), ("/text", 3)] {
        let _ = begin(&gateway, path, "ann").response("GET");
        spent += cost;
        becomes(&gateway, "ann", spent);
    }
    let seen = upstream.last();
    assert_eq!(seen.field("accept-encoding"), Some("identity"));
}
