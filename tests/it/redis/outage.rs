//! Redis stops, hangs, loses data or sends wrong replies. Every request is answered in time according to the configuration,
//! and the gateway recovers by itself.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::support::{Client, Gateway, Lateness, Redis, Upstream, eventually, free_port, now};

/// The default of `timeout`.
const TIMEOUT: Duration = Duration::from_millis(50);
/// The longest time for a decision, with a margin for a machine that is not busy.
const IN_TIME: Duration = Duration::from_millis(50 + 250);

pub(super) const RULES: &str =
    "rules:\n  - {name: one, limit_keys: [header:x-user], algorithm_config: {rate: 1000/day}}\n";

pub(super) fn text(redis: &Redis, on_store_failure: &str) -> String {
    redis.store(on_store_failure) + RULES
}

/// Sends one request. Returns its status, and how long it took.
#[track_caller]
pub(super) fn ask(client: &mut Client) -> (u16, Duration) {
    let sent: Instant = now();
    let status = client.get("/", &[("X-User", "a")]).status;
    (status, sent.elapsed())
}

/// While Redis is `broken`, requests are answered in time according to `on_store_failure`. Afterwards they are limited again.
#[track_caller]
fn goes_through(
    on_store_failure: &str,
    redis: &mut Redis,
    cause: &str,
    breaks: impl Fn(&mut Redis),
    mends: impl Fn(&mut Redis),
) {
    let (upstream, lateness) = (Upstream::start(), Lateness::measure());
    let gateway = Gateway::start(&upstream, &text(redis, on_store_failure));
    let mut client = gateway.client();
    // A single call may be late on a busy machine.
    eventually("Redis decides", || client.get("/", &[("X-User", "a")]).field("RateLimit").is_some());
    let before = gateway.metric("rate_limiter_fallback_decisions_total", &[]);
    breaks(redis);
    let expected = if on_store_failure == "allow" { 200 } else { 503 };
    let (mut fallen_back, mut shortest_wait) = (0, Duration::MAX);
    let end = now() + Duration::from_millis(1500);
    while now() < end {
        let response_at = now();
        let response = client.get("/", &[("X-User", "a")]);
        let took = response_at.elapsed();
        let busy = lateness.of_a_request();
        assert!(took < IN_TIME + busy, "{cause}: {took:?} on a machine that delays it by {busy:?}");
        if took >= TIMEOUT {
            shortest_wait = shortest_wait.min(took);
        }
        assert_eq!(response.status, expected, "{cause}: {response:?}");
        // No level is known; the limit's name and quota are.
        assert!(response.field("RateLimit").is_none(), "{cause}: {response:?}");
        assert!(response.field("RateLimit-Policy").is_some(), "{cause}: {response:?}");
        if expected == 503 {
            assert_eq!(response.field("X-Tollgate-Reason").unwrap(), "store_unavailable");
            assert!((3..=5).contains(&response.number("Retry-After")), "{response:?}");
        }
        fallen_back += 1;
    }
    if cause == "timeout" {
        // The first five requests wait, and then probes.
        let (longest, busy) = (2 * TIMEOUT, lateness.of_a_request());
        assert!(shortest_wait < longest || busy > IN_TIME, "{shortest_wait:?} on a machine that delays it by {busy:?}");
    }
    let labels = ["rule=\"one\"", &format!("action=\"{on_store_failure}\"")];
    gateway.expect("rate_limiter_fallback_decisions_total", &labels, before + f64::from(fallen_back));
    let of_cause = [labels[0], labels[1], &format!("cause=\"{cause}\"")];
    assert!(gateway.metric("rate_limiter_fallback_decisions_total", &of_cause) > 0.0, "{cause}");
    assert!(Client::connect(gateway.admin).get("/readyz", &[]).status == 200);
    mends(redis);
    gateway.expect("rate_limiter_store_up", &[], 1.0);
    let deadline = now() + Duration::from_secs(20);
    while client.get("/", &[("X-User", "a")]).field("RateLimit").is_none() {
        assert!(now() < deadline, "{cause}: never well again: {}", gateway.errors());
        std::thread::sleep(Duration::from_millis(10));
    }
    // Each of a series, although single calls may be late on a busy machine.
    eventually(&format!("{cause}: Redis decides again"), || {
        let (before, fallbacks) = (upstream.count(), gateway.metric("rate_limiter_fallback_decisions_total", &[]));
        let granted = (0..20).filter(|_| ask(&mut client).0 == 200).count();
        granted == 20
            && upstream.count() - before == 20
            && gateway.metric("rate_limiter_fallback_decisions_total", &[]) == fallbacks
    });
}

