//! Tests of the circuit breaker: consecutive failures, half of the recent calls, and probes.

use proptest::prelude::*;

use super::*;

const SECOND: u64 = 1_000_000;

fn breaker() -> Breaker {
    Breaker::new(Settings::default())
}

fn alternating(number: u64) -> CallResult {
    if number.is_multiple_of(2) { CallResult::Success } else { CallResult::Failure }
}

#[test]
fn failures_in_a_row_open_it_and_one_probe_closes_it() {
    let breaker = breaker();
    let now = Timestamp(1_000 * SECOND);
    for _ in 0..4 {
        assert_eq!(breaker.record(Permit::Granted, CallResult::Failure, now), Change::None);
    }
    breaker.record(Permit::Granted, CallResult::Success, now);
    for _ in 0..4 {
        assert_eq!(breaker.record(Permit::Granted, CallResult::Failure, now), Change::None);
    }
    assert_eq!(breaker.acquire(now), Permit::Granted);
    assert_eq!(breaker.record(Permit::Granted, CallResult::Failure, now), Change::Opened);
    assert_eq!(breaker.acquire(now), Permit::Refused);
    assert_eq!(breaker.acquire(now.plus(Micros(SECOND * 3 / 4 - 1))), Permit::Refused);
    let later = now.plus(Micros(SECOND * 5 / 4));
    assert_eq!(breaker.acquire(later), Permit::Probe);
    // Only one probe runs at a time, and results of earlier calls do not count.
    assert_eq!(breaker.acquire(later), Permit::Refused);
    assert_eq!(breaker.record(Permit::Granted, CallResult::Success, later), Change::None);
    assert_eq!(breaker.acquire(later), Permit::Refused);
    assert_eq!(breaker.record(Permit::Probe, CallResult::Success, later), Change::Closed);
    assert_eq!(breaker.acquire(later), Permit::Granted);
}

#[test]
fn a_failed_probe_doubles_the_pause_up_to_the_longest() {
    let breaker = breaker();
    let mut now = Timestamp(1_000 * SECOND);
    for _ in 0..5 {
        breaker.record(Permit::Granted, CallResult::Failure, now);
    }
    for cooldown in [1, 2, 4, 8, 16, 30, 30] {
        assert_eq!(breaker.acquire(now.plus(Micros(cooldown * SECOND * 3 / 4 - 1))), Permit::Refused, "{cooldown}");
        now = now.plus(Micros(cooldown * SECOND * 5 / 4));
        assert_eq!(breaker.acquire(now), Permit::Probe, "{cooldown}");
        assert_eq!(breaker.record(Permit::Probe, CallResult::Failure, now), Change::None);
    }
    assert_eq!(breaker.reset(), Change::Closed);
    assert_eq!(breaker.acquire(now), Permit::Granted);
}

#[test]
fn a_new_connection_to_a_server_that_hung_lets_one_request_probe_and_keeps_the_pause() {
    let breaker = breaker();
    let now = Timestamp(1_000 * SECOND);
    // The four failures before `probe_soon` still count.
    for _ in 0..4 {
        breaker.record(Permit::Granted, CallResult::Failure, now);
    }
    breaker.probe_soon(now);
    assert_eq!(breaker.record(Permit::Granted, CallResult::Failure, now), Change::Opened);
    assert_eq!(breaker.acquire(now), Permit::Refused);
    breaker.probe_soon(now);
    assert_eq!((breaker.acquire(now), breaker.acquire(now)), (Permit::Probe, Permit::Refused));
    breaker.probe_soon(now);
    assert_eq!(breaker.acquire(now), Permit::Refused);
    breaker.record(Permit::Probe, CallResult::Failure, now);
    assert_eq!(breaker.acquire(now.plus(Micros(2 * SECOND * 3 / 4 - 1))), Permit::Refused);
    breaker.probe_soon(now);
    assert_eq!(breaker.acquire(now), Permit::Probe);
    assert!(breaker.is_outdated(Timestamp(now.0 - 1)) && !breaker.is_outdated(now));
    assert_eq!(breaker.record(Permit::Probe, CallResult::Success, now), Change::Closed);
    assert!(!breaker.is_outdated(Timestamp(now.0 - 1)));
}

#[test]
fn a_connection_that_shows_no_decision_forgets_a_row_and_leaves_an_open_breaker_to_a_probe() {
    let breaker = breaker();
    let now = Timestamp(1_000 * SECOND);
    for _ in 0..4 {
        breaker.record(Permit::Granted, CallResult::Failure, now);
    }
    breaker.begin_again(now);
    for _ in 0..4 {
        assert_eq!(breaker.record(Permit::Granted, CallResult::Failure, now), Change::None);
    }
    assert_eq!(breaker.record(Permit::Granted, CallResult::Failure, now), Change::Opened);
    assert_eq!(breaker.acquire(now), Permit::Refused);
    breaker.begin_again(now);
    assert_eq!((breaker.acquire(now), breaker.acquire(now)), (Permit::Probe, Permit::Refused));
    assert_eq!(breaker.record(Permit::Probe, CallResult::Success, now), Change::Closed);
}

