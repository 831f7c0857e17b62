//! Computes charges to a sliding window: at most `limit` is granted in any window of time, whenever it begins.
//!
//! Time is divided into steps of equal length, aligned to the Unix epoch. A grant counts until a whole window has
//! passed since the end of its step. So every grant counts for at least one window, and at most one step longer.
//!
//! The state is the amount granted in each step that still counts, and the length of these steps. If the configuration
//! changes the length, the state has steps of both lengths. If a third length follows, the oldest steps are merged
//! into those after them, where their amounts count at least as long.
//!
//! Invariant: every number stays below 2^53, so that the same steps are exact in a store that counts in doubles.

mod granted_steps;

use std::fmt;

use smallvec::smallvec;

use super::step::{
    ChargeResult, EXACT, Entry, Level, MOST_AHEAD, Numbers, Quota, RequestNumbers, State, Step, length_text,
};
use crate::cost::Cost;
use base::time::{Micros, Timestamp};
use granted_steps::{BucketSteps, GrantedSteps, fold, pack, take_back, unpack};

pub const NAME: &str = "sliding_window";
pub(crate) const EXCEEDED: &str = "sliding_window_exceeded";

/// The shortest window for which a sliding window can be made.
pub const SHORTEST: Micros = Micros(1_000_000);
pub const LONGEST: Micros = Micros(31 * 86_400_000_000);

/// The smallest number of steps into which a window can be cut.
pub const LEAST_STEPS: u64 = 2;
pub const MOST_STEPS: u64 = 60;

/// The largest limit that can be kept exactly, in whole units.
pub const MAX_LIMIT: u64 = EXACT / 1000;

/// The settings of one sliding window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlidingWindow {
    limit: Cost,
    window: Micros,
    /// The length of a step: the window divided by the number of steps, rounded up.
    step: Micros,
}

/// The decoded state of a bucket, at one moment.
#[derive(Clone, Debug, Default)]
struct Bucket {
    /// The steps with grants that still count.
    granted: BucketSteps,
    /// The sum of `granted`, in thousandths.
    spent: u64,
    /// Whether the stored grants had to be moved, and must be stored again. Without that, every read would move them to the
    /// present step once more.
    is_corrected: bool,
}

impl SlidingWindow {
    /// Makes a sliding window. `limit` is in whole units. `None` if the limit, the window or the number of steps is
    /// out of its bounds, the constants of this module.
    pub fn new(limit: u64, window: Micros, steps: u64) -> Option<SlidingWindow> {
        let fits = (1..=MAX_LIMIT).contains(&limit)
            && (SHORTEST..=LONGEST).contains(&window)
            && (LEAST_STEPS..=MOST_STEPS).contains(&steps);
        let step = Micros(window.0.div_ceil(steps.max(1)));
        fits.then(|| SlidingWindow { limit: Cost::from_tokens(limit), window, step })
    }

    /// Returns a window with another limit, in whole units. `None` if the limit is not between 1 and [`MAX_LIMIT`].
    pub fn with_limit(&self, limit: u64) -> Option<SlidingWindow> {
        (1..=MAX_LIMIT).contains(&limit).then(|| SlidingWindow { limit: Cost::from_tokens(limit), ..*self })
    }

    /// Returns the window for a request that may have its own limit. A limit above 0 is raised to at least `least`, rounded up
    /// to whole units. With a limit of 0 every request is refused.
    pub fn for_request(&self, numbers: RequestNumbers, least: Cost) -> SlidingWindow {
        let limit = numbers.ceiling.unwrap_or(self.limit);
        let limit = if limit == Cost::default() { limit } else { limit.max(least.ceil()) };
        SlidingWindow { limit, ..*self }
    }

    pub fn limit(&self) -> Cost {
        self.limit
    }

    /// Returns this window with a limit that is larger by this amount, up to the largest that is exact.
    pub(super) fn raised(&self, by: Cost) -> SlidingWindow {
        SlidingWindow { limit: self.limit.plus(by).min(Cost::from_thousandths(EXACT)), ..*self }
    }

    pub fn window(&self) -> Micros {
        self.window
    }

    /// Returns the number of steps into which the window is cut.
    pub fn steps(&self) -> u64 {
        self.window.0.div_ceil(self.step.0)
    }

    pub fn quota(&self) -> Quota {
        Quota { limit: self.limit.whole(), window: self.window }
    }

