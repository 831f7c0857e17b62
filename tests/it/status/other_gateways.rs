//! Announcements between gateways on one Redis.

use std::time::Duration;

use serde_json::Value;

use super::document::{document, eventually_reported};
use crate::support::{Gateway, Redis, Upstream, eventually, now};

fn text(redis: &Redis, rate: u64) -> String {
    let store = format!("store: {{redis: {{url: \"redis://127.0.0.1:{}\"}}}}\n", redis.port);
    store + &format!("rules:\n  - {{name: one, limit_keys: [header:x-user], algorithm_config: {{rate: {rate}/day}}}}\n")
}

fn start(upstream: &Upstream, redis: &Redis, rate: u64) -> Gateway {
    Gateway::before(upstream).with(&text(redis, rate)).short_heartbeats().start()
}

fn others(document: &Value) -> &[Value] {
    document["others"].as_array().unwrap()
}

#[test]
fn a_gateway_that_runs_another_file_is_named_until_it_runs_the_same_or_goes() {
    let (redis, upstream) = (Redis::start(), Upstream::start());
    let [one, two] = [1, 1].map(|rate| start(&upstream, &redis, rate));
    let both = |gateway| eventually_reported(gateway, "two are alive", |reported| reported["store"]["gateways"] == 2.0);
    assert_eq!([others(&both(&one)).len(), others(&both(&two)).len()], [0, 0]);
    // The same text in another file is the same configuration.
    two.reload(&upstream, &text(&redis, 2));
    let reported = eventually_reported(&one, "it is heard of", |reported| !others(reported).is_empty());
    let [other] = others(&reported) else { panic!("{reported}") };
    // A document from before the reload is served for half a second.
    let same = |reported: &Value| reported["config"]["hash"] == other["configuration"];
    let reloaded = eventually_reported(&two, "its own document has what it announced", same);
    assert_eq!(other["host"], reloaded["host"]);
    let seen = eventually_reported(&two, "the first is heard of", |reported| !others(reported).is_empty());
    assert_eq!(others(&seen)[0]["configuration"], reported["config"]["hash"]);
    one.reload(&upstream, &text(&redis, 2));
    eventually_reported(&one, "they run the same", |reported| others(reported).is_empty());

    two.reload(&upstream, &text(&redis, 3));
    eventually_reported(&one, "it is heard of again", |reported| !others(reported).is_empty());
    drop(two);
    nobody_is_shown(&one);
}

/// Waits until no other gateway is shown. An announcement is valid for seven seconds.
fn nobody_is_shown(gateway: &Gateway) {
    let deadline = now() + Duration::from_secs(15);
    while !others(&document(gateway)).is_empty() {
        assert!(now() < deadline);
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_silent_gateway_is_no_longer_shown_though_redis_answers() {
    let (redis, upstream) = (Redis::start(), Upstream::start());
    let [one, _two] = [1, 2].map(|rate| start(&upstream, &redis, rate));
    eventually_reported(&one, "it is heard of", |reported| others(reported).len() == 1);
    // Keys of buckets alone: they have sixteen bytes after the colon.
    let buckets = format!("~tollgate:{}", "?".repeat(16));
    redis.command::<()>(&["ACL", "SETUSER", "default", "resetkeys", &buckets]);
    eventually("it is refused", || one.metric("rate_limiter_store_errors_total", &["forbidden"]) >= 1.0);
    assert_eq!(one.client().get("/", &[("x-user", "a")]).status, 200);
    nobody_is_shown(&one);
    assert_eq!(document(&one)["store"]["up"], true);
    assert_eq!(one.client().get("/", &[("x-user", "b")]).status, 200);
}

#[test]
fn three_keys_describe_the_gateways_as_documented() {
    let (redis, upstream) = (Redis::start(), Upstream::start());
    let one = Gateway::start(&upstream, &text(&redis, 1));
    let two = Gateway::start(&upstream, &text(&redis, 2));
    eventually_reported(&one, "it is heard of", |reported| others(reported).len() == 1);
    eventually_reported(&two, "it is heard of", |reported| others(reported).len() == 1);
    let mut keys: Vec<String> = redis.command(&["KEYS", "*"]);
    keys.sort();
    assert_eq!(keys, ["tollgate:formats", "tollgate:gateways", "tollgate:running"]);
    let page = include_str!("../../../docs/stores.md");
    for key in &keys {
        assert!(page.contains(&format!("| `{key}` |")), "{key}");
        // Each gateway tells again long before.
        assert!((1..=7000).contains(&redis.command::<i64>(&["PTTL", key])), "{key}");
    }
    assert_eq!(redis.command::<Vec<u8>>(&["GET", "tollgate:gateways"]).len(), 2 * 16);
    assert_eq!(redis.command::<Vec<u8>>(&["GET", "tollgate:formats"]).len(), 2 * 17);
    let running: Vec<u8> = redis.command(&["GET", "tollgate:running"]);
    let document = document(&one);
    let [host, hash] = [&document["host"], &document["config"]["hash"]].map(|reported| reported.as_str().unwrap());
    assert_eq!((hash.len(), running.len()), (8, 2 * (26 + host.len())));
    // In the clear.
    let reported = [&[u8::try_from(host.len()).unwrap()], host.as_bytes(), &[8], hash.as_bytes()].concat();
    assert!(running.windows(reported.len()).any(|window| window == reported));
}

#[test]
fn unexpected_values_in_the_announcements_are_survived() {
    let (redis, upstream) = (Redis::start(), Upstream::start());
    let [one, two] = [1, 2].map(|rate| start(&upstream, &redis, rate));
    eventually_reported(&one, "it is heard of", |reported| others(reported).len() == 1);
    let heard = |gateway: &Gateway| {
        eventually_reported(gateway, "it is heard of again", |reported| others(reported).len() == 1)
    };
    for junk in ["x", "0123456789abcdef", "0123456789abcdef\u{7f}", &"y".repeat(70_000), &"z".repeat(5_000)] {
        redis.command::<()>(&["SET", "tollgate:running", junk]);
        let before = redis.command::<Vec<u8>>(&["GET", "tollgate:running"]);
        eventually("the list is one again", || {
            let list = redis.command::<Vec<u8>>(&["GET", "tollgate:running"]);
            list != before && list.len() > 2 * 18 && list.len() < 2 * (18 + 128)
        });
        heard(&one);
        heard(&two);
    }
    redis.command::<i64>(&["DEL", "tollgate:running"]);
    redis.command::<i64>(&["HSET", "tollgate:running", "a", "b"]);
    eventually("it is text again", || redis.command::<String>(&["TYPE", "tollgate:running"]) == "string");
    heard(&one);
    assert_eq!(one.metric("rate_limiter_store_errors_total", &["garbled"]), 0.0);
}

#[test]
fn a_gateway_that_announces_less_is_counted() {
    let (redis, upstream) = (Redis::start(), Upstream::start());
    let one = Gateway::start(&upstream, &text(&redis, 1));
    // As one of an earlier version says that it is alive: in the one list alone.
    let script = "local time = redis.call('TIME') \
        local old = redis.call('GET', KEYS[1]) or '' \
        return redis.call('SET', KEYS[1], old .. '12345678' .. struct.pack('<I8', time[1] * 1000000 + time[2]))";
    redis.command::<()>(&["EVAL", script, "1", "tollgate:gateways"]);
    one.expect("rate_limiter_live_gateways", &[], 2.0);
    assert_eq!(others(&document(&one)).len(), 0);
}
