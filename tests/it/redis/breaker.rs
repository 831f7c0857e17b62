//! Tests of the circuit breaker: the failures that open it, the probe that closes it, and late calls that leave it closed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::outage::{RULES, ask, text};
use crate::support::{Answers, Gateway, Redis, Relay, Upstream, eventually, now};

#[test]
fn the_breaker_opens_after_a_few_calls_without_a_reply() {
    let (redis, upstream) = (Redis::start(), Upstream::start());
    // No probe before the thirty requests are over.
    let config = text(&redis, "allow").replace("\"}}", "\"}, breaker: {cooldown: 2s}}");
    let gateway = Gateway::start(&upstream, &config);
    let mut client = gateway.client();
    assert_eq!(ask(&mut client).0, 200);
    redis.signal("STOP");
    (0..30).for_each(|_| assert_eq!(ask(&mut client).0, 200));
    let waited = gateway.metric("rate_limiter_fallback_decisions_total", &["cause=\"timeout\""]);
    assert!((1.0..=6.0).contains(&waited), "{waited}");
    gateway.expect("rate_limiter_breaker_open", &[], 1.0);
    let open = gateway.metric("rate_limiter_fallback_decisions_total", &["cause=\"breaker_open\""]);
    assert!(open >= 24.0, "{open}");
    redis.signal("CONT");
    // One request sees that it answers again, and all are limited again. A probe that came too early doubles the pause.
    let deadline = now() + Duration::from_secs(20);
    while client.get("/", &[("X-User", "a")]).field("RateLimit").is_none() {
        assert!(now() < deadline, "never well again: {}", gateway.errors());
        std::thread::sleep(Duration::from_millis(10));
    }
    gateway.expect("rate_limiter_breaker_open", &[], 0.0);
    gateway.expect("rate_limiter_store_up", &[], 1.0);
    for change in ["opened, the store did not answer in time", "closed, the store answers again"] {
        let expected = format!("circuit breaker {change} server=\"Redis at 127.0.0.1:{}\"", redis.port);
        gateway.expect_logged(&expected);
    }
}

#[test]
fn the_breaker_opens_when_half_of_a_hundred_calls_fail() {
    let (redis, upstream) = (Redis::start(), Upstream::start());
    let relay = Relay::start(redis.port);
    let store = format!(
        "store: {{redis: {{url: \"redis://127.0.0.1:{}\", timeout: 5s}}, breaker: {{cooldown: 60s, max_cooldown: 60s}}}}
on_store_failure: allow
",
        relay.port
    );
    let hour = Duration::from_secs(3600);
    let gateway = Gateway::before(&upstream).with(&(store + RULES)).interval("heartbeat", hour).start();
    let mut client = gateway.client();
    let mut is_limited = || client.get("/", &[("X-User", "a")]).field("RateLimit").is_some();
    // More than the hundred that count.
    for _ in 0..100 {
        assert!(is_limited());
    }
    relay.set(Answers::EverySecond("ERR a test"));
    let limited = (0..150).filter(|_| is_limited()).count();
    // The fiftieth failure opens it, and then no request makes a call.
    gateway.expect("rate_limiter_store_errors_total", &["refused"], 50.0);
    assert!((49..=50).contains(&limited), "{limited}");
    gateway.expect("rate_limiter_breaker_open", &[], 1.0);
}

#[test]
fn the_breaker_opens_if_all_replies_come_between_one_timeout_and_two() {
    let (redis, upstream) = (Redis::start(), Upstream::start());
    let relay = Relay::start(redis.port);
    let store = format!(
        "store: {{redis: {{url: \"redis://127.0.0.1:{}\", timeout: 200ms}}, breaker: {{cooldown: 60s, max_cooldown: 60s}}}}
on_store_failure: allow
",
        relay.port
    );
    let gateway = Gateway::start(&upstream, &(store + RULES));
    let mut client = gateway.client();
    eventually("Redis decides", || client.get("/", &[("X-User", "a")]).field("RateLimit").is_some());
    relay.set(Answers::Late(Duration::from_millis(300)));
    for _ in 0..10 {
        assert_eq!(ask(&mut client).0, 200);
    }
    gateway.expect("rate_limiter_breaker_open", &[], 1.0);
}

/// There are 32 callers. A pause of Redis makes the calls under way late, once for each connection.
#[track_caller]
fn one_pause_does_not_open_the_breaker(threads: u32, user: fn(u32) -> String) {
    let redis = Redis::start();
    let upstream = Upstream::start();
    // Long enough that a busy machine alone makes no call late; and no bucket that empties, since what is known to be empty is
    // refused without a call.
    let store = format!("store: {{redis: {{url: \"redis://127.0.0.1:{}\", timeout: 500ms}}}}", redis.port);
    let rules = RULES.replace("1000/day", "1000000000/day");
    let gateway = Gateway::start(&upstream, &format!("threads: {threads}\n{store}\non_store_failure: deny\n{rules}"));
    let by_cause = |cause: &str| {
        gateway.metric("rate_limiter_fallback_decisions_total", &["rule=\"one\"", &format!("cause=\"{cause}\"")])
    };
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for caller in 0..32 {
            let (gateway, ended) = (&gateway, &ended);
            scope.spawn(move || {
                let (mut client, user) = (gateway.client(), user(caller));
                while !ended.load(Ordering::Relaxed) {
                    client.get("/", &[("X-User", &user)]);
                }
            });
        }
        // A gateway that stands still for as long as Redis does not notice it.
        for _ in 0..5 {
            std::thread::sleep(Duration::from_millis(300));
            redis.command::<()>(&["CLIENT", "PAUSE", "700", "ALL"]);
            std::thread::sleep(Duration::from_millis(1100));
            if by_cause("timeout") > 0.0 {
                break;
            }
        }
        ended.store(true, Ordering::Relaxed);
    });
    assert!(by_cause("timeout") > 0.0, "nobody noticed the pause");
    assert_eq!(by_cause("breaker_open"), 0.0, "{threads} threads");
}

#[test]
fn one_late_call_for_many_requests_does_not_open_the_breaker() {
    one_pause_does_not_open_the_breaker(2, |_| "a".to_owned());
}

#[test]
fn late_calls_of_many_connections_at_once_do_not_open_the_breaker() {
    one_pause_does_not_open_the_breaker(8, |caller| format!("caller {caller}"));
}