    /// Returns one of `of` equal shares of this limit, and the cost to charge to the share. The cost is multiplied by
    /// `of`, up to the largest exact cost.
    pub fn share(&self, cost: Cost, of: u64) -> (SlidingWindow, Cost) {
        let cost = Cost::from_thousandths(cost.thousandths().saturating_mul(of).min(EXACT));
        (SlidingWindow { limit: self.limit.max(cost), ..*self }, cost)
    }

    /// Returns the settings of this limit as integers for its Lua twin.
    pub fn numbers(&self) -> Numbers {
        smallvec![self.limit.thousandths(), self.window.0, self.step.0]
    }

    /// Computes the result of charging `cost` to a bucket. `state` is the stored [`Entry::state`], or `None` for a
    /// full bucket. An invalid state counts as an empty bucket.
    pub fn step(&self, state: Option<&[u64]>, cost: Cost, now: Timestamp) -> Step {
        let mut bucket = self.read(state, now);
        let untouched = self.level(&bucket, now);
        let (limit, cost) = (self.limit.thousandths(), cost.thousandths());
        let charge = match limit.checked_sub(cost) {
            None => ChargeResult::Never,
            Some(room) if bucket.spent > room => {
                ChargeResult::Short { wait: self.time_to_free(&bucket, bucket.spent - room, now) }
            }
            Some(_) => {
                self.charge(&mut bucket, cost, now);
                let level = self.level(&bucket, now);
                ChargeResult::Fits { level, entry: self.entry(&bucket), delay: Micros(0) }
            }
        };
        Step { untouched, charge }
    }

    /// Returns the amount spent at `now`.
    pub fn spent(&self, state: Option<&[u64]>, now: Timestamp) -> Cost {
        Cost::from_thousandths(self.read(state, now).spent)
    }

    /// Returns the entry that a store must write at `now` in place of the state. `None` if the state needs no
    /// correction.
    pub fn correction(&self, state: Option<&[u64]>, now: Timestamp) -> Option<Entry> {
        let bucket = self.read(state, now);
        bucket.is_corrected.then(|| self.entry(&bucket))
    }

    /// Returns the first entry of a share of the limit, made from the state `seen` of the whole limit. The spent
    /// amount becomes free as in the whole limit. `None` if nothing is spent at `now`.
    pub fn begin_with(&self, seen: &[u64], now: Timestamp) -> Option<Entry> {
        let bucket = self.read(Some(seen), now);
        (bucket.spent > 0).then(|| self.entry(&bucket))
    }

    fn read(&self, state: Option<&[u64]>, now: Timestamp) -> Bucket {
        let Some(state) = state else { return Bucket::default() };
        let in_present_step = |spent| {
            let granted = smallvec![GrantedSteps::one(self.step.0, self.present(now), spent)];
            Bucket { granted, spent, is_corrected: true }
        };
        let Some(mut granted) = unpack(state) else { return in_present_step(self.limit.thousandths()) };
        let total = |granted: &BucketSteps| granted.iter().map(GrantedSteps::total).sum();
        if granted.iter().any(|steps| Timestamp(steps.latest_begin()).since(now) > MOST_AHEAD) {
            return in_present_step(total(&granted));
        }
        let last = now.0.saturating_sub(self.window.0);
        granted.iter_mut().for_each(|steps| steps.forget(last));
        granted.retain(|steps| !steps.is_empty());
        Bucket { spent: total(&granted), granted, is_corrected: false }
    }

    /// Returns the index of the present step, counted from the Unix epoch.
    fn present(&self, now: Timestamp) -> u64 {
        now.0 / self.step.0
    }

    fn charge(&self, bucket: &mut Bucket, cost: u64, now: Timestamp) {
        let (granted, present) = (&mut bucket.granted, self.present(now));
        match granted.iter().position(|steps| steps.length == self.step.0) {
            Some(own) => granted.swap(0, own),
            None => {
                fold(granted);
                granted.insert(0, GrantedSteps::one(self.step.0, present, 0));
            }
        }
        if let Some(own) = granted.first_mut() {
            own.add(present, cost);
        }
        bucket.spent += cost;
    }

    fn entry(&self, bucket: &Bucket) -> Entry {
        Entry { state: pack(&bucket.granted), kept_until: self.last_leaves(bucket) }
    }

