//! Steps a fixed window: at most `limit` is granted in each period, and a grant counts until the period ends.
//!
//! A period begins at a multiple of the window since the Unix epoch, or with a grant, or is a calendar period. The
//! store's clock chooses the period.
//!
//! The state is the amount *spent*, and the beginning and end of the period in which it counts. Only a later period
//! begins at zero, so a clock that was set back does not reopen a period. For this, a bucket is kept for an hour after
//! its period ends. When the window changes, the running period continues, at most to the end of the next period of
//! the new window.
//!
//! Invariant: every number stays below 2^53, so that the same steps are exact in a store that counts in doubles.

use std::fmt;

use smallvec::smallvec;

use super::step::{
    ChargeResult, EXACT, Entry, Level, Numbers, Period, Quota, RequestNumbers, State, Step, length_text,
};
use super::thresholds::Thresholds;
use crate::calendar::{Calendar, Periods};
use crate::cost::Cost;
use crate::money::AmountFormat;
use base::time::{Micros, Timestamp};

pub const NAME: &str = "fixed_window";
pub(crate) const EXCEEDED: &str = "fixed_window_exceeded";

/// How long a bucket is kept after its period. Also the longest time by which a stored period may begin in the future,
/// because the store's clock was set back. If a stored period begins later, its grants count in the present period.
const HOUR: Micros = Micros(3_600_000_000);

/// The shortest window that can be configured as a duration.
pub const SHORTEST: Micros = Micros(1_000_000);
pub const LONGEST: Micros = Micros(366 * 86_400_000_000);

/// The largest limit that can be kept exactly, in whole units.
pub const MAX_LIMIT: u64 = EXACT / 1000;

/// The settings of one fixed window: its limit and its periods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FixedWindow {
    limit: Cost,
    window: Window,
    /// The shares of the limit that are reported when they are spent. Usually none.
    thresholds: Thresholds,
}

/// The definition of the periods of a fixed window: a duration or a calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Window {
    /// Periods of this length, aligned to the Unix epoch.
    Epoch(Micros),
    /// Periods of this length. When no period runs, a grant begins one.
    FirstRequest(Micros),
    Calendar(Calendar),
}

/// A bucket at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bucket {
    /// The amount spent, in thousandths.
    spent: u64,
    begin: Timestamp,
    end: Timestamp,
    /// Whether the bucket differs from the stored bucket and must be stored. Otherwise the period's end would move at
    /// every read.
    is_corrected: bool,
}

impl Window {
    /// Returns the length of a period. For a calendar, returns 23 hours, because no calendar period is shorter.
    pub fn shortest(&self) -> Micros {
        match self {
            Window::Epoch(length) | Window::FirstRequest(length) => *length,
            Window::Calendar(_) => Micros(23 * HOUR.0),
        }
    }

    /// Returns numbers that are equal for equal windows only, and the same in every process.
    pub(super) fn code(&self) -> [u64; 2] {
        match self {
            Window::Epoch(length) => [1, length.0],
            Window::FirstRequest(length) => [2, length.0],
            Window::Calendar(calendar) => [3, calendar.code()],
        }
    }
}

impl FixedWindow {
    /// Returns a window with the same periods and another limit, in whole units. `None` if the limit is not between 1
    /// and [`MAX_LIMIT`].
    pub fn with_limit(&self, limit: u64) -> Option<FixedWindow> {
        FixedWindow::new(limit, self.window)
    }

    /// Returns a window as [`FixedWindow::with_limit`] does, but with a limit that may have thousandths.
    pub fn with_amount(&self, limit: Cost) -> Option<FixedWindow> {
        FixedWindow::of_amount(limit, self.window)
    }

    /// Returns the window for a request that may have its own limit. A limit above 0 and below
    /// `least` is raised to `least`, rounded up. With a limit of 0 every request is refused.
    pub fn for_request(&self, numbers: RequestNumbers, least: Cost) -> FixedWindow {
        let limit = numbers.ceiling.unwrap_or(self.limit);
        let limit = if limit == Cost::default() { limit } else { limit.max(least.ceil()) };
        FixedWindow { limit, ..*self }
    }

