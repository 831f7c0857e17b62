//! Several gateways on one Redis: together they let through what one bucket holds, and no more.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use crate::support::{Client, Gateway, Lateness, Redis, Upstream, now};

/// One request, as its client recorded it.
#[derive(Clone, Copy, Debug)]
struct RequestRecord {
    sent: Instant,
    answered: Instant,
    status: u16,
}

/// Runs callers, spread over the gateways. Each sends its next request when it has an answer.
fn load(gateways: &[&Gateway], callers: usize, fields: &[(&str, &str)], lasting: Duration) -> Vec<RequestRecord> {
    let start = Barrier::new(callers);
    std::thread::scope(|scope| {
        let caller = |number: usize| {
            let (gateway, start) = (gateways[number % gateways.len()], &start);
            scope.spawn(move || {
                let mut client: Client = gateway.client();
                start.wait();
                let (end, mut seen) = (now() + lasting, Vec::new());
                while now() < end {
                    let sent = now();
                    let status = client.get("/", fields).status;
                    seen.push(RequestRecord { sent, answered: now(), status });
                }
                seen
            })
        };
        let callers: Vec<_> = (0..callers).map(caller).collect();
        callers.into_iter().flat_map(|caller| caller.join().unwrap()).collect()
    })
}

fn granted(seen: &[RequestRecord]) -> Vec<RequestRecord> {
    let mut granted: Vec<RequestRecord> = seen.iter().copied().filter(|seen| seen.status == 200).collect();
    assert!(seen.iter().all(|seen| matches!(seen.status, 200 | 429)), "{seen:?}");
    granted.sort_by_key(|seen| seen.answered);
    granted
}

fn float(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap())
}

/// Returns the seconds in which refill is lost, because the bucket was full without a request for a second. This happens only
/// if the machine stands still.
fn lost_seconds(late: &Lateness) -> f64 {
    late.of_a_request().saturating_sub(Duration::from_secs(1)).as_secs_f64()
}

/// Checks every window: the requests that were sent and answered within it have at most the burst and the refill of its
/// length.
#[track_caller]
fn every_window_holds(granted: &[RequestRecord], burst: f64, rate: f64) {
    let mut windows = 0u64;
    for from in granted {
        let mut count = 0.0;
        for to in granted.iter().filter(|to| to.sent >= from.sent) {
            // Sorted by the answers: all that were counted so far lie within.
            count += 1.0;
            let most = burst + rate * (to.answered - from.sent).as_secs_f64();
            assert!(count <= most, "{count} granted within {:?}, at most {most}", to.answered - from.sent);
            windows += 1;
        }
    }
    assert!(windows > 1_000, "{windows} windows");
}

#[test]
fn two_gateways_and_64_callers_never_get_more_than_one_bucket_over_any_window() {
    let (redis, upstream) = (Redis::start(), Upstream::start());
    // Three buckets for each request; the tightest over a long time is not the tightest over a short one.
    let text = redis.patient_store()
        + "
policies:
  - {name: a, rules: [{name: burst, limit_keys: [header:x-user], algorithm_config: {rps: 100, burst: 100}}]}
  - {name: b, rules: [{name: slow, limit_keys: [header:x-user, ip:address], algorithm_config: {rps: 40, burst: 200}}]}
  - {name: c, rules: [{name: everybody, limit_keys: [], algorithm_config: {rate: 7000/min, burst: 150}}]}
";
    let (one, two) = (Gateway::start(&upstream, &text), Gateway::start(&upstream, &text));
    let late = Lateness::measure();
    let seen = load(&[&one, &two], 64, &[("X-User", "a")], Duration::from_secs(4));
    let granted = granted(&seen);
    every_window_holds(&granted, 100.0, 100.0);
    every_window_holds(&granted, 200.0, 40.0);
    every_window_holds(&granted, 150.0, 7000.0 / 60.0);
    // And nothing was withheld: what a bucket could give was taken, less the last moments.
    let lasted = granted.last().unwrap().answered - granted[0].sent;
    let possible = (200.0 + 40.0 * lasted.as_secs_f64()).min(100.0 + 100.0 * lasted.as_secs_f64());
    let count = float(granted.len());
    let least = possible * 0.97 - 2.0 - 100.0 * lost_seconds(&late);
    assert!(count >= least, "{count} granted, {possible} possible in {lasted:?}, at least {least}");
    assert_eq!(upstream.count(), granted.len());
    let refused = float(seen.len() - granted.len());
    let sum = |name: &str, labels: &[&str]| one.metric(name, labels) + two.metric(name, labels);
    assert_eq!(sum("rate_limiter_decisions_total", &["allowed"]), count);
    assert_eq!(sum("rate_limiter_decisions_total", &["refused"]), refused);
    for rule in ["burst", "slow", "everybody"] {
        assert_eq!(sum("rate_limiter_allowed_total", &[&format!("rule=\"{rule}\"")]), count, "{rule}");
    }
    // They travelled together: far fewer calls than requests.
    let calls = sum("rate_limiter_store_calls_total", &[]);
    assert!(calls < float(seen.len()) / 2.0, "{calls} calls for {} requests", seen.len());
}