    /// Returns the time until `short` thousandths of the spent amount no longer count.
    fn time_to_free(&self, bucket: &Bucket, mut short: u64, now: Timestamp) -> Micros {
        let mut ends: Vec<(u64, u64)> = bucket.granted.iter().flat_map(GrantedSteps::ends).collect();
        if bucket.granted.len() > 1 {
            ends.sort_unstable();
        }
        for (end, amount) in ends {
            if amount >= short {
                return Timestamp(end).plus(self.window).since(now);
            }
            short -= amount;
        }
        self.last_leaves(bucket).since(now)
    }

    /// Returns the moment at which the last grant no longer counts.
    fn last_leaves(&self, bucket: &Bucket) -> Timestamp {
        let end = bucket.granted.iter().map(GrantedSteps::latest_end).max();
        Timestamp(end.unwrap_or_default()).plus(self.window)
    }

    fn level(&self, bucket: &Bucket, now: Timestamp) -> Level {
        let left = self.limit.thousandths().saturating_sub(bucket.spent);
        let reset_after = if bucket.spent == 0 { Micros(0) } else { self.last_leaves(bucket).since(now) };
        Level { remaining: Cost::from_thousandths(left), reset_after }
    }
}

/// Gives back up to `amount`, first from the last steps. Returns the new state; `None` for an invalid state.
pub fn give_back(state: &[u64], amount: Cost) -> Option<State> {
    let mut granted = unpack(state)?;
    take_back(&mut granted, amount.thousandths());
    Some(pack(&granted))
}

