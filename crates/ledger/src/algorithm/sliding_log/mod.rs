//! Computes charges to a sliding log: at most `limit` is granted in any window of time. Every grant is stored with its
//! exact moment, and counts until one window has passed since then.
//!
//! The state is a log of grants: pairs of a moment and the running total of all amounts up to and with this moment,
//! oldest first. So the sum over any part of the log is one subtraction.
//!
//! The settings `limit` and `window` may change while a bucket exists. A grant counts if it is in the window of the
//! limit that is charged now. The state has the longest window under which the bucket was charged recently, so that
//! another gateway with a shorter window does not forget its grants.
//!
//! A store's reply may have an excerpt in place of the log: the first pairs, and the last pair with all amounts in
//! between. An excerpt is exact until its first pairs have left the window. After that, it never shows more than the
//! bucket holds. A wait from an excerpt ends at the latest when the last of the first pairs leaves the window.
//!
//! Invariant: every number stays below 2^53, so that the same steps are exact in a store that counts in doubles.

use std::fmt;

use smallvec::smallvec;

use super::step::{
    ChargeResult, EXACT, Entry, Level, MOST_AHEAD, Numbers, Quota, RequestNumbers, State, Step, length_text,
};
use crate::cost::Cost;
use base::time::{Micros, Timestamp};

pub const NAME: &str = "sliding_log";
pub(crate) const EXCEEDED: &str = "sliding_log_exceeded";

/// The shortest window for which a sliding log can be made.
pub const SHORTEST: Micros = Micros(1_000_000);
pub const LONGEST: Micros = Micros(366 * 86_400_000_000);

/// The largest limit, in whole units. Also the largest number of grants in one window.
pub const MAX_LIMIT: u64 = 10_000;

/// Running totals are counted modulo this number, so that the sum of two totals is exact in a double.
const TOTALS: u64 = 1 << 52;

/// The number of integers before the pairs of a state: the sum of all amounts, the number of exact first pairs, the
/// longest recent window, and the moment until which that window matters.
const HEAD: usize = 4;

/// The largest number of pairs in a log. If a log needs more, the amounts of its oldest pairs are added to the next
/// pair, and so count longer.
const MOST_PAIRS: usize = 20_000;

/// The number of first pairs in an excerpt.
const EXCERPT: usize = 16;

/// The settings of one sliding log: its limit and its window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlidingLog {
    limit: Cost,
    window: Micros,
}

/// A moment in microseconds, and the running total with this pair, in thousandths.
type Pair = [u64; 2];

/// The decoded state of a bucket.
struct Log<'s> {
    sum: u64,
    exact: usize,
    window: Micros,
    until: Timestamp,
    pairs: Pairs<'s>,
    /// Whether the log differs from the stored log and must be stored. Otherwise every read would move its grants to
    /// the present.
    is_corrected: bool,
}

enum Pairs<'s> {
    Stored(&'s [Pair]),
    One(Pair),
}

impl SlidingLog {
    /// Makes a sliding log. `limit` is in whole units. `None` if the limit is not between 1 and [`MAX_LIMIT`], or the
    /// window not between [`SHORTEST`] and [`LONGEST`].
    pub fn new(limit: u64, window: Micros) -> Option<SlidingLog> {
        let fits = (1..=MAX_LIMIT).contains(&limit) && (SHORTEST..=LONGEST).contains(&window);
        fits.then(|| SlidingLog { limit: Cost::from_tokens(limit), window })
    }

    /// Returns a log with the same window and another limit, in whole units. `None` if the limit is not between 1 and
    /// [`MAX_LIMIT`].
    pub fn with_limit(&self, limit: u64) -> Option<SlidingLog> {
        SlidingLog::new(limit, self.window)
    }

    /// Returns the log for a request that may have its own limit. A limit above 0 is raised to at least `least`, rounded up to
    /// whole units. With a limit of 0 every request is refused.
    pub fn for_request(&self, numbers: RequestNumbers, least: Cost) -> SlidingLog {
        let limit = numbers.ceiling.unwrap_or(self.limit);
        let limit = if limit == Cost::default() { limit } else { limit.max(least.ceil()) };
        SlidingLog { limit, ..*self }
    }