    /// Makes a fixed window. `limit` is in whole units. `None` if the limit is not between 1 and [`MAX_LIMIT`], or if a
    /// duration is not between [`SHORTEST`] and [`LONGEST`].
    pub fn new(limit: u64, window: Window) -> Option<FixedWindow> {
        FixedWindow::of_amount(Cost::from_tokens(limit), window)
    }

    /// Makes a fixed window as [`FixedWindow::new`] does, but with a limit that may have thousandths.
    pub fn of_amount(limit: Cost, window: Window) -> Option<FixedWindow> {
        let fits = match window {
            Window::Epoch(length) | Window::FirstRequest(length) => (SHORTEST..=LONGEST).contains(&length),
            Window::Calendar(_) => true,
        };
        let is_exact = limit > Cost::default() && limit <= Cost::from_tokens(MAX_LIMIT);
        (fits && is_exact).then_some(FixedWindow { limit, window, thresholds: Thresholds::default() })
    }

    pub fn limit(&self) -> Cost {
        self.limit
    }

    /// Returns this window with a limit that is larger by this amount, up to the largest that is exact.
    pub(super) fn raised(&self, by: Cost) -> FixedWindow {
        FixedWindow { limit: self.limit.plus(by).min(Cost::from_thousandths(EXACT)), ..*self }
    }

    pub fn window(&self) -> Window {
        self.window
    }

    pub(super) fn thresholds(&self) -> Thresholds {
        self.thresholds
    }

    pub(super) fn with_thresholds(&self, thresholds: Thresholds) -> FixedWindow {
        FixedWindow { thresholds, ..*self }
    }

