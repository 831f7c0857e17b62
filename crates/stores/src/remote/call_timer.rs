//! Reports the result of a call to the breaker. A call without an answer counts as one failure for each `timeout`,
//! however many requests travel in it. The breaker counts calls that are unanswered at the same moment as one failure.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::breaker::{Breaker, CallResult, Change, Permit};
use base::time::{Micros, Timestamp};

/// Measures how long a call is unanswered, and reports failures to the breaker.
#[derive(Debug)]
pub(crate) struct CallTimer {
    started: Timestamp,
    timeout: Micros,
    /// The number of reported failures.
    failures: AtomicU64,
}

impl CallTimer {
    pub(super) fn new(started: Timestamp, timeout: Micros) -> CallTimer {
        CallTimer { started, timeout, failures: AtomicU64::new(0) }
    }

    /// Records a failure for each `timeout` without an answer until `now`.
    pub(super) fn check(&self, breaker: &Breaker, now: Timestamp) -> Change {
        let timeout = self.timeout.0.max(1);
        let due = now.since(self.started).0 / timeout;
        let reported = self.failures.fetch_max(due, Ordering::Relaxed);
        let end_of = |number: u64| self.started.plus(Micros(number.saturating_mul(timeout)));
        let report = |number: u64| breaker.record_timeout(end_of(number)..end_of(number.saturating_add(1)), now);
        let reports = (reported..due).map(report);
        reports.fold(Change::None, |all, change| if change == Change::None { all } else { change })
    }

    /// Returns the time from `now` until the call is unanswered for another `timeout`.
    pub(crate) fn next_check(&self, now: Timestamp) -> Micros {
        let timeout = self.timeout.0.max(1);
        Micros(timeout - now.since(self.started).0 % timeout)
    }