/// Displays the settings as `100 in any 15m, in 10 steps`.
impl fmt::Display for SlidingWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in any ", self.limit)?;
        length_text(f, self.window)?;
        write!(f, ", in {} steps", self.steps())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: u64 = 1_000_000;
    const START: u64 = 1_793_400_000 * SECOND;

    fn window(limit: u64, length: u64, steps: u64) -> SlidingWindow {
        SlidingWindow::new(limit, Micros(length), steps).unwrap()
    }

    #[test]
    fn numbers_out_of_range_are_no_window() {
        let fits = |limit, window, steps| SlidingWindow::new(limit, window, steps).is_some();
        assert!(fits(1, SHORTEST, LEAST_STEPS) && fits(MAX_LIMIT, LONGEST, MOST_STEPS));
        assert!(!fits(0, SHORTEST, 10) && !fits(MAX_LIMIT + 1, SHORTEST, 10));
        assert!(!fits(1, Micros(SHORTEST.0 - 1), 10) && !fits(1, Micros(LONGEST.0 + 1), 10));
        assert!(!fits(1, SHORTEST, 0) && !fits(1, SHORTEST, 1) && !fits(1, SHORTEST, 61));
    }

    #[test]
    fn it_prints_as_an_operator_would_write_it() {
        assert_eq!(window(100, 900 * SECOND, 10).to_string(), "100 in any 15m, in 10 steps");
        for steps in LEAST_STEPS..=MOST_STEPS {
            for length in [SHORTEST.0, 1_001_000, 60 * SECOND, LONGEST.0] {
                assert_eq!(window(1, length, steps).steps(), steps);
            }
        }
    }

    #[test]
    fn a_bucket_takes_less_than_eight_bytes_a_step() {
        for (limit, steps, most) in
            [(100, 10, 48), (16_000, 10, 48), (1_000_000, 10, 64), (1_000_000_000, 10, 72), (1000, 60, 200)]
        {
            let window = window(limit, 60 * SECOND, steps);
            let (mut state, mut bytes) = (None::<State>, 0);
            for step in 0..=steps {
                let now = Timestamp(START + step * window.step.0);
                let cost = Cost::from_tokens((limit / (steps + 1)).max(1));
                let step = window.step(state.as_deref(), cost, now);
                let ChargeResult::Fits { entry, .. } = step.charge else { panic!("{step:?}") };
                bytes = 8 * entry.state.len() as u64;
                state = Some(entry.state);
            }
            assert!(bytes <= most && bytes < 8 * steps, "{limit} in {steps} steps: {bytes}");
        }
    }

    /// All grants with their moments and amounts, in the order of time.
    struct Grants(Vec<(u64, u64)>);

    impl Grants {
        /// Returns the largest sum of the grants in any window of this length.
        fn most_in_any(&self, window: u64) -> u64 {
            let within = |end: u64| self.0.iter().filter(move |(at, _)| *at <= end && at + window > end);
            self.0.iter().map(|(end, _)| within(*end).map(|(_, cost)| cost).sum()).max().unwrap_or(0)
        }

        fn since(&self, begin: u64) -> u64 {
            self.0.iter().filter(|(at, _)| *at >= begin).map(|(_, cost)| cost).sum()
        }
    }

    fn asked() -> impl Strategy<Value = Vec<(u64, u64)>> {
        prop::collection::vec((prop_oneof![0u64..200_000, 0u64..3_000_000], 1u64..8_000), 1..120)
    }

    proptest! {
        /// For random requests at random times: any window grants at most the limit, and a wait is exact. A request is
        /// never refused if the window and one more step could pay it.
        #[test]
        fn no_window_grants_more_than_the_limit(
            (limit, length, steps) in (1u64..20, 1_000_000u64..9_000_000, LEAST_STEPS..=MOST_STEPS),
            asked in asked(),
        ) {
            let window = window(limit, length, steps);
            let (mut state, mut now, mut grants) = (None::<State>, START, Grants(Vec::new()));
            for (later, cost) in asked {
                now += later;
                let (at, price) = (Timestamp(now), Cost::from_thousandths(cost));
                match window.step(state.as_deref(), price, at).charge {
                    ChargeResult::Fits { entry, .. } => {
                        prop_assert!(entry.kept_until.0 > now + length);
                        grants.0.push((now, cost));
                        state = Some(entry.state);
                    }
                    ChargeResult::Short { wait } => {
                        let after = |wait: u64| window.step(state.as_deref(), price, at.plus(Micros(wait))).charge;
                        prop_assert!(matches!(after(wait.0), ChargeResult::Fits { .. }), "it is short after {wait:?}");
                        prop_assert_eq!(after(wait.0 - 1), ChargeResult::Short { wait: Micros(1) });
                        let counted = grants.since((now + 1).saturating_sub(length + window.step.0));
                        prop_assert!(counted + cost > limit * 1000, "{counted} and {cost} of {limit}");
                    }
                    ChargeResult::Never => prop_assert!(price > window.limit()),
                    ChargeResult::Held | ChargeResult::Banned { .. } => prop_assert!(false, "nothing is held"),
                }
            }
            prop_assert!(grants.most_in_any(length) <= limit * 1000);
        }

        /// The configuration changes the steps repeatedly, and the clock is sometimes set back.
        #[test]
        fn steps_of_other_lengths_lose_nothing(
            (limit, length) in (1u64..20, 1_000_000u64..9_000_000),
            steps in prop::collection::vec(LEAST_STEPS..=MOST_STEPS, 1..5),
            asked in prop::collection::vec(
                (0usize..5, 0u64..1_500_000, prop_oneof![9 => Just(0), 1 => 0u64..3_000_000], 1u64..4_000),
                1..120,
            ),
        ) {
            let (mut state, mut passed, mut behind, mut grants) = (None::<State>, START, 0, Grants(Vec::new()));
            for (which, later, back, cost) in asked {
                passed += later;
                behind += back;
                let (window, now) = (window(limit, length, steps[which % steps.len()]), Timestamp(passed - behind));
                let step = window.step(state.as_deref(), Cost::from_thousandths(cost), now);
                if let ChargeResult::Fits { entry, .. } = step.charge {
                    grants.0.push((passed, cost));
                    prop_assert!(entry.state.len() <= 2 * 2 + 62, "{:?}", entry.state);
                    state = Some(entry.state);
                }
            }
            prop_assert!(grants.most_in_any(length) <= limit * 1000);
        }

        /// An impossible state must not count as more room than the bucket has.
        #[test]
        fn an_impossible_state_is_an_empty_bucket(words in prop::collection::vec(any::<u64>(), 0..5)) {
            let (window, now) = (window(3, 10 * SECOND, 10), Timestamp(START));
            let step = window.step(Some(&words), Cost::ONE, now);
            prop_assert_eq!(step.charge, ChargeResult::Short { wait: Micros(11 * SECOND) }, "{:?}", words);
            let corrected = window.correction(Some(&words), now).unwrap();
            prop_assert_eq!(window.correction(Some(&corrected.state), now.plus(Micros(SECOND))), None);
        }
    }
}