#[test]
fn each_policy_survives_a_crash() {
    for policy in ["allow", "deny"] {
        goes_through(policy, &mut Redis::start(), "unreachable", Redis::kill, Redis::restart);
    }
}

#[test]
fn each_policy_survives_a_server_that_hangs() {
    for policy in ["allow", "deny"] {
        let (stop, go_on) = (|redis: &mut Redis| redis.signal("STOP"), |redis: &mut Redis| redis.signal("CONT"));
        goes_through(policy, &mut Redis::start(), "timeout", stop, go_on);
    }
}

#[test]
fn a_call_that_hangs_delays_no_request_beyond_the_timeout() {
    let (redis, upstream) = (Redis::start(), Upstream::start());
    let url = format!("redis://127.0.0.1:{}", redis.port);
    let store = format!("store: {{redis: {{url: \"{url}\", timeout: 500ms}}, breaker: {{failures: 100}}}}");
    let gateway = Gateway::start(&upstream, &format!("{store}\non_store_failure: deny\n{RULES}"));
    // How long each caller waited, at the least: each comes at another moment of the calls under way.
    let mut shortest = [Duration::MAX; 24];
    for _ in 0..5 {
        eventually("Redis decides", || ask(&mut gateway.client()).0 == 200);
        let lateness = Lateness::measure();
        redis.signal("STOP");
        let took: Vec<_> = std::thread::scope(|scope| {
            let caller = |number: u32| {
                let mut client = gateway.client();
                scope.spawn(move || {
                    std::thread::sleep(number * Duration::from_millis(40));
                    ask(&mut client)
                })
            };
            let callers: Vec<_> = (0..24).map(caller).collect();
            callers.into_iter().map(|caller| caller.join().unwrap()).collect()
        });
        redis.signal("CONT");
        let busy = lateness.of_a_request();
        let in_time = Duration::from_millis(500)..Duration::from_millis(750) + busy;
        let is_right = |(status, took): &(u16, Duration)| *status == 503 && in_time.contains(took);
        assert!(took.iter().all(is_right), "{took:?} on a machine that delays them by {busy:?}");
        for (shortest, (_, took)) in shortest.iter_mut().zip(took) {
            *shortest = (*shortest).min(took);
        }
        // A busy machine delays some callers in each round, and others in the next.
        if shortest.iter().all(|took| *took < Duration::from_millis(750)) {
            return;
        }
    }
    panic!("longer than half of the timeout beyond it: {shortest:?}");
}

#[test]
fn each_policy_survives_a_demotion_to_a_replica() {
    let demote = |redis: &mut Redis| redis.command::<()>(&["REPLICAOF", "127.0.0.1", &free_port().to_string()]);
    let promote = |redis: &mut Redis| redis.command::<()>(&["REPLICAOF", "NO", "ONE"]);
    for policy in ["allow", "deny"] {
        goes_through(policy, &mut Redis::start(), "replica", demote, promote);
    }
}

#[test]
fn each_policy_survives_a_server_that_is_out_of_memory() {
    let fill = |redis: &mut Redis| redis.command::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    let free = |redis: &mut Redis| redis.command::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
    for policy in ["allow", "deny"] {
        goes_through(policy, &mut Redis::start(), "out_of_memory", fill, free);
    }
}

#[test]
fn the_gateway_starts_without_redis_and_finds_it_later() {
    for (policy, expected) in [("allow", 200), ("deny", 503)] {
        let (mut redis, upstream) = (Redis::start(), Upstream::start());
        redis.kill();
        let start = now();
        let store = redis.patient_store().replace("deny", policy);
        let gateway = Gateway::start(&upstream, &(store + RULES));
        assert!(start.elapsed() < Duration::from_secs(5));
        let mut client = gateway.client();
        assert_eq!(ask(&mut client).0, expected);
        assert!(Client::connect(gateway.admin).get("/readyz", &[]).body.contains("\"up\":false"));
        redis.restart();
        gateway.expect("rate_limiter_store_up", &[], 1.0);
        assert_eq!(client.get("/", &[("X-User", "a")]).number("RateLimit-Remaining"), 999);
        assert!(Client::connect(gateway.admin).get("/readyz", &[]).body.contains("\"up\":true"));
    }
}