#[test]
fn an_old_and_a_new_gateway_with_different_rates_share_what_is_spent() {
    let (redis, upstream) = (Redis::start(), Upstream::start());
    let text = |rps: u32, burst: u32| {
        let numbers = format!("{{rps: {rps}, burst: {burst}}}");
        redis.patient_store()
            + &format!("rules:\n  - {{name: one, limit_keys: [header:x-user], algorithm_config: {numbers}}}\n")
    };
    let (old, new) = (Gateway::start(&upstream, &text(20, 60)), Gateway::start(&upstream, &text(70, 100)));
    let late = Lateness::measure();
    let seen = load(&[&old, &new], 16, &[("X-User", "a")], Duration::from_secs(3));
    let granted = granted(&seen);
    // Never more than the looser of the two alone.
    every_window_holds(&granted, 100.0, 70.0);
    let lasted = (granted.last().unwrap().answered - granted[0].sent).as_secs_f64();
    let least = 60.0 + 20.0 * lasted - 2.0 - 20.0 * lost_seconds(&late);
    assert!(float(granted.len()) >= least, "{} in {lasted} s, at least {least}", granted.len());
    assert_eq!(redis.keys().iter().filter(|key| !key.ends_with(&[0; 16])).count(), 1);
}

#[test]
fn spent_tokens_are_shared_by_gateways_even_after_a_restart() {
    let (redis, upstream) = (Redis::start(), Upstream::start());
    let text = redis.patient_store()
        + "rules:\n  - {name: one, limit_keys: [header:x-user], algorithm_config: {rate: 5/day}}\n";
    let left = |gateway: &Gateway| gateway.client().get("/", &[("X-User", "a")]).number("RateLimit-Remaining");
    let one = Gateway::start(&upstream, &text);
    assert_eq!([left(&one), left(&one)], [4, 3]);
    let two = Gateway::start(&upstream, &text);
    assert_eq!([left(&two), left(&one), left(&two)], [2, 1, 0]);
    drop((one, two));
    let three = Gateway::start(&upstream, &text);
    let refused = three.client().get("/", &[("X-User", "a")]);
    assert_eq!(refused.status, 429);
    assert!(refused.number("Retry-After") > 17_000, "{refused:?}");
}

#[test]
fn a_request_that_one_limit_refuses_spends_nothing_of_the_others() {
    let (redis, upstream) = (Redis::start(), Upstream::start());
    let text = redis.patient_store()
        + "
policies:
  - {name: a, rules: [{name: wide, limit_keys: [header:x-user], algorithm_config: {rate: 100/day}}]}
  - {name: b, mode: shadow, rules: [{name: seen, limit_keys: [header:x-user], algorithm_config: {rate: 100/day}}]}
  - {name: c, rules: [{name: narrow, limit_keys: [header:x-user], algorithm_config: {rate: 1/day}}]}
";
    let gateway = Gateway::start(&upstream, &text);
    let mut client = gateway.client();
    for expected in [200, 429, 429, 429] {
        let response = client.get("/", &[("X-User", "a")]);
        assert_eq!(response.status, expected);
        let level = response.field("RateLimit").unwrap();
        // Its level is reported if Redis was called; then it is this.
        assert!(level.contains("\"wide\";r=99") || (expected == 429 && !level.contains("wide")), "{level}");
    }
    gateway.expect("rate_limiter_allowed_total", &["rule=\"seen\"", "shadow"], 1.0);
    let rest = "policies:\n  - {name: a, rules: [{name: wide, limit_keys: [header:x-user], algorithm_config: {rate: 100/day}}]}\n";
    let other = Gateway::start(&upstream, &(redis.patient_store() + rest));
    assert_eq!(other.client().get("/", &[("X-User", "a")]).number("RateLimit-Remaining"), 98);
}