    /// Records the result of the call at the breaker. A reply after `timeout` is not recorded, because the missing
    /// reply was recorded as a failure before.
    pub(super) fn end(&self, breaker: &Breaker, result: CallResult, now: Timestamp) -> Change {
        match (self.failures.load(Ordering::Relaxed), result) {
            (0, CallResult::Success) if !breaker.is_troubled() => Change::None,
            (0, result) => breaker.record(Permit::Granted, result, now),
            _ => Change::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::breaker::Settings;

    const TIMEOUT: Micros = Micros(50_000);

    fn at(milliseconds: u64) -> Timestamp {
        Timestamp(1_000_000_000 + milliseconds * 1_000)
    }

    /// Makes a breaker that opens after five failures, and a call that begins at 0 ms.
    fn started() -> (Breaker, CallTimer) {
        (Breaker::new(Settings::default()), CallTimer::new(at(0), TIMEOUT))
    }

    #[test]
    fn a_call_that_stays_unanswered_is_one_failure_for_each_timeout() {
        let (breaker, call) = started();
        assert_eq!(call.check(&breaker, at(49)), Change::None);
        assert_eq!(call.next_check(at(49)), Micros(1_000));
        assert_eq!(call.check(&breaker, at(50)), Change::None);
        assert_eq!(call.check(&breaker, at(99)), Change::None);
        assert_eq!(call.check(&breaker, at(249)), Change::None);
        assert_eq!(call.check(&breaker, at(250)), Change::Opened);
    }

    #[test]
    fn calls_that_are_all_answered_late_open_the_breaker() {
        let (breaker, _) = started();
        let opened = (0..10).find(|number| {
            let call = CallTimer::new(at(number * 75), TIMEOUT);
            let change = call.check(&breaker, at(number * 75 + 75));
            assert_eq!(call.end(&breaker, CallResult::Success, at(number * 75 + 75)), Change::None);
            change == Change::Opened
        });
        assert_eq!(opened, Some(4));
    }

    #[test]
    fn a_reply_in_time_resets_the_count_of_failures() {
        let (breaker, call) = started();
        assert_eq!(call.check(&breaker, at(220)), Change::None);
        assert_eq!(call.end(&breaker, CallResult::Success, at(220)), Change::None);
        let in_time = CallTimer::new(at(220), TIMEOUT);
        assert_eq!(in_time.end(&breaker, CallResult::Success, at(269)), Change::None);
        let next = CallTimer::new(at(270), TIMEOUT);
        assert_eq!(next.check(&breaker, at(500)), Change::None);
        assert_eq!(breaker.acquire(at(500)), Permit::Granted);
    }

    /// Eight calls on separate connections, half a millisecond apart.
    fn burst(milliseconds: u64) -> Vec<CallTimer> {
        (0..8).map(|number| CallTimer::new(at(milliseconds).plus(Micros(number * 500)), TIMEOUT)).collect()
    }

    fn check_all(calls: &[CallTimer], breaker: &Breaker, now: Timestamp) -> bool {
        // The order of the connections does not matter.
        calls.iter().rev().filter(|call| call.check(breaker, now) == Change::Opened).count() > 0
    }

    #[test]
    fn calls_that_time_out_together_are_one_failure_in_the_row() {
        let (breaker, _) = started();
        // Five bursts of calls, 60 ms apart. No call is answered.
        let opened: Vec<_> =
            (0..5).map(|number| check_all(&burst(number * 60), &breaker, at(number * 60 + 55))).collect();
        assert_eq!(opened, [false, false, false, false, true]);
    }

    #[test]
    fn an_answer_between_bursts_of_timeouts_keeps_the_breaker_closed() {
        let (breaker, _) = started();
        for number in 0..20 {
            let calls = burst(number * 100);
            assert!(!check_all(&calls, &breaker, at(number * 100 + 55)));
            assert!(
                calls
                    .iter()
                    .all(|call| { call.end(&breaker, CallResult::Success, at(number * 100 + 70)) == Change::None })
            );
            // Without these successes, half of the last hundred calls would be late.
            for after in 0..20 {
                CallTimer::new(at(number * 100 + 70 + after), TIMEOUT).end(
                    &breaker,
                    CallResult::Success,
                    at(number * 100 + 71 + after),
                );
            }
        }
        assert_eq!(breaker.acquire(at(2_000)), Permit::Granted);
    }

    #[test]
    fn connections_that_all_hang_open_the_breaker_after_five_timeouts() {
        // The pause between two calls in ms.
        for apart in [0, 1, 6, 7] {
            let (breaker, _) = started();
            let calls: Vec<_> = (0..8).map(|number| CallTimer::new(at(number * apart), TIMEOUT)).collect();
            let opened =
                (0..=300).find(|now| calls.iter().any(|call| call.check(&breaker, at(*now)) == Change::Opened));
            assert_eq!(opened, Some(250), "{apart} ms apart");
        }
    }

    #[test]
    fn one_pause_that_makes_a_hundred_connections_late_does_not_open_the_breaker() {
        let (breaker, _) = started();
        let calls: Vec<_> = (0..100).map(|_| CallTimer::new(at(0), TIMEOUT)).collect();
        assert!(!check_all(&calls, &breaker, at(60)));
        assert!(calls.iter().all(|call| call.end(&breaker, CallResult::Success, at(70)) == Change::None));
        assert_eq!(breaker.acquire(at(70)), Permit::Granted);
    }

    /// Makes `singles` single calls that time out, `apart` ms after each other. Then the process pauses, which delays
    /// calls on a hundred connections. Returns whether the breaker opens.
    fn opens_in_a_pause_after(singles: u64, apart: u64) -> bool {
        let (breaker, _) = started();
        for number in 0..singles {
            let call = CallTimer::new(at(number * apart), TIMEOUT);
            assert_eq!(call.check(&breaker, at(number * apart + 55)), Change::None);
            assert_eq!(call.end(&breaker, CallResult::Success, at(number * apart + 60)), Change::None);
            // A success between the timeouts.
            CallTimer::new(at(number * apart + 61), TIMEOUT).end(
                &breaker,
                CallResult::Success,
                at(number * apart + 62),
            );
        }
        let start = singles * apart;
        let calls: Vec<_> = (0..100).map(|_| CallTimer::new(at(start), TIMEOUT)).collect();
        check_all(&calls, &breaker, at(start + 55))
    }

    #[test]
    fn the_fifth_moment_of_failure_opens_the_breaker_if_half_of_the_last_hundred_calls_are_late() {
        // A pause of the process counts as only one moment of failure.
        assert!(!opens_in_a_pause_after(0, 1_000));
        assert!(!opens_in_a_pause_after(3, 1_000));
        assert!(opens_in_a_pause_after(4, 1_000));
        // Five moments of failure within more than ten seconds are not enough.
        assert!(!opens_in_a_pause_after(4, 3_000));
    }

    #[test]
    fn half_of_the_calls_of_many_connections_open_the_breaker_however_much_their_timeouts_overlap() {
        // A hundred calls end within 50 ms, so the last hundred calls contain at most one moment of failure.
        let (breaker, _) = started();
        let opened = (0..10).find(|number| {
            let start = number * 50;
            let late: Vec<_> = (0..64).map(|_| CallTimer::new(at(start), TIMEOUT)).collect();
            for _ in 0..64 {
                CallTimer::new(at(start), TIMEOUT).end(&breaker, CallResult::Success, at(start + 1));
            }
            let opened = check_all(&late, &breaker, at(start + 50));
            for call in &late {
                call.end(&breaker, CallResult::Success, at(start + 50));
            }
            opened
        });
        assert_eq!(opened, Some(4));
    }

    #[test]
    fn half_of_the_calls_of_eight_connections_that_time_out_open_the_breaker() {
        let (breaker, _) = started();
        let opened = (0..10).find(|number| {
            let (calls, start) = (burst(number * 100), number * 100);
            let opened = check_all(&calls, &breaker, at(start + 55));
            for call in calls {
                call.end(&breaker, CallResult::Success, at(start + 60));
                CallTimer::new(at(start + 60), TIMEOUT).end(&breaker, CallResult::Success, at(start + 61));
            }
            opened
        });
        // The fiftieth failure is the second call of the seventh burst.
        assert_eq!(opened, Some(6));
    }

    #[test]
    fn five_calls_that_fail_at_once_open_the_breaker() {
        let (breaker, _) = started();
        for number in 0..5 {
            let call = CallTimer::new(at(number), TIMEOUT);
            let expected = if number < 4 { Change::None } else { Change::Opened };
            assert_eq!(call.end(&breaker, CallResult::Failure, at(number + 1)), expected);
        }
    }

    #[test]
    fn half_of_the_last_hundred_calls_open_the_breaker_and_fewer_do_not() {
        let failing = |one_in: u64| {
            let (breaker, _) = started();
            let call = |number| {
                let failed = number % one_in == 0;
                let result = if failed { CallResult::Failure } else { CallResult::Success };
                CallTimer::new(at(number), TIMEOUT).end(&breaker, result, at(number + 1))
            };
            (0..300).map(call).any(|change| change == Change::Opened)
        };
        assert!(failing(2));
        assert!(!failing(3));
    }
}