    /// Returns the key of gateway.yaml that makes the periods of two windows differ. `None` if the periods are equal.
    pub fn conflict(&self, other: &FixedWindow) -> Option<&'static str> {
        match (self.window, other.window) {
            (Window::Calendar(calendar), Window::Calendar(other)) => calendar.conflict(&other),
            (Window::Epoch(length), Window::FirstRequest(other))
            | (Window::FirstRequest(length), Window::Epoch(other))
                if length == other =>
            {
                Some("anchor")
            }
            (window, other) => (window != other).then_some("window"),
        }
    }

    /// Returns the limit's quota at `now`. The window of a calendar depends on `now`.
    pub fn quota(&self, now: Timestamp) -> Quota {
        Quota { limit: self.limit.whole(), window: self.around(now).length() }
    }

    /// Returns one of `of` equal shares of this limit, and the cost to charge to the share. The cost is multiplied by
    /// `of`, up to the largest exact cost. A share tells no threshold.
    pub fn share(&self, cost: Cost, of: u64) -> (FixedWindow, Cost) {
        let cost = Cost::from_thousandths(cost.thousandths().saturating_mul(of).min(EXACT));
        (FixedWindow { limit: self.limit.max(cost), thresholds: Thresholds::default(), ..*self }, cost)
    }

    /// Returns the settings of this limit as integers for its Lua twin. For a calendar, these include the periods
    /// around the time `near`. The number of the kind of window also has the thresholds, above its two lowest bits.
    pub fn numbers(&self, near: Timestamp) -> Numbers {
        let (limit, thresholds) = (self.limit.thousandths(), self.thresholds.packed() << 2);
        match self.window {
            Window::Epoch(length) => smallvec![limit, thresholds, length.0],
            Window::FirstRequest(length) => smallvec![limit, thresholds | 1, length.0],
            Window::Calendar(calendar) => {
                let Periods { begin, end, next_end } = calendar.around(near);
                smallvec![limit, thresholds | 2, begin.0, end.0, next_end.0]
            }
        }
    }

    /// Computes the result of charging `cost` to a bucket. `state` is the stored [`Entry::state`], or `None` for a
    /// full bucket. An invalid state counts as an empty bucket.
    pub fn step(&self, state: Option<&[u64]>, cost: Cost, now: Timestamp) -> Step {
        let bucket = self.read(state, now);
        let untouched = self.level(&bucket, now);
        let (limit, cost) = (self.limit.thousandths(), cost.thousandths());
        let charge = match limit.checked_sub(cost) {
            None => ChargeResult::Never,
            Some(room) if bucket.spent > room => ChargeResult::Short { wait: bucket.end.since(now) },
            Some(_) => {
                let bucket = Bucket { spent: bucket.spent + cost, ..bucket };
                ChargeResult::Fits { level: self.level(&bucket, now), entry: bucket.entry(), delay: Micros(0) }
            }
        };
        Step { untouched, charge }
    }

    /// Charges an already spent cost to the current period, even if this exceeds the limit.
    pub(super) fn overdraw(&self, state: Option<&[u64]>, cost: Cost, now: Timestamp) -> Entry {
        let bucket = self.read(state, now);
        Bucket { spent: bucket.spent.saturating_add(cost.thousandths()).min(EXACT), ..bucket }.entry()
    }

    /// Charges an already spent cost to the stored period if it runs at `at`, or else to the period at `now` if it has begun by
    /// then, even if this exceeds the limit. With `FirstRequest`, the cost begins a period at `at` if none runs.
    pub(super) fn overdraw_at(&self, state: &[u64], cost: Cost, at: Timestamp, now: Timestamp) -> Entry {
        let around = if matches!(self.window, Window::FirstRequest(_)) { at } else { now };
        let bucket = self.read_in(self.around(around), Some(state), at);
        let cost = if bucket.begin > at { 0 } else { cost.thousandths() };
        Bucket { spent: bucket.spent.saturating_add(cost).min(EXACT), ..bucket }.entry()
    }

    /// Forgets what is spent in the current period, and charges a cost as [`FixedWindow::overdraw`] does.
    pub(super) fn overwrite(&self, state: Option<&[u64]>, cost: Cost, now: Timestamp) -> Entry {
        Bucket { spent: cost.thousandths().min(EXACT), ..self.read(state, now) }.entry()
    }

    /// Returns the entry that a store must write at `now` in place of the state. `None` if the state needs no
    /// correction.
    pub fn correction(&self, state: Option<&[u64]>, now: Timestamp) -> Option<Entry> {
        let bucket = self.read(state, now);
        bucket.is_corrected.then(|| bucket.entry())
    }

    /// Returns the period that contains `now`. `None` if no period runs.
    pub fn period(&self, state: Option<&[u64]>, now: Timestamp) -> Option<Period> {
        let Bucket { spent, begin, end, .. } = self.read(state, now);
        (spent > 0 || !matches!(self.window, Window::FirstRequest(_))).then_some(Period { begin, end })
    }

    /// Returns the amount spent at `now` in the current period.
    pub fn spent(&self, state: Option<&[u64]>, now: Timestamp) -> Cost {
        Cost::from_thousandths(self.read(state, now).spent)
    }

    fn read(&self, state: Option<&[u64]>, now: Timestamp) -> Bucket {
        self.read_in(self.around(now), state, now)
    }

    /// Reads a state at `now`. If its period is over, the period that begins the given ones takes its place.
    fn read_in(&self, Periods { begin, end, next_end }: Periods, state: Option<&[u64]>, now: Timestamp) -> Bucket {
        let present = |spent| Bucket { spent, begin, end, is_corrected: false };
        let (spent, first, last) = match state {
            None => return present(0),
            Some(&[spent, first, last]) if is_valid(&[spent, first, last]) => {
                (spent, Timestamp(first), Timestamp(last))
            }
            Some(_) => return Bucket { is_corrected: true, ..present(self.limit.thousandths()) },
        };
        if first.since(now) > self.window.shortest().min(HOUR) {
            return Bucket { is_corrected: true, ..present(spent) };
        }
        if last > now {
            // A period that begins after `now` keeps its end.
            let is_corrected = first <= now && last > next_end;
            let end = if is_corrected { next_end } else { last };
            return Bucket { spent, begin: first, end, is_corrected };
        }
        if begin > first { present(0) } else { Bucket { begin: first, ..present(spent) } }
    }

    fn around(&self, now: Timestamp) -> Periods {
        let (begin, length) = match self.window {
            Window::Epoch(length) => (Timestamp(now.0 - now.0 % length.0.max(1)), length),
            Window::FirstRequest(length) => (now, length),
            Window::Calendar(calendar) => return calendar.around(now),
        };
        let end = begin.plus(length);
        Periods { begin, end, next_end: end.plus(length) }
    }

    fn level(&self, bucket: &Bucket, now: Timestamp) -> Level {
        let left = self.limit.thousandths().saturating_sub(bucket.spent);
        // With `FirstRequest`, no period runs before the first grant.
        let runs = bucket.spent > 0 || !matches!(self.window, Window::FirstRequest(_));
        let reset_after = if runs { bucket.end.since(now) } else { Micros(0) };
        Level { remaining: Cost::from_thousandths(left), reset_after }
    }
}