    pub fn limit(&self) -> Cost {
        self.limit
    }

    /// Returns this log with a limit that is larger by this amount, up to the largest that is exact.
    pub(super) fn raised(&self, by: Cost) -> SlidingLog {
        SlidingLog { limit: self.limit.plus(by).min(Cost::from_thousandths(EXACT)), ..*self }
    }

    pub fn quota(&self) -> Quota {
        Quota { limit: self.limit.whole(), window: self.window }
    }

    /// Returns the largest number of grants in a window, if each grant costs at least `least`.
    pub fn grants(&self, least: Cost) -> u64 {
        self.limit.thousandths() / least.thousandths().max(1)
    }

    /// Returns the size in bytes of a bucket's state with this many grants.
    pub fn state_bytes(grants: u64) -> u64 {
        8 * (HEAD as u64 + 2 * grants)
    }

    /// Returns one of `of` equal shares of this limit, and the cost to charge to the share. The cost is multiplied by
    /// `of`, up to the largest exact cost.
    pub fn share(&self, cost: Cost, of: u64) -> (SlidingLog, Cost) {
        let cost = Cost::from_thousandths(cost.thousandths().saturating_mul(of).min(TOTALS - 1));
        (SlidingLog { limit: self.limit.max(cost), ..*self }, cost)
    }

    /// Returns the settings of this limit as integers for its Lua twin.
    pub fn numbers(&self) -> Numbers {
        smallvec![self.limit.thousandths(), self.window.0]
    }

    /// Computes the result of charging `cost` to a bucket. `state` is the stored [`Entry::state`], or `None` for a
    /// full bucket. An invalid state counts as an empty bucket.
    pub fn step(&self, state: Option<&[u64]>, cost: Cost, now: Timestamp) -> Step {
        let log = self.read(state, now);
        // After the clock was set back, the time of the last grant is used, so that no grant counts again.
        let at = log.last().max(now);
        let gone = log.gone(self.window, at);
        let spent = log.sum_after(gone);
        let untouched = self.level(spent, log.last(), now);
        let (limit, cost) = (self.limit.thousandths(), cost.thousandths());
        let charge = match limit.checked_sub(cost) {
            None => ChargeResult::Never,
            Some(room) if spent > room => {
                let moment = log.falls_to(room, gone);
                ChargeResult::Short { wait: moment.plus(self.window).since(now) }
            }
            Some(_) => ChargeResult::Fits {
                level: self.level(spent + cost, at, now),
                entry: self.granted(&log, gone, cost, at),
                delay: Micros(0),
            },
        };
        Step { untouched, charge }
    }

    /// Returns the entry that a store must write at `now` in place of the state. `None` if the state needs no
    /// correction.
    pub fn correction(&self, state: Option<&[u64]>, now: Timestamp) -> Option<Entry> {
        let log = self.read(state, now);
        log.is_corrected.then(|| self.granted(&log, 0, 0, now))
    }

    /// Returns whether the state still shows how much the bucket holds at `moment`. An excerpt shows this until its
    /// exact grants have left the window.
    pub fn tells_until(&self, state: &[u64], moment: Timestamp) -> bool {
        let Some(log) = Log::parse(state) else { return true };
        let known = log.exact.checked_sub(1).and_then(|last| log.pairs().get(last));
        log.is_whole() || known.is_some_and(|[last, _]| log.last().max(moment) <= Timestamp(*last).plus(self.window))
    }

    /// Returns the amount spent at `now`.
    pub fn spent(&self, state: Option<&[u64]>, now: Timestamp) -> Cost {
        let log = self.read(state, now);
        Cost::from_thousandths(log.sum_after(log.gone(self.window, log.last().max(now))))
    }

