//! Redis is far away: requests are decided there while `timeout` has room for it; otherwise the log names the missing time.

use std::time::Duration;

use crate::support::{Answers, Gateway, Redis, Relay, Upstream, eventually, now};

/// The number of callers. Each sends two requests.
const CALLERS: u32 = 24;
const REQUESTS: usize = 48;
const LIMIT: usize = 20;

/// Starts a gateway with one thread. Its connection to Redis passes through this relay.
fn gateway(upstream: &Upstream, relay: &Relay, timeout: &str) -> Gateway {
    let redis = format!("{{url: \"redis://127.0.0.1:{}\", timeout: {timeout}}}", relay.port);
    let store = format!("threads: 1\nstore: {{redis: {redis}, breaker: {{failures: 1000}}}}\non_store_failure: deny\n");
    let rule = format!("{{name: one, limit_keys: [header:x-user], algorithm_config: {{rate: {LIMIT}/day}}}}");
    let gateway = Gateway::start(upstream, &format!("{store}rules: [{rule}]\n"));
    gateway.expect("rate_limiter_store_up", &[], 1.0);
    gateway
}

/// Sends requests of one user, with pauses, so that they arrive at different times of a call. Returns their statuses.
fn statuses(gateway: &Gateway, user: &str) -> Vec<u16> {
    std::thread::scope(|scope| {
        let caller = |number: u32| {
            let mut client = gateway.client();
            scope.spawn(move || {
                std::thread::sleep(number * Duration::from_millis(40));
                [(); 2].map(|()| client.get("/", &[("X-User", user)]).status)
            })
        };
        let callers: Vec<_> = (0..CALLERS).map(caller).collect();
        callers.into_iter().flat_map(|caller| caller.join().unwrap()).collect()
    })
}

#[test]
fn no_request_is_lost_although_a_call_takes_more_than_half_of_the_timeout() {
    const AWAY: Duration = Duration::from_millis(600);
    let (redis, upstream) = (Redis::start(), Upstream::start());
    let relay = Relay::start(redis.port);
    let gateway = gateway(&upstream, &relay, "1s");
    relay.set(Answers::Late(AWAY));
    // A machine that stands still makes calls late: then once more.
    let mut round = 0;
    eventually("a round without a loss", || {
        round += 1;
        let (calls, since) = (gateway.metric("rate_limiter_store_calls_total", &[]), now());
        let statuses = statuses(&gateway, &format!("user {round}"));
        let calls = gateway.metric("rate_limiter_store_calls_total", &[]) - calls;
        // Never more than five at once.
        assert!(calls <= 5.0 * (since.elapsed().as_secs_f64() / AWAY.as_secs_f64() + 1.0), "{calls} calls");
        let count = |wanted: u16| statuses.iter().filter(|status| **status == wanted).count();
        assert!(count(200) <= LIMIT, "{statuses:?}");
        (count(200), count(429)) == (LIMIT, REQUESTS - LIMIT)
    });
    assert!(round <= 3, "{round} rounds");
}

#[test]
fn the_log_says_which_timeout_a_long_way_needs() {
    let (redis, upstream) = (Redis::start(), Upstream::start());
    let relay = Relay::start(redis.port);
    let gateway = gateway(&upstream, &relay, "500ms");
    relay.set(Answers::Late(Duration::from_millis(450)));
    let said = || {
        let errors = gateway.errors();
        let line = errors.lines().find(|line| line.contains("the store takes too long for its timeout"))?;
        let number = |name: &str| {
            let (_, rest) = line.split_once(name)?;
            rest.split(' ').next()?.parse::<u64>().ok()
        };
        Some((number(" took_ms=")?, number(" timeout_ms=")?))
    };
    eventually("it is said", || {
        statuses(&gateway, "a");
        said().is_some()
    });
    let (took, needed) = said().unwrap();
    // Both are rounded up.
    assert!(took >= 450 && (5 * (took - 1)..=5 * took + 3).contains(&(4 * needed)), "{took} {needed}");
}

#[test]
fn requests_that_cannot_be_sent_in_time_are_counted_and_logged() {
    let (redis, upstream) = (Redis::start(), Upstream::start());
    let gateway = gateway(&upstream, &Relay::start(redis.port), "500ms");
    assert_eq!(gateway.client().get("/", &[("X-User", "a")]).status, 200);
    redis.signal("STOP");
    eventually("some are not sent", || {
        statuses(&gateway, "a");
        gateway.metric("rate_limiter_fallback_decisions_total", &["rule=\"one\"", "cause=\"unsent\""]) > 0.0
    });
    gateway.expect_logged("requests were not sent to the store in time server=\"Redis at ");
    redis.signal("CONT");
}
