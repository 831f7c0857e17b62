//! A circuit breaker: keeps requests from waiting for a store that does not answer.
//!
//! The breaker opens after a number of consecutive failed calls, or when half of the last hundred calls failed; then no calls are
//! made. After a cool-down one request is let through as a probe: if it is answered the breaker closes, otherwise the
//! cool-down doubles. The cool-down is jittered, so that gateways do not probe at the same time.
//!
//! One pause of the store makes the calls of all connections late at the same moment. That is one failure in the row, however
//! many connections there are: timeouts that overlap in time count once.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::base::time::{Micros, Timestamp};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The number of consecutive failures that opens it.
    pub failures: u32,
    pub cooldown: Micros,
    pub max_cooldown: Micros,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { failures: 5, cooldown: Micros(1_000_000), max_cooldown: Micros(30_000_000) }
    }
}

/// The number of recent calls that count, and for how long each does.
const WINDOW: usize = 100;
const SPAN: Micros = Micros(10_000_000);
/// Half of the recent calls open it only if there were this many separate failures within the span: not a single pause that
/// made fifty connections late. Timeouts that overlap still count one by one among the calls: with many connections the last
/// hundred calls may end within one timeout, and would then hold one failure however many are late.
const SEPARATE: usize = 5;

/// Shared by all workers.
#[derive(Debug)]
pub struct Breaker {
    settings: Settings,
    /// Whether anything has failed recently; otherwise the state need not be locked.
    troubled: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    in_a_row: u32,
    /// The recent calls, oldest first: when each ended, and how.
    calls: VecDeque<(Timestamp, CallResult)>,
    failed: usize,
    /// The end of the last timeout that counted in the row. One that began earlier overlaps with it.
    counted_until: Timestamp,
    /// When the last failures were recorded that counted in the row, oldest first; at most [`SEPARATE`].
    separate: VecDeque<Timestamp>,
    open: Option<Open>,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    until: Timestamp,
    /// The cool-down before jitter.
    cooldown: Micros,
    /// Whether a probe is under way.
    probing: bool,
    /// When the last connection was made to a server that had not answered a call on the connection before; 0 before the first.
    reconnected: Timestamp,
}

/// Whether a request may call the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permit {
    Granted,
    /// As the probe that finds out whether the store is back.
    Probe,
    Refused,
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallResult {
    Success,
    Failure,
}

/// How a result changed the breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Opened,
    Closed,
    None,
}

impl Breaker {
    pub fn new(settings: Settings) -> Breaker {
        let calls = VecDeque::with_capacity(WINDOW);
        let separate = VecDeque::with_capacity(SEPARATE);
        let state = State { in_a_row: 0, calls, failed: 0, counted_until: Timestamp(0), separate, open: None };
        Breaker { settings, troubled: AtomicBool::new(false), state: Mutex::new(state) }
    }

    pub fn acquire(&self, now: Timestamp) -> Permit {
        if !self.is_troubled() {
            return Permit::Granted;
        }
        let mut state = self.state.lock();
        match &mut state.open {
            None => Permit::Granted,
            Some(open) if now >= open.until && !open.probing => {
                open.probing = true;
                Permit::Probe
            }
            Some(_) => Permit::Refused,
        }
    }

    /// Whether anything has failed recently; if not, successes need not be recorded.
    pub fn is_troubled(&self) -> bool {
        self.troubled.load(Ordering::Acquire)
    }

    /// Records the result of a request that had a permit.
    pub fn record(&self, permit: Permit, result: CallResult, now: Timestamp) -> Change {
        if result == CallResult::Success && !self.is_troubled() {
            return Change::None;
        }
        let mut state = self.state.lock();
        let change = match (state.open, permit) {
            (Some(_), Permit::Probe) if result == CallResult::Success => {
                state.close();
                Change::Closed
            }
            (Some(open), Permit::Probe) => {
                let cooldown = Micros((open.cooldown.0 * 2).min(self.settings.max_cooldown.0));
                state.open(cooldown, now);
                Change::None
            }
            // The call was under way when the breaker opened: its result is outdated.
            (Some(_), _) => Change::None,
            (None, _) => {
                state.count(result, now);
                match result {
                    CallResult::Success => state.in_a_row = 0,
                    CallResult::Failure => state.lengthen_row(now),
                }
                self.open_if_failing(&mut state, now)
            }
        };
        self.troubled.store(state.is_troubled(), Ordering::Release);
        change
    }

    /// Records that a call stayed unanswered for one `timeout`, which began when it was sent or when its last timeout ended.
    /// Of the timeouts that overlap in time, whatever their connections, only one counts in the row.
    pub fn record_timeout(&self, timeout: Range<Timestamp>, now: Timestamp) -> Change {
        let mut state = self.state.lock();
        // The call was under way when the breaker opened: its result is outdated.
        if state.open.is_some() {
            return Change::None;
        }
        state.count(CallResult::Failure, now);
        if timeout.start >= state.counted_until {
            state.counted_until = timeout.end;
            state.lengthen_row(now);
        }
        let change = self.open_if_failing(&mut state, now);
        self.troubled.store(state.is_troubled(), Ordering::Release);
        change
    }

