//! Decisions that wait for the store for a shorter time than the store may take: what the store has decided by then counts,
//! and its later answer is not lost.

use std::time::Duration;

use super::http_door::forwarded;
use crate::support::{Answers, Client, Gateway, Redis, RedisCluster, Relay, Replicas, Upstream, eventually};

/// Returns a listener that waits this long for a decision.
fn listener(answer_within: &str) -> String {
    format!(
        "{{name: door, address: 127.0.0.1:0, decide: [http], clients: [127.0.0.0/8], original_request: x-forwarded, \
         answer_within: {answer_within}}}"
    )
}

fn policy(name: &str, on_store_failure: &str) -> String {
    let limit = "algorithm_config: {rate: 6/day}";
    let rule = format!(
        "{{name: {name}, limit_keys: [header:x-{name}], on_store_failure: {on_store_failure}, expose: true, {limit}}}"
    );
    format!("  - {{name: {name}s, rules: [{rule}]}}\n")
}

/// Returns the first name whose bucket is on a wanted node. The search spends one unit of this bucket.
fn name_on(cluster: &RedisCluster, client: &mut Client, field: &str, wanted: impl Fn(usize) -> bool) -> String {
    let counts = || cluster.masters.iter().map(|master| master.keys().len()).collect::<Vec<_>>();
    for number in 0..100 {
        let name = format!("n{number}");
        let before = counts();
        assert_eq!(forwarded(client, "GET", "http://a/x", &[(field, &name)]).status, 200);
        let grown = counts().iter().zip(before).position(|(after, before)| *after > before);
        if grown.is_some_and(&wanted) {
            return name;
        }
    }
    panic!("no bucket is there")
}

#[test]
fn what_the_nodes_of_a_cluster_decide_in_time_counts_although_one_of_them_hangs() {
    let cluster = RedisCluster::start(Replicas::None);
    let store = cluster.store("deny", "").replace("timeout: 10s", "timeout: 20s");
    let policies = format!("policies:\n{}{}", policy("user", "allow"), policy("org", "deny"));
    let file = format!("listeners: [{}]\n{store}{policies}", listener("3s"));
    let gateway = Gateway::deciding().with(&file).start();
    for node in cluster.addresses() {
        gateway.expect("rate_limiter_store_up", &[&format!("node=\"{node}\"")], 1.0);
    }
    let mut client = gateway.client();
    let user = name_on(&cluster, &mut client, "X-User", |node| node == 0);
    let org = name_on(&cluster, &mut client, "X-Org", |node| node != 0);
    cluster.masters[0].signal("STOP");
    // The limit of the organisation would deny, if its node were not heard.
    for left in [4, 3] {
        let answer = forwarded(&mut client, "GET", "http://a/x", &[("X-User", &user), ("X-Org", &org)]);
        assert_eq!((answer.status, answer.number("RateLimit-Remaining")), (200, left), "{answer:?}");
    }
    let fallbacks = |rule| gateway.metric("rate_limiter_fallback_decisions_total", &[rule, "cause=\"timeout\""]);
    assert_eq!((fallbacks("rule=\"user\""), fallbacks("rule=\"org\"")), (2.0, 0.0));
    cluster.masters[0].signal("CONT");
    // It stays charged.
    let alone = forwarded(&mut client, "GET", "http://a/x", &[("X-Org", &org)]);
    assert_eq!((alone.status, alone.number("RateLimit-Remaining")), (200, 2), "{alone:?}");
}

#[test]
fn decisions_that_do_not_wait_for_the_store_keep_no_breaker_open() {
    let (redis, upstream) = (Redis::start(), Upstream::start());
    let relay = Relay::start(redis.port);
    let store = format!(
        "store: {{redis: {{url: \"redis://127.0.0.1:{}\", timeout: 1s}}, breaker: {{failures: 1, cooldown: 100ms, max_cooldown: 100ms}}}}",
        relay.port
    );
    let rules = "on_store_failure: allow\nrules: [{name: one, limit_keys: [], expose: true, algorithm_config: {rate: 1000/day}}]";
    let file = format!("listeners: [{{address: 127.0.0.1:0}}, {}]\n{store}\n{rules}", listener("50ms"));
    let gateway = Gateway::before(&upstream).with(&file).start();
    gateway.expect("rate_limiter_store_up", &[], 1.0);
    let mut proxied = gateway.client();
    eventually("the store decides", || proxied.get("/", &[]).field("RateLimit").is_some());
    // Long enough for the breaker, and too short for the connection to be given up.
    relay.set(Answers::Late(Duration::from_millis(1500)));
    assert!(proxied.get("/", &[]).field("RateLimit").is_none());
    gateway.expect("rate_limiter_breaker_open", &[], 1.0);
    // Sooner than the store's timeout, and later than any decision waits.
    relay.set(Answers::Late(Duration::from_millis(150)));
    let mut edge = Client::connect(gateway.listeners[1]);
    eventually("the breaker closes", || {
        assert_eq!(forwarded(&mut edge, "GET", "http://a/x", &[]).status, 200);
        gateway.metric("rate_limiter_breaker_open", &[]) == 0.0
    });
    eventually("the store decides for those who wait", || proxied.get("/", &[]).field("RateLimit").is_some());
}