#[test]
fn a_bucket_lives_as_long_as_it_takes_to_fill_up() {
    let (redis, upstream) = (Redis::start(), Upstream::start());
    let text = redis.patient_store()
        + "rules:\n  - {name: one, limit_keys: [header:x-user], algorithm_config: {rps: 0.5, burst: 10, cost_source: header:x-cost}}\n";
    let gateway = Gateway::start(&upstream, &text);
    for (user, cost, seconds) in [("a", "2.5", 5.0), ("b", "5", 10.0), ("c", "10", 20.0)] {
        let before = redis.keys();
        let asked = now();
        assert_eq!(gateway.client().get("/", &[("X-User", user), ("X-Cost", cost)]).status, 200);
        let new: Vec<_> = redis.keys().into_iter().filter(|key| !before.contains(key)).collect();
        assert_eq!(new.len(), 1, "{user}");
        let left: f64 = redis::cmd("PTTL").arg(&new[0]).query(&mut redis.connection()).unwrap();
        let least = seconds * 1000.0 - 50.0 - asked.elapsed().as_secs_f64() * 1000.0;
        assert!(left <= seconds * 1000.0 + 2.0 && left > least, "{user}: {left} ms");
        let usage: u64 = redis::cmd("STRLEN").arg(&new[0]).query(&mut redis.connection()).unwrap();
        assert_eq!((usage, new[0].len()), (24, "tollgate:".len() + 16));
    }
}

#[test]
fn an_empty_bucket_is_read_as_often_as_it_refills_and_grants_everything() {
    let (redis, upstream) = (Redis::start(), Upstream::start());
    let text = redis.patient_store()
        + "rules:\n  - {name: one, limit_keys: [header:x-user], algorithm_config: {rps: 20, burst: 20}}\n";
    let (one, two) = (Gateway::start(&upstream, &text), Gateway::start(&upstream, &text));
    let late = Lateness::measure();
    let seen = load(&[&one, &two], 32, &[("X-User", "a")], Duration::from_secs(4));
    let granted = granted(&seen);
    every_window_holds(&granted, 20.0, 20.0);
    let lasted = (granted.last().unwrap().answered - granted[0].sent).as_secs_f64();
    let possible = 20.0 + 20.0 * lasted;
    let least = possible * 0.97 - 2.0 - 20.0 * lost_seconds(&late);
    assert!(float(granted.len()) >= least, "{} granted, {possible} possible, at least {least}", granted.len());
    let sum = |name: &str, labels: &[&str]| one.metric(name, labels) + two.metric(name, labels);
    let calls = sum("rate_limiter_store_calls_total", &[]);
    // For each token that comes back: a thread or two at each gateway find that it has come, and that it has gone.
    let most = 6.0 * possible + 40.0;
    assert!(
        calls <= most && calls < float(seen.len()) / 10.0,
        "{calls} calls, {possible} tokens, {} requests",
        seen.len()
    );
    // All others are refused without a call. Who waits does so for a token, and each caller may once for each: 2300 did,
    // whether 15 400 requests came meanwhile or, on a slower machine, 9 700.
    let waited = float(seen.len()) - sum("rate_limiter_latency_seconds_count", &["source=\"cached\""]);
    assert!(waited <= 32.0 * possible, "{waited} of {} waited, {possible} tokens", seen.len());
}
