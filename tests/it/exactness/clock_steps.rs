//! Redis' clock is set forward and back under load: what that may add to each limit, at most.

use std::time::Duration;

use tollgate::store::redis::fault_injection::{AHEAD, Hooks};

use super::history::gateways::{Clocks, Gateways, PATIENT, Run};
use super::history::windows::excess_anywhere;
use super::history::{Counting, LeakyLimit, Limit, Numbers, utc};
use crate::support::{Redis, print_measured};

/// One of each algorithm, and of each way in which it counts.
fn limits() -> Vec<Limit> {
    vec![
        Limit::TokenBucket(Numbers::per_second(40, 40)),
        Limit::window(20, Counting::Epoch(1_000_000)),
        Limit::window(20, Counting::FirstGrant(1_000_000)),
        Limit::window(20, Counting::Steps { window: 1_000_000, steps: 5 }),
        Limit::window(20, Counting::Log(1_000_000)),
        Limit::Leaky(LeakyLimit { places: Numbers::per_second(40, 40), delay_after: 20, max_wait: 10_000_000 }),
    ]
}

/// Sets the clock, in one act with what a server does then: what was to expire does so by the clock.
fn set_clock(redis: &Redis, milliseconds: i64) {
    let script = "
redis.call('INCRBY', KEYS[1], ARGV[1] * 1000)
for _, key in ipairs(redis.call('KEYS', '*')) do
  local left = redis.call('PTTL', key)
  if left > 0 then redis.call('PEXPIRE', key, math.max(left - ARGV[1], 0)) end
end";
    redis.command::<()>(&["EVAL", script, "1", AHEAD, &milliseconds.to_string()]);
}

/// Half a second after the load has begun the clock is set. Beyond each limit at most so much may be granted.
#[track_caller]
fn a_step(fault: &str, milliseconds: i64, bound: fn(&Limit) -> i128) {
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
        lasting: Duration::from_millis(2800),
        timeout: PATIENT,
    };
    let Run { history, .. } = std::thread::scope(|scope| {
        gateways.play(&redis, redis.port, || {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(500));
                set_clock(&redis, milliseconds);
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
        // It was asked for all the time.
        assert!(grants.len() >= 20, "{fault}, {limit:?}: {}", grants.len());
    }
}

#[test]
fn a_clock_set_forward_grants_each_limit_once_more_at_most() {
    a_step("clock ahead by 500 ms", 500, |limit| match limit {
        Limit::TokenBucket(_) | Limit::Leaky(_) => limit.price(20_000),
        Limit::Window(_) => limit.capacity(),
    });
    a_step("clock ahead by 1 h", 3_600_000, Limit::capacity);
}

#[test]
fn a_clock_set_back_grants_nothing_more() {
    a_step("clock back by 2 s", -2_000, |_| 0);
    // Further than what is stored is believed.
    a_step("clock back by 2 h", -7_200_000, |_| 0);
}
