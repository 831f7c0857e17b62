//! Redis' clock is set forward and back under load: how much this may add to each limit.

use std::sync::OnceLock;
use std::time::Duration;

use stores::redis::fault_injection::{AHEAD, Hooks};

use super::history::gateways::{Clocks, Gateways, PATIENT, Run};
use super::history::windows::excess_anywhere;
use super::history::{GrantLifetime, LeakyLimit, Limit, Numbers, micros, utc};
use crate::support::{Lateness, Redis, now, print_measured, short_or_long};

/// Returns one limit of each algorithm, and of each way in which it counts.
fn limits() -> Vec<Limit> {
    vec![
        Limit::TokenBucket(Numbers::per_second(40, 40)),
        Limit::window(20, GrantLifetime::Epoch(1_000_000)),
        Limit::window(20, GrantLifetime::FirstGrant(1_000_000)),
        Limit::window(20, GrantLifetime::Steps { window: 1_000_000, steps: 5 }),
        Limit::window(20, GrantLifetime::Log(1_000_000)),
        Limit::Leaky(LeakyLimit { places: Numbers::per_second(40, 40), delay_after: 20, max_wait: 10_000_000 }),
    ]
}

/// Sets the clock of Redis. In the same step, keys expire by the new clock, as in a server whose clock is set.
fn set_clock(redis: &Redis, milliseconds: i64) {
    let script = "
redis.call('INCRBY', KEYS[1], ARGV[1] * 1000)
for _, key in ipairs(redis.call('KEYS', '*')) do
  local left = redis.call('PTTL', key)
  if left > 0 then redis.call('PEXPIRE', key, math.max(left - ARGV[1], 0)) end
end";
    redis.command::<()>(&["EVAL", script, "1", AHEAD, &milliseconds.to_string()]);
}

/// The longest time in which each of these limits may refuse everything after its bucket was emptied: a window and a step,
/// with a margin for a busy machine.
const LONGEST_REFUSAL: i64 = 1_200_000 + 1_000_000;
/// The longest time for which the deny cache refuses without asking Redis.
const UNASKED: i64 = 1_000_000;

/// Sets the clock half a second after the load has begun. `bound` is the amount that may be granted beyond each limit. After
/// the change, the first grant must come within `locked_out` microseconds.
#[track_caller]
fn a_step(fault: &str, milliseconds: i64, bound: fn(&Limit) -> i128, locked_out: i64) {
    let redis = Redis::start();
    let gateways = Gateways {
        hooks: vec![Hooks::default(); 2],
        workers: 1,
        callers: 4 * limits().len(),
        buckets: limits(),
        mistaken: |_, limit| limit,
        clocks: Clocks { begin: Some(utc("2026-11-22T12:00:00Z")), ..Clocks::default() },
        request: |caller| vec![(caller % limits().len(), 1000)],
        pauses: [Duration::from_millis(3); 2],
        lasting: Duration::from_millis(600) + Duration::from_micros(locked_out.unsigned_abs()),
        timeout: PATIENT,
    };
    let (start, stepped, late) = (now(), OnceLock::new(), Lateness::measure());
    let Run { history, .. } = std::thread::scope(|scope| {
        gateways.play(&redis, redis.port, || {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(500));
                set_clock(&redis, milliseconds);
                stepped.set(micros(start)).unwrap();
            });
        })
    });
    for (index, limit) in limits().iter().enumerate() {
        let grants = history.grants(index);
        let (excess, most) = (excess_anywhere(limit, &grants), bound(limit));
        print_measured(&format!(
            "fault: {fault}, {limit:?}, {} granted, excess {}, bound {}",
            grants.len(),
            limit.tokens(excess),
            limit.tokens(most)
        ));
        assert!(excess <= most, "{fault}, {limit:?}: {} of {}", limit.tokens(excess), limit.tokens(most));
        let step = *stepped.get().unwrap();
        let first = grants.iter().filter(|grant| grant.sent >= step).map(|grant| grant.answered).min();
        let wait = first.unwrap_or(i64::MAX).saturating_sub(step);
        print_measured(&format!("fault: {fault}, {limit:?}, the first grant after {wait} us"));
        let most = locked_out.saturating_add(i64::try_from(late.of_a_request().as_micros()).unwrap());
        assert!(wait <= most, "{fault}, {limit:?}: nothing granted for {wait} us");
        // It was asked for all the time.
        assert!(grants.len() >= 20, "{fault}, {limit:?}: {}", grants.len());
    }
}

#[test]
fn a_clock_set_forward_grants_each_limit_once_more_at_most() {
    a_step(
        "clock ahead by 500 ms",
        500,
        |limit| match limit {
            Limit::TokenBucket(_) | Limit::Leaky(_) => limit.price(20_000),
            Limit::Window(_) => limit.capacity(),
        },
        LONGEST_REFUSAL,
    );
    a_step("clock ahead by 1 h", 3_600_000, Limit::capacity, LONGEST_REFUSAL);
}

#[test]
fn a_clock_set_back_a_little_is_waited_for_and_grants_nothing_more() {
    a_step("clock back by 2 s", -2_000, |_| 0, 2_000_000 + LONGEST_REFUSAL);
}

#[test]
fn a_clock_set_back_by_more_locks_nobody_out_and_grants_nothing_more() {
    // A moment more than ten seconds ahead is not believed, nor a window that begins further ahead than it is long.
    for (fault, milliseconds) in short_or_long(&STEPS_BACK[..1], &STEPS_BACK[..]) {
        a_step(fault, *milliseconds, |_| 0, UNASKED + LONGEST_REFUSAL);
    }
}

const STEPS_BACK: [(&str, i64); 3] =
    [("clock back by 15 s", -15_000), ("clock back by 10 min", -600_000), ("clock back by 2 h", -7_200_000)];