    /// Shortens a long state to an excerpt: the oldest grants, and one pair for all later grants.
    pub fn excerpt(state: State) -> State {
        let Some(log) = Log::parse(&state).filter(|log| log.pairs().len() > EXCERPT + 1) else { return state };
        let exact = log.exact.min(EXCERPT);
        let first = log.pairs().get(..exact).unwrap_or_default();
        encode([log.sum, exact as u64, log.window.0, log.until.0], first, log.pair_at_end())
    }

    /// Returns the first entry of a share of the limit, made from the state `seen` of the whole limit. Each grant
    /// counts as long as in the whole limit. `None` if no grant is left in the window.
    pub fn begin_with(&self, seen: &[u64], now: Timestamp) -> Option<Entry> {
        let log = self.read(Some(seen), now);
        let gone = log.gone(self.window, log.last().max(now));
        let (last, older) = log.pairs().get(gone..)?.split_last()?;
        let until = log.last().plus(self.window);
        let head = [log.sum_after(gone), older.len() as u64 + 1, self.window.0, until.0];
        Some(Entry { state: encode(head, older, *last), kept_until: until })
    }

    fn read<'s>(&self, state: Option<&'s [u64]>, now: Timestamp) -> Log<'s> {
        match state.map(Log::parse) {
            None => Log::empty(),
            Some(None) => self.spent_at(now, self.limit.thousandths()),
            Some(Some(log)) if log.last().since(now) > MOST_AHEAD => self.spent_at(now, log.sum),
            Some(Some(log)) => log,
        }
    }

    /// Makes a log in place of an invalid log: a single grant of `sum` at `now`.
    fn spent_at<'s>(&self, now: Timestamp, sum: u64) -> Log<'s> {
        let (window, until) = (self.window, now.plus(self.window));
        Log { sum, exact: 1, window, until, pairs: Pairs::One([now.0, sum]), is_corrected: true }
    }

    /// Returns the entry after a grant of `cost` at `at`. The first `gone` pairs of the log have left the window.
    fn granted(&self, log: &Log<'_>, gone: usize, cost: u64, at: Timestamp) -> Entry {
        let (mut window, mut until, mut from) = (self.window, at.plus(self.window), gone);
        if log.window > self.window && at < log.until {
            (window, until, from) = (log.window, log.until, log.gone(log.window, at));
            if log.sum_after(from) + cost >= TOTALS {
                from = gone;
            }
        }
        let sum = log.sum_after(from) + cost;
        let pairs = log.pairs().get(from..).unwrap_or_default();
        let older = match pairs.split_last() {
            Some(([last, _], older)) if *last == at.0 => older,
            _ => pairs,
        };
        // The amounts of removed pairs count as part of the next pair.
        let surplus = (older.len() + 1).saturating_sub(MOST_PAIRS);
        let older = older.get(surplus..).unwrap_or_default();
        let exact = if log.is_whole() { older.len() + 1 } else { log.exact.saturating_sub(from + surplus) };
        let pair = [at.0, add(log.total(), cost)];
        Entry { state: encode([sum, exact as u64, window.0, until.0], older, pair), kept_until: at.plus(window) }
    }

    fn level(&self, spent: u64, last: Timestamp, now: Timestamp) -> Level {
        let left = self.limit.thousandths().saturating_sub(spent);
        let reset_after = if spent == 0 { Micros(0) } else { last.plus(self.window).since(now) };
        Level { remaining: Cost::from_thousandths(left), reset_after }
    }
}