#[test]
fn a_probe_whose_client_disconnects_leaves_the_next_request_to_probe() {
    let breaker = breaker();
    let now = Timestamp(1_000 * SECOND);
    for _ in 0..5 {
        breaker.record(Permit::Granted, CallResult::Failure, now);
    }
    let later = now.plus(Micros(SECOND * 5 / 4));
    for _ in 0..10 {
        assert_eq!(breaker.acquire(later), Permit::Probe);
        breaker.release(Permit::Probe);
    }
    assert_eq!(breaker.acquire(later), Permit::Probe);
    assert_eq!(breaker.record(Permit::Probe, CallResult::Success, later), Change::Closed);
}

#[test]
fn half_of_a_hundred_calls_open_it_within_ten_seconds() {
    let (often, seldom) = (breaker(), breaker());
    let mut opened = false;
    // The first success is not recorded, so 100 of 101 calls are.
    for number in 0..101 {
        let now = Timestamp(1_000 * SECOND + number * SECOND / 20);
        opened |= often.record(Permit::Granted, alternating(number), now) == Change::Opened;
    }
    assert!(opened);
    for number in 0..400 {
        // The loop above, but over several minutes.
        let now = Timestamp(1_000 * SECOND + number * SECOND / 2);
        assert_eq!(seldom.record(Permit::Granted, alternating(number), now), Change::None);
    }
}

/// Counts the failures among the last hundred calls of the ten seconds before `now`.
fn failed(calls: &[(Timestamp, CallResult)], now: Timestamp) -> usize {
    let last = calls.iter().rev().take(100);
    last.filter(|(at, result)| *result == CallResult::Failure && now.since(*at).0 <= 10 * SECOND).count()
}

/// Generates results in runs of successes and of failures. There are never five failures in a row.
fn calls() -> impl Strategy<Value = Vec<CallResult>> {
    let some = prop_oneof![
        12 => (1usize..=4).prop_map(|failures| vec![CallResult::Failure; failures]),
        12 => (1usize..=4).prop_map(|successes| vec![CallResult::Success; successes]),
        1 => Just(vec![CallResult::Success; 60]),
    ];
    let broken = |calls: Vec<Vec<CallResult>>| {
        let mut in_a_row = 0;
        let calls = calls.concat().into_iter().flat_map(|result| {
            in_a_row = if result == CallResult::Failure { in_a_row + 1 } else { 0 };
            let cut = in_a_row == 5;
            in_a_row = if cut { 1 } else { in_a_row };
            cut.then_some(CallResult::Success).into_iter().chain([result])
        });
        calls.collect()
    };
    prop::collection::vec(some, 1..200).prop_map(broken)
}

proptest! {
    /// Compares the moment at which the breaker opens with a count over all calls.
    #[test]
    fn it_opens_when_half_of_the_last_hundred_calls_failed_and_not_before(
        calls in calls(),
        // The pause between two calls.
        pause in prop::sample::select(vec![SECOND / 200, SECOND / 20, SECOND / 9, SECOND / 2]),
    ) {
        let (breaker, mut ended) = (breaker(), Vec::new());
        for (number, result) in (0..).zip(calls) {
            let now = Timestamp(1_000 * SECOND + number * pause);
            ended.push((now, result));
            let expected = if failed(&ended, now) >= 50 { Change::Opened } else { Change::None };
            prop_assert_eq!(breaker.record(Permit::Granted, result, now), expected, "call {}", number);
            if expected == Change::Opened {
                break;
            }
        }
    }
}

#[test]
fn the_fiftieth_failure_of_a_hundred_calls_opens_it_and_the_forty_ninth_does_not() {
    let (breaker, now) = (breaker(), Timestamp(1_000 * SECOND));
    for _ in 0..49 {
        assert_eq!(breaker.record(Permit::Granted, CallResult::Failure, now), Change::None);
        assert_eq!(breaker.record(Permit::Granted, CallResult::Success, now), Change::None);
    }
    for _ in 0..2 {
        assert_eq!(breaker.record(Permit::Granted, CallResult::Success, now), Change::None);
    }
    // The oldest failure is not among the last hundred calls any more.
    assert_eq!(breaker.record(Permit::Granted, CallResult::Failure, now), Change::None);
    assert_eq!(breaker.record(Permit::Granted, CallResult::Failure, now), Change::Opened);
}