impl Bucket {
    fn entry(&self) -> Entry {
        Entry { state: smallvec![self.spent, self.begin.0, self.end.0], kept_until: self.end.plus(HOUR) }
    }
}

/// Returns whether this is a possible state: the spent amount, the beginning of the period, and its end.
pub(super) fn is_valid(state: &[u64]) -> bool {
    matches!(state, &[spent, first, last] if spent <= EXACT && last <= EXACT && first < last)
}

/// Gives back up to `amount` of what was spent in the stored period. Returns the new state; `None` for an invalid
/// state. The period stays in the state.
pub fn give_back(state: &[u64], amount: Cost) -> Option<State> {
    let &[spent, first, last] = state else { return None };
    is_valid(&[spent, first, last]).then(|| smallvec![spent.saturating_sub(amount.thousandths()), first, last])
}

impl FixedWindow {
    /// Writes the limit, in this format, and the window: `10000/month Europe/Berlin`, `100/15m`, `5/1d from the first
    /// request`.
    pub(super) fn write(&self, f: &mut fmt::Formatter<'_>, format: AmountFormat) -> fmt::Result {
        write!(f, "{}/", format.of(self.limit))?;
        match self.window {
            Window::Epoch(length) => length_text(f, length),
            Window::FirstRequest(length) => {
                length_text(f, length)?;
                f.write_str(" from the first request")
            }
            Window::Calendar(calendar) => write!(f, "{calendar}"),
        }
    }
}