impl<'s> Log<'s> {
    fn empty() -> Log<'s> {
        let (window, until) = (Micros(0), Timestamp(0));
        Log { sum: 0, exact: 0, window, until, pairs: Pairs::Stored(&[]), is_corrected: false }
    }

    /// Parses a state. Checks only the first and the last pair, because a log may be long.
    fn parse(state: &'s [u64]) -> Option<Log<'s>> {
        let (&[sum, exact, window, until], pairs) = state.split_first_chunk::<HEAD>()?;
        let (pairs, []) = pairs.as_chunks::<2>() else { return None };
        let ([first, _], [last, total]) = (pairs.first()?, pairs.last()?);
        let exact = usize::try_from(exact).ok().filter(|exact| *exact <= pairs.len())?;
        let window = Micros(window);
        let fits = sum < TOTALS
            && *total < TOTALS
            && first <= last
            && *last <= EXACT
            && until <= EXACT
            && (SHORTEST..=LONGEST).contains(&window);
        let until = Timestamp(until);
        fits.then_some(Log { sum, exact, window, until, pairs: Pairs::Stored(pairs), is_corrected: false })
    }

    fn pairs(&self) -> &[Pair] {
        match &self.pairs {
            Pairs::Stored(pairs) => pairs,
            Pairs::One(pair) => std::slice::from_ref(pair),
        }
    }

    fn pair_at_end(&self) -> Pair {
        self.pairs().last().copied().unwrap_or_default()
    }

    /// Returns the moment of the last grant.
    fn last(&self) -> Timestamp {
        let [moment, _] = self.pair_at_end();
        Timestamp(moment)
    }

    fn total(&self) -> u64 {
        let [_, total] = self.pair_at_end();
        total
    }

    fn is_whole(&self) -> bool {
        self.exact == self.pairs().len()
    }

    /// Returns how many pairs have left a window of this length at `now`.
    fn gone(&self, window: Micros, now: Timestamp) -> usize {
        self.pairs().partition_point(|[moment, _]| Timestamp(*moment).plus(window) <= now)
    }

    /// Returns the sum of the grants after the first `gone` pairs.
    fn sum_after(&self, gone: usize) -> u64 {
        match gone.checked_sub(1).and_then(|last| self.pairs().get(last)) {
            Some([_, before]) => difference(self.total(), *before),
            None => self.sum,
        }
    }

    /// Returns the moment of the last pair that must leave the window so that at most `room` is spent. The first
    /// `gone` pairs have already left it. If an excerpt lacks that pair, returns the moment of its last exact pair.
    fn falls_to(&self, room: u64, gone: usize) -> Timestamp {
        let total = self.total();
        let pairs = self.pairs().get(gone..).unwrap_or_default();
        let index = pairs.partition_point(|[_, before]| difference(total, *before) > room);
        let exact = self.exact.saturating_sub(gone);
        let index = if self.is_whole() || exact == 0 { index } else { index.min(exact - 1) };
        pairs.get(index).map_or(self.last(), |[moment, _]| Timestamp(*moment))
    }
}

/// Gives back up to `amount`, first from the latest grants. Returns the new state. `None` for an invalid state, and
/// for an excerpt.
pub fn give_back(state: &[u64], amount: Cost) -> Option<State> {
    let log = Log::parse(state).filter(Log::is_whole)?;
    let (given, total) = (amount.thousandths().min(log.sum), log.total());
    let left = log.pairs().partition_point(|[_, before]| difference(total, *before) > given);
    let (older, [moment, _]) = (log.pairs().get(..left)?, *log.pairs().get(left)?);
    let head = [log.sum - given, left as u64 + 1, log.window.0, log.until.0];
    Some(encode(head, older, [moment, difference(total, given)]))
}

fn encode(head: [u64; HEAD], older: &[Pair], last: Pair) -> State {
    let mut state = State::with_capacity(HEAD + 2 * (older.len() + 1));
    state.extend_from_slice(&head);
    state.extend_from_slice(older.as_flattened());
    state.extend_from_slice(&last);
    state
}

/// Returns the running total after `amount` is added. Neither number is above [`TOTALS`].
fn add(total: u64, amount: u64) -> u64 {
    (total + amount) % TOTALS
}

/// Returns the amount that was added between two running totals.
fn difference(total: u64, before: u64) -> u64 {
    total.wrapping_sub(before) % TOTALS
}

/// Displays the settings as `5 in any 1d`.
impl fmt::Display for SlidingLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in any ", self.limit)?;
        length_text(f, self.window)
    }
}

#[cfg(test)]
mod tests;