    fn open_if_failing(&self, state: &mut State, now: Timestamp) -> Change {
        if state.in_a_row < self.settings.failures && !state.half_failed(now) {
            return Change::None;
        }
        state.open(self.settings.cooldown, now);
        Change::Opened
    }

    /// Returns the permit of a request that made no call or whose client has disconnected, so that another may probe.
    pub fn release(&self, permit: Permit) {
        if let (Permit::Probe, Some(open)) = (permit, &mut self.state.lock().open) {
            open.probing = false;
        }
    }

    /// Lets the next request probe, because there is a new connection to a server that had left a call unanswered. That it can
    /// be connected to does not show that it decides: the breaker stays open until then, with the same cool-down.
    pub fn probe_soon(&self, now: Timestamp) {
        if let Some(open) = &mut self.state.lock().open {
            (open.until, open.reconnected) = (open.until.min(now), now);
        }
    }

    /// Forgets the failures before a new connection. If it is open, the next request probes: that there is a connection does not
    /// show that the server decides.
    pub fn begin_again(&self, now: Timestamp) {
        let mut state = self.state.lock();
        if let Some(open) = &mut state.open {
            (open.until, open.reconnected) = (open.until.min(now), now);
            return;
        }
        state.close();
        self.troubled.store(false, Ordering::Release);
    }

    /// Whether the failure of a probe on a connection that was made at this time says nothing: a newer one may lead to another
    /// server, and is to be probed.
    pub fn is_outdated(&self, connected: Timestamp) -> bool {
        self.state.lock().open.is_some_and(|open| connected < open.reconnected)
    }

    /// Closes the breaker, because a new connection has been shown to work.
    pub fn reset(&self) -> Change {
        let mut state = self.state.lock();
        let was_open = state.open.is_some();
        state.close();
        self.troubled.store(false, Ordering::Release);
        if was_open { Change::Closed } else { Change::None }
    }
}

impl State {
    fn is_troubled(&self) -> bool {
        self.failed > 0 || self.open.is_some()
    }

    fn count(&mut self, result: CallResult, now: Timestamp) {
        let stale =
            |calls: &VecDeque<(Timestamp, CallResult)>| calls.front().is_some_and(|(at, _)| now.since(*at) > SPAN);
        while self.calls.len() == WINDOW || stale(&self.calls) {
            self.failed -= usize::from(self.calls.pop_front().is_some_and(|(_, result)| result == CallResult::Failure));
        }
        self.calls.push_back((now, result));
        self.failed += usize::from(result == CallResult::Failure);
    }

    fn lengthen_row(&mut self, now: Timestamp) {
        self.in_a_row += 1;
        if self.separate.len() == SEPARATE {
            self.separate.pop_front();
        }
        self.separate.push_back(now);
    }

    fn half_failed(&self, now: Timestamp) -> bool {
        // Successes before the first failure are not recorded: what is missing to a whole window did not fail.
        let half = self.failed * 2 >= WINDOW;
        let recent = self.separate.front().is_some_and(|first| now.since(*first) <= SPAN);
        half && recent && self.separate.len() == SEPARATE
    }

    fn open(&mut self, cooldown: Micros, now: Timestamp) {
        // Jitter: between 3/4 and 5/4 of the cool-down.
        let spread = cooldown.0 / 4 * 3 + fastrand::u64(0..=cooldown.0 / 2);
        self.open = Some(Open { until: now.plus(Micros(spread)), cooldown, probing: false, reconnected: Timestamp(0) });
    }

    fn close(&mut self) {
        self.calls.clear();
        self.separate.clear();
        (self.in_a_row, self.failed, self.open) = (0, 0, None);
    }
}

#[cfg(test)]
mod tests {
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
        // One probe at a time; late results do not count.
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
        // A row that has begun goes on.
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
        // One more: successes before the first failure are not recorded.
        for number in 0..101 {
            let now = Timestamp(1_000 * SECOND + number * SECOND / 20);
            opened |= often.record(Permit::Granted, alternating(number), now) == Change::Opened;
        }
        assert!(opened);
        for number in 0..400 {
            // The same, but spread over minutes.
            let now = Timestamp(1_000 * SECOND + number * SECOND / 2);
            assert_eq!(seldom.record(Permit::Granted, alternating(number), now), Change::None);
        }
    }

    /// How many of the last hundred calls, the newest of which ended `now`, failed within ten seconds.
    fn failed(calls: &[(Timestamp, CallResult)], now: Timestamp) -> usize {
        let last = calls.iter().rev().take(100);
        last.filter(|(at, result)| *result == CallResult::Failure && now.since(*at).0 <= 10 * SECOND).count()
    }

    /// Calls of one kind after another, each so many at once; never five failures in a row.
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
        /// By definition, over all calls, also those before the first failure.
        #[test]
        fn it_opens_when_half_of_the_last_hundred_calls_failed_and_not_before(
            calls in calls(),
            // From a hundred calls in half a second to twenty in ten.
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
        // The first failure is no longer among the last hundred.
        assert_eq!(breaker.record(Permit::Granted, CallResult::Failure, now), Change::None);
        assert_eq!(breaker.record(Permit::Granted, CallResult::Failure, now), Change::Opened);
    }
}