impl fmt::Display for FixedWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, AmountFormat::Number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calendar::{Anchor, CalendarUnit, TimeOfDay, Zone};
    use proptest::prelude::*;

    const SECOND: u64 = 1_000_000;

    fn day_in(zone: &str) -> Window {
        let anchor = Anchor::default_of(CalendarUnit::Day);
        Window::Calendar(Calendar::new(anchor, TimeOfDay::default(), Zone::parse(zone).unwrap()))
    }

    fn month_in(zone: &str) -> Window {
        let anchor = Anchor::default_of(CalendarUnit::Month);
        Window::Calendar(Calendar::new(anchor, TimeOfDay::default(), Zone::parse(zone).unwrap()))
    }

    fn window(limit: u64, window: Window) -> FixedWindow {
        FixedWindow::new(limit, window).unwrap()
    }

    #[test]
    fn numbers_out_of_range_are_no_window() {
        assert_eq!(FixedWindow::new(0, day_in("UTC")), None);
        assert_eq!(FixedWindow::new(MAX_LIMIT + 1, day_in("UTC")), None);
        assert!(FixedWindow::new(MAX_LIMIT, day_in("UTC")).is_some());
        for (length, fits) in [(SHORTEST.0 - 1, false), (SHORTEST.0, true), (LONGEST.0, true), (LONGEST.0 + 1, false)] {
            assert_eq!(FixedWindow::new(1, Window::Epoch(Micros(length))).is_some(), fits, "{length}");
        }
    }

    #[test]
    fn it_prints_as_an_operator_would_write_it() {
        let cases = [
            (window(100, Window::Epoch(Micros(900 * SECOND))), "100/15m"),
            (window(5, Window::FirstRequest(Micros(86_400 * SECOND))), "5/1d from the first request"),
            (window(10_000, month_in("Europe/Berlin")), "10000/month Europe/Berlin"),
        ];
        for (window, text) in cases {
            assert_eq!(window.to_string(), text);
        }
    }

    /// Uses October 2026 in Berlin, which is an hour longer than 31 days. `now` is in its last hour.
    #[test]
    fn the_length_of_a_month_is_that_of_this_month() {
        let month = window(10_000, month_in("Europe/Berlin"));
        let now = Timestamp(1_793_484_000 * SECOND);
        assert_eq!(month.quota(now), Quota { limit: 10_000, window: Micros((31 * 24 + 1) * 3600 * SECOND) });
        let step = month.step(Some(&[10_000_000, 0, now.0 + 1]), Cost::ONE, now);
        assert_eq!(step.charge, ChargeResult::Short { wait: Micros(1) });
        let step = month.step(None, Cost::from_tokens(10_000), now);
        let ChargeResult::Fits { entry, .. } = step.charge else { panic!("{step:?}") };
        let wait = month.step(Some(&entry.state), Cost::ONE, now).charge;
        assert_eq!(wait, ChargeResult::Short { wait: Micros(3600 * SECOND) });
    }

    fn windows() -> impl Strategy<Value = Window> {
        prop_oneof![
            (1..500u64).prop_map(|seconds| Window::Epoch(Micros(seconds * SECOND))),
            (1..500u64).prop_map(|seconds| Window::FirstRequest(Micros(seconds * SECOND))),
            prop::sample::select(vec!["UTC", "Europe/Berlin", "Australia/Lord_Howe"]).prop_map(day_in),
        ]
    }

    proptest! {
        /// For random requests at random times: each period grants at most the limit, and the wait of a refusal is
        /// exact.
        #[test]
        fn no_period_grants_more_than_its_limit(
            (of, limit) in (windows(), 1u64..20),
            asked in prop::collection::vec((0u64..200_000_000, 1u64..8_000), 1..60),
        ) {
            let window = window(limit, of);
            let (mut state, mut now) = (None, 1_793_400_000 * SECOND);
            let mut granted: std::collections::BTreeMap<(u64, u64), u64> = Default::default();
            for (later, cost) in asked {
                now += later;
                let (at, cost) = (Timestamp(now), Cost::from_thousandths(cost));
                match window.step(state.as_deref(), cost, at).charge {
                    ChargeResult::Fits { entry, .. } => {
                        let period = (entry.state[1], entry.state[2]);
                        prop_assert!(period.0 <= now && now < period.1, "{period:?} at {now}");
                        *granted.entry(period).or_default() += cost.thousandths();
                        state = Some(entry.state);
                    }
                    ChargeResult::Short { wait } => {
                        let after = |wait: u64| window.step(state.as_deref(), cost, at.plus(Micros(wait))).charge;
                        prop_assert!(!matches!(after(wait.0), ChargeResult::Short { .. }), "it is short after {wait:?}");
                        prop_assert_eq!(after(wait.0 - 1), ChargeResult::Short { wait: Micros(1) });
                    }
                    ChargeResult::Never => prop_assert!(cost > window.limit()),
                    ChargeResult::Held | ChargeResult::Banned { .. } => prop_assert!(false, "nothing is held"),
                }
            }
            let periods: Vec<_> = granted.keys().copied().collect();
            prop_assert!(periods.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{periods:?} overlap");
            prop_assert!(granted.values().all(|granted| *granted <= limit * 1000), "{granted:?}");
        }

        /// An impossible state must not count as more room than the bucket has.
        #[test]
        fn an_impossible_state_is_an_empty_bucket(state in prop::collection::vec(any::<u64>(), 0..5)) {
            let now = Timestamp(1_793_400_000 * SECOND);
            let step = window(3, day_in("UTC")).step(Some(&state), Cost::ONE, now);
            let possible = matches!(state[..], [spent, first, last] if spent <= EXACT && last <= EXACT && first < last);
            prop_assert!(possible || matches!(step.charge, ChargeResult::Short { .. }), "{state:?}: {step:?}");
        }
    }
}