#[test]
fn a_rule_overrides_on_store_failure_and_one_deny_suffices() {
    let (mut redis, upstream) = (Redis::start(), Upstream::start());
    let text = redis.store("allow")
        + "
policies:
  - name: a
    rules: [{name: open, limit_keys: [ip:address], algorithm_config: {rps: 1, burst: 5}}]
  - name: b
    match: {path: /login}
    rules: [{name: closed, limit_keys: [ip:address], algorithm_config: {rps: 1, burst: 5}, on_store_failure: deny}]
  - name: c
    mode: shadow
    rules: [{name: looking, limit_keys: [ip:address], algorithm_config: {rps: 1, burst: 5}, on_store_failure: deny}]
";
    let gateway = Gateway::start(&upstream, &text);
    redis.kill();
    gateway.expect("rate_limiter_store_up", &[], 0.0);
    let mut client = gateway.client();
    assert_eq!(client.get("/", &[]).status, 200);
    assert_eq!(client.get("/login", &[]).status, 503);
    for (rule, action, count) in [("open", "allow", 1.0), ("open", "deny", 1.0), ("closed", "deny", 1.0)] {
        let labels = [&*format!("rule=\"{rule}\""), &*format!("action=\"{action}\"")];
        gateway.expect("rate_limiter_fallback_decisions_total", &labels, count);
    }
    gateway.expect("rate_limiter_rejected_total", &["rule=\"closed\"", "store_unavailable"], 1.0);
    gateway.expect("tollgate_refused_requests_total", &["store_unavailable"], 1.0);
}

#[test]
fn flushed_scripts_are_loaded_again_without_a_failed_request() {
    let (redis, upstream) = (Redis::start(), Upstream::start());
    let gateway = Gateway::start(&upstream, &(redis.patient_store() + RULES));
    let mut client = gateway.client();
    for left in (979..999).rev() {
        redis.command::<()>(&["SCRIPT", "FLUSH"]);
        assert_eq!(client.get("/", &[("X-User", "a")]).number("RateLimit-Remaining"), left + 1);
    }
    gateway.expect("rate_limiter_fallback_decisions_total", &[], 0.0);
    gateway.expect("rate_limiter_store_errors_total", &[], 0.0);
}

#[test]
fn flushed_buckets_are_full_again() {
    let (redis, upstream) = (Redis::start(), Upstream::start());
    let gateway = Gateway::start(&upstream, &(redis.patient_store() + RULES));
    let mut client = gateway.client();
    let mut left = || client.get("/", &[("X-User", "a")]).number("RateLimit-Remaining");
    assert_eq!([left(), left()], [999, 998]);
    redis.command::<()>(&["FLUSHALL"]);
    assert_eq!(left(), 999);
}

#[test]
fn another_type_under_a_key_refuses_its_own_requests_only_and_heals() {
    let (redis, upstream) = (Redis::start(), Upstream::start());
    let numbers = "rules:\n  - {name: one, limit_keys: [header:x-user], algorithm_config: {rps: 5, burst: 5}}\n";
    let gateway = Gateway::start(&upstream, &(redis.patient_store().replace("deny", "allow") + numbers));
    let mut client = gateway.client();
    let mut status = |user: &str| client.get("/", &[("X-User", user)]).status;
    assert_eq!(status("a"), 200);
    for key in redis.keys() {
        let mut connection = redis.connection();
        redis::cmd("DEL").arg(&key).exec(&mut connection).unwrap();
        redis::cmd("RPUSH").arg(&key).arg("not a state").exec(&mut connection).unwrap();
    }
    // Not passed by `allow`: the store is there, and this bucket is drained.
    assert_eq!(status("a"), 429);
    assert_eq!(status("b"), 200);
    gateway.expect("rate_limiter_store_errors_total", &["impossible_bucket"], 1.0);
    gateway.expect("rate_limiter_fallback_decisions_total", &[], 0.0);
    gateway.expect_logged("impossible buckets");
    eventually("a token has come back", || status("a") == 200);
}

#[test]
fn grants_of_a_server_that_is_no_redis_are_rejected() {
    // It greets as a Redis would, and then answers every call with a list of grants for somebody else.
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(stream) = stream else { return };
            std::thread::spawn(move || {
                crate::support::serve_fake_redis(stream, b"*4\r\n:1763672400123456\r\n:0\r\n:1\r\n:7\r\n")
            });
        }
    });
    let upstream = Upstream::start();
    let rules = "rules:\n  - {name: one, limit_keys: [header:x-user], algorithm_config: {rps: 1, burst: 5}}\n";
    let store = format!("store: {{redis: {{url: \"redis://127.0.0.1:{port}\"}}}}\non_store_failure: deny\n");
    let gateway = Gateway::start(&upstream, &(store + rules));
    let (mut client, lateness) = (gateway.client(), Lateness::measure());
    for _ in 0..5 {
        let (status, took) = ask(&mut client);
        assert_eq!(status, 503);
        assert!(took < IN_TIME + lateness.of_a_request(), "{took:?}");
    }
    assert!(gateway.metric("rate_limiter_store_errors_total", &["garbled"]) > 0.0);
}

