//! A request that ends while its decision waits for Redis has its line in the access log, and is counted once.

use std::time::Duration;

use serde_json::Value;

use crate::support::http2::Http2Client;
use crate::support::{Gateway, Redis, Upstream, access_log, eventually};

const RULES: &str = "rules: [{name: one, limit_keys: [], algorithm_config: {rate: 100/day}}]\n";
const REQUEST: &str = "GET / HTTP/1.1\r\nHost: a\r\nX-Request-Id: waits\r\n\r\n";

/// Starts a gateway whose decisions wait for a Redis that is stopped once a call has passed.
fn start(redis: &Redis, upstream: &Upstream) -> Gateway {
    let listener = "listeners: [{address: 127.0.0.1:0, protocols: [h2c, http/1.1]}]\n";
    let log = "threads: 1\naccess_log: {to: access.jsonl}\ndrain: {timeout: 300ms}\n";
    let text = format!("{listener}{log}{}{RULES}", redis.patient_store());
    // So that all that Redis gets is a call for one of these requests.
    let hour = Duration::from_secs(3600);
    let gateway = Gateway::before(upstream).with(&text).interval("heartbeat", hour).start();
    assert_eq!(gateway.client().get("/", &[]).status, 200);
    redis.signal("STOP");
    gateway
}

/// The lines of the request that waited.
fn lines(gateway: &Gateway) -> Vec<Value> {
    access_log::lines(gateway).into_iter().filter(|line| line["request_id"] == "waits").collect()
}

#[test]
fn a_request_that_the_end_of_a_drain_cuts_before_its_decision_has_a_line_in_the_access_log() {
    let check = |send: &dyn Fn(&Gateway) -> Box<dyn std::any::Any>| {
        let (redis, upstream) = (Redis::start(), Upstream::start());
        let mut gateway = start(&redis, &upstream);
        let _client = send(&gateway);
        eventually("the call is under way", || redis.has_unread_calls());
        gateway.signal("TERM");
        assert_eq!(gateway.wait().0.code(), Some(0));
        redis.signal("CONT");
        let lines = lines(&gateway);
        let [line] = &lines[..] else { panic!("{lines:?}") };
        let ended = (&line["kind"], &line["code"], &line["origin"], &line["detail"]);
        assert_eq!(ended, (&"error".into(), &499.into(), &"gateway".into(), &"shutdown".into()), "{line}");
        assert!(line["decision_us"].is_null() && line["upstream_us"].is_null(), "{line}");
        assert_eq!(upstream.count(), 1);
    };
    check(&|gateway| {
        let mut client = gateway.client();
        client.write(REQUEST);
        Box::new(client)
    });
    check(&|gateway| {
        let mut client = Http2Client::connect(gateway.http);
        let request = client.begin("GET", "/", &[("X-Request-Id", "waits")], true);
        Box::new((client, request))
    });
}

#[test]
fn a_client_that_leaves_during_its_decision_is_counted_once_and_goes_to_no_upstream() {
    let check = |leave: &dyn Fn(&Gateway, &Redis)| {
        let (redis, upstream) = (Redis::start(), Upstream::start());
        let gateway = start(&redis, &upstream);
        leave(&gateway, &redis);
        gateway.answers_without_the_store();
        redis.signal("CONT");
        gateway.expect("tollgate_http_requests_total", &["code=\"499\""], 1.0);
        gateway.expect("tollgate_http_requests_total", &["code=\"200\""], 1.0);
        eventually("it has a line", || !lines(&gateway).is_empty());
        let lines = lines(&gateway);
        let [line] = &lines[..] else { panic!("{lines:?}") };
        let ended = (&line["kind"], &line["code"], &line["origin"]);
        assert_eq!(ended, (&"error".into(), &499.into(), &"gateway".into()), "{line}");
        // What was charged is reported.
        assert_eq!((&line["rule"], &line["remaining"]), (&"one".into(), &98.into()), "{line}");
        assert_eq!(upstream.count(), 1);
    };
    check(&|gateway, redis| {
        let mut client = gateway.client();
        client.write(REQUEST);
        eventually("the call is under way", || redis.has_unread_calls());
    });
    check(&|gateway, redis| {
        let mut client = Http2Client::connect(gateway.http);
        let request = client.begin("GET", "/", &[("X-Request-Id", "waits")], true);
        eventually("the call is under way", || redis.has_unread_calls());
        request.reset();
    });
}
