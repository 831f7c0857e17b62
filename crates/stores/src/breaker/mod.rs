//! A circuit breaker: keeps requests from waiting for a store that does not answer.
//!
//! The breaker opens after a number of consecutive failed calls, or when half of the last hundred calls failed. While
//! it is open, no calls are made. After a cool-down one request is let through as a probe: an answer closes the
//! breaker, a failure doubles the cool-down.
//!
//! Of timeouts that overlap in time, only one counts, so a pause of the store is one failure.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use base::time::{Micros, Timestamp};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The number of consecutive failures that opens the breaker.
    pub failures: u32,
    pub cooldown: Micros,
    pub max_cooldown: Micros,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { failures: 5, cooldown: Micros(1_000_000), max_cooldown: Micros(30_000_000) }
    }
}

/// The number of recent calls that are counted.
const WINDOW: usize = 100;
const SPAN: Micros = Micros(10_000_000);
/// When half of the recent calls failed, the breaker opens only after this many separate failures within `SPAN`. Of
/// timeouts that overlap in time, only one counts. So a single pause of the store does not open the breaker.
const SEPARATE: usize = 5;

/// A circuit breaker: refuses calls to a store for a while after too many failures. All workers share it.
#[derive(Debug)]
pub struct Breaker {
    settings: Settings,
    /// Whether a recent call failed, or the breaker is open. If false, `state` need not be locked.
    troubled: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    in_a_row: u32,
    /// The end and the result of each recent call, oldest first.
    calls: VecDeque<(Timestamp, CallResult)>,
    failed: usize,
    /// The end of the last timeout that counted as a separate failure.
    counted_until: Timestamp,
    /// The moments of the last separate failures, oldest first. There are at most [`SEPARATE`].
    separate: VecDeque<Timestamp>,
    open: Option<Open>,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    until: Timestamp,
    /// The length of the running cool-down, before jitter is added.
    cooldown: Micros,
    /// Whether a probe is running.
    probing: bool,
    /// The last time since the breaker opened at which a connection with an unanswered call was replaced. 0 if none was
    /// replaced.
    reconnected: Timestamp,
}

/// The answer of the breaker to a request that needs to call the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permit {
    Granted,
    /// The request may call the store as a probe. The result decides whether the breaker closes.
    Probe,
    Refused,
}

/// Whether a call succeeded or failed, for the breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallResult {
    Success,
    Failure,
}

/// What a recorded result has changed: the breaker has opened, closed, or stayed as it was.
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

    pub(crate) fn acquire(&self, now: Timestamp) -> Permit {
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

    /// Whether a recent call failed, or the breaker is open. If false, a successful call need not be recorded.
    pub(crate) fn is_troubled(&self) -> bool {
        self.troubled.load(Ordering::Acquire)
    }

    /// Whether no calls are made but probes.
    pub(crate) fn is_open(&self) -> bool {
        self.is_troubled() && self.state.lock().open.is_some()
    }

    /// Records the result of a request that had a permit. Returns whether the result has opened or closed the breaker.
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
            // The call began before the breaker opened, so its result does not count.
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

    /// Records that a call had no reply during the period `timeout`. Of overlapping periods, only one counts as a
    /// consecutive failure.
    pub(crate) fn record_timeout(&self, timeout: Range<Timestamp>, now: Timestamp) -> Change {
        let mut state = self.state.lock();
        // The call began before the breaker opened, so its result does not count.
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

    /// Gives back the permit of a request whose result says nothing about the store. After a probe, another request
    /// may probe.
    pub fn release(&self, permit: Permit) {
        if let (Permit::Probe, Some(open)) = (permit, &mut self.state.lock().open) {
            open.probing = false;
        }
    }

    /// Makes an open breaker let the next request through as a probe, without waiting for the end of the cool-down.
    pub(crate) fn probe_soon(&self, now: Timestamp) {
        if let Some(open) = &mut self.state.lock().open {
            (open.until, open.reconnected) = (open.until.min(now), now);
        }
    }

    /// Resets the count of failures after a new connection. An open breaker lets the next request through as a probe.
    pub(crate) fn begin_again(&self, now: Timestamp) {
        let mut state = self.state.lock();
        if let Some(open) = &mut state.open {
            (open.until, open.reconnected) = (open.until.min(now), now);
            return;
        }
        state.close();
        self.troubled.store(false, Ordering::Release);
    }

    /// Whether the failure of a probe is ignored, because a newer connection was made. `connected` is the time at which
    /// the probe's connection was made.
    pub(crate) fn is_outdated(&self, connected: Timestamp) -> bool {
        self.state.lock().open.is_some_and(|open| connected < open.reconnected)
    }

    /// Closes the breaker, because a new connection is known to work.
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
        // The successes before the first failure are not in `calls`, but are among the last `WINDOW` calls.
        let half = self.failed * 2 >= WINDOW;
        let recent = self.separate.front().is_some_and(|first| now.since(*first) <= SPAN);
        half && recent && self.separate.len() == SEPARATE
    }

    fn open(&mut self, cooldown: Micros, now: Timestamp) {
        // With jitter, the cool-down takes between 3/4 and 5/4 of its length.
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
mod tests;