#[test]
fn a_full_redis_refuses_what_cannot_be_paid_and_opens_no_breaker() {
    let (redis, upstream) = (Redis::start(), Upstream::start());
    let rules = "rules:\n  - {name: one, limit_keys: [header:x-user], algorithm_config: {rate: 2/day}}\n";
    let gateway = Gateway::start(&upstream, &(redis.patient_store() + rules));
    let exhausted: Vec<String> = (0..20).map(|number| format!("exhausted {number}")).collect();
    let mut client = gateway.client();
    for user in &exhausted {
        for expected in [200, 200, 429] {
            assert_eq!(client.get("/", &[("X-User", user)]).status, expected);
        }
    }
    redis.command::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    let stop = AtomicBool::new(false);
    let asked_about = || gateway.metric("rate_limiter_latency_seconds_count", &["source=\"store\""]);
    std::thread::scope(|scope| {
        // What they would be granted has to be written.
        for writer in 0..6 {
            let (mut client, stop) = (gateway.client(), &stop);
            scope.spawn(move || {
                let mut number = 0;
                while !stop.load(Ordering::Relaxed) {
                    number += 1;
                    let user = format!("writer {writer} {number}");
                    assert_eq!(client.get("/", &[("X-User", &user)]).status, 503);
                }
            });
        }
        // A machine that is busy needs longer until all have been asked about again.
        let (end, longest) = (now() + Duration::from_secs(3), now() + Duration::from_secs(30));
        let goes_on = || now() < end || now() < longest && asked_about() <= 80.0;
        let statuses: Vec<u16> = std::iter::from_fn(|| goes_on().then_some(()))
            .flat_map(|()| exhausted.iter().map(|user| client.get("/", &[("X-User", user)]).status).collect::<Vec<_>>())
            .collect();
        stop.store(true, Ordering::Relaxed);
        let others = statuses.iter().filter(|status| **status != 429).count();
        assert_eq!(others, 0, "of {}: {}", statuses.len(), gateway.errors());
    });
    // They were asked about again, in the same calls as the others.
    assert!(asked_about() > 80.0);
    assert!(gateway.metric("rate_limiter_store_errors_total", &["out_of_memory"]) > 0.0);
    assert!(gateway.metric("rate_limiter_fallback_decisions_total", &["cause=\"out_of_memory\""]) > 0.0);
    assert!(!gateway.errors().contains("circuit breaker"), "{}", gateway.errors());
    // The first request after there is room is granted.
    redis.command::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!(client.get("/", &[("X-User", "another")]).status, 200);
    gateway.expect("rate_limiter_store_up", &[], 1.0);
}

#[test]
fn an_endless_reply_is_not_buffered() {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    // A part of four gigabytes, and bytes for as long as somebody takes them.
    let endless = format!("*3\r\n$4000000000\r\n{}", "x".repeat(64 << 20));
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let endless = endless.clone();
            std::thread::spawn(move || crate::support::serve_fake_redis(stream, endless.as_bytes()));
        }
    });
    let upstream = Upstream::start();
    let rules = "rules:\n  - {name: one, limit_keys: [header:x-user], algorithm_config: {rps: 1, burst: 5}}\n";
    let store = format!("store: {{redis: {{url: \"redis://127.0.0.1:{port}\"}}}}\non_store_failure: deny\n");
    let gateway = Gateway::start(&upstream, &(store + rules));
    let (mut client, lateness) = (gateway.client(), Lateness::measure());
    let before = gateway.metric("process_resident_memory_bytes", &[]);
    for _ in 0..10 {
        let (status, took) = ask(&mut client);
        assert_eq!(status, 503);
        assert!(took < IN_TIME + lateness.of_a_request(), "{took:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
    // Each reconnect reads up to 4 MiB of a reply, and the allocator keeps some of them: 15 to 35 MB. A whole reply is 64 MiB.
    let grown = gateway.metric("process_resident_memory_bytes", &[]) - before;
    assert!(grown < 50e6, "{grown} bytes more");
}
