//! Steps the home of a limit: the one bucket from which the purses of all regions are filled.
//!
//! The bucket is a token bucket or a fixed window. A lease is charged to it like a request, but can be granted in part. So every raise,
//! every change of numbers and every correction holds as for any other bucket.
//!
//! In a fixed window a lease is spent at once, and a return of the same period gives back. The last part of a limit
//! is given in ever smaller leases, so that little of it lies in purses while a region is refused.
//!
//! A token bucket *holds* what can lie in a purse, beside what is spent. With its next word a region says what is left in its purse:
//! what has gone is spent from then on, and only then begins to come back. So at most `burst + rate·T` passes in any window over
//! all regions together. When a purse has ended, all that was held of it is spent.
//!
//! The state begins with the three words of the token bucket or window. The entries of the regions follow.
//!
//! Invariant: every number stays below 2^53, so that the same steps are exact in a store that counts in doubles.

mod region_entries;
#[cfg(test)]
mod tests;

use smallvec::{SmallVec, smallvec};

use super::remembered_purse::RememberedPurse;
use super::{RegionId, Word, WordId, WordKind};
use crate::algorithm::budget::SpentLimit;
use crate::algorithm::raise;
use crate::algorithm::step::{ChargeResult, EXACT, Entry, Level, Numbers, Period, State, Step};
use crate::algorithm::{fixed_window, token_bucket};
use crate::cost::Cost;
use base::time::{Micros, Timestamp};
use region_entries::{RegionEntries, RegionEntry, plus};

/// How long a home remembers the last word of a region after its purse has ended.
const KEPT: Micros = Micros(3_600_000_000);

/// How long a region does not ask again if a token bucket has given less than asked for. Otherwise it would get its rate in crumbs.
const PAUSE: Micros = Micros(100_000);

/// A lease of a fixed window is at most the rest divided by this number and by the number of regions, unless a request needs more.
const PORTIONS: u64 = 2;

/// The number of words of a state that say what is spent.
const SPENT_WORDS: usize = 3;

/// The settings of the home of one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Home {
    limit: SpentLimit,
    /// How many regions share the limit.
    regions: u64,
    /// How long a token bucket holds what lies in a purse after the region's last word.
    life: Micros,
}

/// By how much the raises that run at home enlarge the burst or limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HomeRaise {
    /// The sum of the raises. Zero without any.
    pub amount: Cost,
    /// How long that holds from the moment of the answer: until the first of them ends.
    pub remains: Micros,
}

/// What home says to a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HomeAnswer {
    /// The answer to a word. The word is the last one of its region.
    Answer {
        id: WordId,
        kind: WordKind,
        /// What was debited for the purse. Zero for a return.
        given: Cost,
        /// The period for which it was debited: its beginning on the clock of home. 0 for a token bucket.
        period: Timestamp,
        /// How long the purse counts from the moment of this answer.
        remains: Micros,
        /// When home could give what was asked for, from the moment of this answer. Zero if it gave enough.
        again_after: Micros,
        /// What is left at home.
        rest: Cost,
        /// The raises of the bucket at home.
        raise: HomeRaise,
    },
    /// The word is older than this one, which is the last of its region. Nothing was changed.
    Older { last: WordId },
}

impl HomeAnswer {
    /// Returns the answer as integers, each below 2^53, for a store that runs scripts.
    pub fn numbers(&self) -> SmallVec<[u64; 11]> {
        match *self {
            HomeAnswer::Older { last } => SmallVec::from_slice(&[2, last.number, last.tag]),
            HomeAnswer::Answer { id, kind, given, period, remains, again_after, rest, raise } => {
                let [given, rest, raised] = [given, rest, raise.amount].map(|cost| cost.thousandths().min(EXACT));
                let [remains, again_after, raised_for] =
                    [remains, again_after, raise.remains].map(|span| span.0.min(EXACT));
                let (WordId { number, tag }, kind, period) = (id, kind.code(), period.0);
                smallvec![1, number, tag, kind, given, period, remains, again_after, rest, raised, raised_for]
            }
        }
    }

    /// Parses the answer of a script. `None` for any other numbers.
    pub fn parse(numbers: &[u64]) -> Option<HomeAnswer> {
        match *numbers {
            [2, number, tag] => Some(HomeAnswer::Older { last: WordId { number, tag } }),
            [1, number, tag, kind, given, period, remains, again_after, rest, raised, raised_for] => {
                Some(HomeAnswer::Answer {
                    id: WordId { number, tag },
                    kind: WordKind::of_code(kind)?,
                    given: Cost::from_thousandths(given),
                    period: Timestamp(period),
                    remains: Micros(remains),
                    again_after: Micros(again_after),
                    rest: Cost::from_thousandths(rest),
                    raise: HomeRaise { amount: Cost::from_thousandths(raised), remains: Micros(raised_for) },
                })
            }
            _ => None,
        }
    }
}

/// A state, read at one moment.
struct Opened {
    /// What is spent, with what was held of purses that have ended.
    spent: Entry,
    entries: RegionEntries,
    is_invalid: bool,
}

/// What a word makes of a bucket.
struct HomeChange {
    spent: Entry,
    held: u64,
    given: u64,
    again_after: Micros,
}

impl Home {
    /// Makes the home of a limit. `life` counts only for a token bucket. `None` without regions, or if the numbers are too large.
    pub fn new(limit: SpentLimit, regions: u64, life: Micros) -> Option<Home> {
        ((1..=1 << 20).contains(&regions) && life.0 <= EXACT >> 8).then(|| Home {
            limit: limit.without_thresholds(),
            regions,
            life,
        })
    }

    /// Returns the limit that holds over all regions.
    pub fn limit(&self) -> &SpentLimit {
        &self.limit
    }

    /// Returns the home of the limit that `change` makes of this limit.
    #[must_use]
    pub(in crate::algorithm) fn with(&self, change: impl FnOnce(&SpentLimit) -> SpentLimit) -> Home {
        Home { limit: change(&self.limit), ..*self }
    }

    /// Returns the settings as integers for the Lua twin, for a call at about the time `near`.
    pub(in crate::algorithm) fn numbers(&self, near: Timestamp) -> Numbers {
        let mut numbers = self.limit.numbers(near);
        numbers.extend([self.regions, self.life.0]);
        numbers
    }

    /// Hears a word of a region at `now`. Returns the entry to store and the answer. The answer may be sent only
    /// after the entry is stored. `None` in place of the entry: nothing has changed. `self` has the raises that run, and the answer has
    /// none: the caller adds them.
    pub fn hear(
        &self,
        state: Option<&[u64]>,
        region: RegionId,
        word: &Word,
        now: Timestamp,
    ) -> (Option<Entry>, HomeAnswer) {
        let Opened { spent, mut entries, .. } = self.open(state, now);
        let last = entries.of(region).copied();
        if let Some(last) = last.filter(|last| word.id.number <= last.last.number) {
            let answer = match word.id == last.last {
                true => {
                    // A period that was not believed, or has become shorter, ends earlier than at the first time.
                    let ends = last.ends.min(self.period_of(&spent, now).1);
                    self.answer(&RegionEntry { ends, ..last }, self.rest(&spent, entries.held()), now)
                }
                false => HomeAnswer::Older { last: last.last },
            };
            return (None, answer);
        }
        if let Some(forgotten) = entries.last_forgotten().filter(|forgotten| word.id.number <= forgotten.number)
            && last.is_none()
        {
            return (None, HomeAnswer::Older { last: forgotten });
        }
        let others = entries.held() - last.map_or(0, |last| last.held);
        let held = last.map_or(0, |last| last.held);
        let heard = match word.kind {
            WordKind::Lease => self.lease(spent, word, held, others, now),
            WordKind::Return => self.take_back(spent, word, held, last.is_some(), now),
        };
        let (period, ends) = self.period_of(&heard.spent, now);
        let short_until = now.plus(heard.again_after);
        let HomeChange { spent, held, given, .. } = heard;
        let entry = RegionEntry { region, last: word.id, kind: word.kind, given, period, ends, held, short_until };
        let rest = self.rest(&spent, plus(others, held));
        if !entries.make_room_for(region) {
            // Nothing is debited, because nobody would remember it.
            let entry = RegionEntry { given: 0, held: 0, short_until: ends, ..entry };
            return (None, self.answer(&entry, Cost::default(), now));
        }
        entries.put(entry);
        let answer = self.answer(&entry, rest, now);
        (Some(self.joined(spent, &entries)), answer)
    }

    fn answer(&self, entry: &RegionEntry, rest: Cost, now: Timestamp) -> HomeAnswer {
        HomeAnswer::Answer {
            id: entry.last,
            kind: entry.kind,
            given: Cost::from_thousandths(entry.given),
            period: entry.period,
            remains: entry.ends.since(now),
            again_after: entry.short_until.since(now),
            rest,
            raise: HomeRaise::default(),
        }
    }

    /// Debits a lease.
    fn lease(&self, spent: Entry, word: &Word, held: u64, others: u64, now: Timestamp) -> HomeChange {
        let (asked, least) = (word.amount.thousandths(), word.least.thousandths());
        let (spent, held) = self.settle(spent, word, held, now);
        let rest = self.rest(&spent, plus(others, held)).thousandths();
        let given = match &self.limit {
            SpentLimit::FixedWindow(_) => {
                let portion = rest / (PORTIONS * self.regions);
                asked.min(rest).min(least.max(portion - portion % 1000))
            }
            SpentLimit::TokenBucket(_) => asked.min(rest),
        };
        let given = if given < least { 0 } else { given };
        match &self.limit {
            SpentLimit::FixedWindow(_) => {
                let spent = self.limit.overdraw(Some(&spent.state), Cost::from_thousandths(given), now);
                let (_, ends) = self.period_of(&spent, now);
                let again_after = if given == 0 { ends.since(now) } else { Micros(0) };
                HomeChange { spent, held: 0, given, again_after }
            }
            SpentLimit::TokenBucket(bucket) => {
                let (units, since) = bucket.read(Some(&spent.state), now);
                let price = |amount: u64| amount.saturating_mul(bucket.unit()).min(EXACT);
                let needed = plus(plus(price(least), price(plus(others, held))), units);
                let missing = needed.saturating_sub(bucket.capacity());
                let again_after = match given {
                    0 => PAUSE.max(since.since(now).plus(bucket.time_to_refill(missing))).min(Micros(EXACT >> 1)),
                    _ if given < asked => PAUSE,
                    _ => Micros(0),
                };
                HomeChange { spent, held: plus(held, given), given, again_after }
            }
        }
    }

    /// Takes back what a purse has given up.
    fn take_back(&self, spent: Entry, word: &Word, held: u64, is_known: bool, now: Timestamp) -> HomeChange {
        let (spent, held) = match &self.limit {
            SpentLimit::FixedWindow(_) => {
                let (period, _) = self.period_of(&spent, now);
                // A home that knows nothing of the region has lost the debit as well.
                let state = (is_known && word.period == period)
                    .then(|| fixed_window::give_back(&spent.state, word.amount))
                    .flatten();
                (state.map_or(spent.clone(), |state| Entry { state, ..spent }), 0)
            }
            // What is given back was held, and is free now.
            SpentLimit::TokenBucket(_) => {
                let held = held.saturating_sub(word.amount.thousandths());
                self.settle(spent, word, held, now)
            }
        };
        HomeChange { spent, held, given: 0, again_after: Micros(0) }
    }

    /// Spends what has left the purse since the region's last word. Returns what is spent, and what is still held.
    fn settle(&self, spent: Entry, word: &Word, held: u64, now: Timestamp) -> (Entry, u64) {
        match &self.limit {
            SpentLimit::FixedWindow(_) => (spent, 0),
            SpentLimit::TokenBucket(_) => {
                let left = word.left.thousandths().min(EXACT);
                let gone = Cost::from_thousandths(held.saturating_sub(left));
                (self.limit.overdraw(Some(&spent.state), gone, now), left)
            }
        }
    }

    /// Returns the beginning of the period, and its end or that of a hold that begins now.
    fn period_of(&self, spent: &Entry, now: Timestamp) -> (Timestamp, Timestamp) {
        match (&self.limit, &spent.state[..]) {
            (SpentLimit::FixedWindow(_), &[_, begin, end]) => (Timestamp(begin), Timestamp(end)),
            _ => (Timestamp(0), now.plus(self.life)),
        }
    }

    /// Returns what can be given, beside what is spent and what is held.
    fn rest(&self, spent: &Entry, held: u64) -> Cost {
        let amount = |units: u64, unit: u64| Cost::from_thousandths(units / unit.max(1));
        match (&self.limit, &spent.state[..]) {
            (SpentLimit::FixedWindow(window), &[spent, ..]) => window.limit().less(Cost::from_thousandths(spent)),
            (SpentLimit::TokenBucket(bucket), &[spent, unit, _]) => {
                let taken = plus(held.saturating_mul(unit).min(EXACT), spent);
                amount(bucket.capacity().saturating_sub(taken), unit)
            }
            _ => Cost::default(),
        }
    }

    /// Computes the result of charging `cost` at home itself, without a lease. What can lie in purses counts as spent.
    pub(in crate::algorithm) fn step(&self, state: Option<&[u64]>, cost: Cost, now: Timestamp) -> Step {
        let Opened { spent, entries, .. } = self.open(state, now);
        let held = Cost::from_thousandths(entries.held());
        let alone = self.limit.step(Some(&spent.state), cost, now);
        let beside = self.limit.step(Some(&spent.state), cost.plus(held), now);
        let less_held = |level: Level| Level { remaining: level.remaining.less(held), ..level };
        let charge = match (alone.charge, beside.charge) {
            (ChargeResult::Fits { level, .. }, ChargeResult::Fits { .. }) => {
                let spent = self.limit.overdraw(Some(&spent.state), cost, now);
                let entry = self.joined(spent, &entries);
                ChargeResult::Fits { level: less_held(level), entry, delay: Micros(0) }
            }
            (ChargeResult::Fits { .. }, ChargeResult::Short { wait }) => ChargeResult::Short { wait },
            (ChargeResult::Fits { .. }, _) => ChargeResult::Held,
            (refusal, _) => refusal,
        };
        Step { untouched: less_held(alone.untouched), charge }
    }

    /// Returns the amount that is spent, without what can lie in the purses of a token bucket.
    pub fn spent(&self, state: Option<&[u64]>, now: Timestamp) -> Cost {
        self.limit.spent(Some(&self.open(state, now).spent.state), now)
    }

    /// Returns what home remembers of purses, without those that it has forgotten to make room.
    pub fn purses(&self, state: Option<&[u64]>, now: Timestamp) -> SmallVec<[RememberedPurse; 3]> {
        let entries = self.open(state.and_then(raise::plain), now).entries.0;
        entries.iter().filter(|entry| !entry.is_of_forgotten()).map(RegionEntry::remembered).collect()
    }

    /// Returns the period of a fixed window that contains `now`.
    pub(in crate::algorithm) fn period(&self, state: Option<&[u64]>, now: Timestamp) -> Option<Period> {
        self.limit.period(state.and_then(|state| state.get(..SPENT_WORDS)), now)
    }

    /// Returns the entry that a store must write at `now` in place of the state. `None` if the state needs no correction.
    pub(in crate::algorithm) fn correction(&self, state: Option<&[u64]>, now: Timestamp) -> Option<Entry> {
        let words = state?.get(..SPENT_WORDS).unwrap_or_default();
        let Opened { spent, entries, is_invalid } = self.open(state, now);
        (is_invalid || self.limit.is_corrected(Some(words), now)).then(|| self.joined(spent, &entries))
    }

    /// Returns the entry of a bucket of which nothing is taken.
    pub(in crate::algorithm) fn unchanged(&self, state: &[u64], now: Timestamp) -> Entry {
        let Opened { spent, entries, .. } = self.open(Some(state), now);
        self.joined(spent, &entries)
    }

    fn open(&self, state: Option<&[u64]>, now: Timestamp) -> Opened {
        let nothing = Cost::default();
        let Some(state) = state else {
            let spent = self.limit.overdraw(None, nothing, now);
            return Opened { spent, entries: RegionEntries::default(), is_invalid: false };
        };
        let (spent, rest) = state.split_at(state.len().min(SPENT_WORDS));
        match RegionEntries::parse(rest) {
            Some(mut entries) if self.limit.is_valid(spent) => {
                let ended = Cost::from_thousandths(entries.end(now));
                let spent = self.limit.overdraw(Some(spent), ended, now);
                Opened { spent, entries, is_invalid: false }
            }
            // An invalid state counts as a bucket of which everything is spent.
            _ => {
                let spent = self.limit.overdraw(Some(&[]), nothing, now);
                Opened { spent, entries: RegionEntries::default(), is_invalid: true }
            }
        }
    }

    fn joined(&self, spent: Entry, entries: &RegionEntries) -> Entry {
        let Entry { mut state, kept_until } = spent;
        let mut kept_until = kept_until.min(Timestamp(EXACT)).max(entries.kept_until());
        if let (SpentLimit::TokenBucket(bucket), Some(end)) = (&self.limit, entries.last_end())
            && let &[spent, unit, _] = &state[..]
        {
            let all = plus(entries.held().saturating_mul(unit).min(EXACT), spent);
            kept_until = kept_until.max(end.plus(bucket.time_to_refill(all)));
        }
        entries.pack_into(&mut state);
        Entry { state, kept_until: kept_until.min(Timestamp(EXACT)) }
    }
}

/// Gives back up to `amount` of what is spent. The entries of the regions stay. Returns the new state; `None` for an invalid state.
pub(in crate::algorithm) fn give_back(
    state: &[u64],
    amount: Cost,
    spent: fn(&[u64], Cost) -> Option<State>,
) -> Option<State> {
    let (words, entries) = state.split_at_checked(SPENT_WORDS)?;
    RegionEntries::parse(entries)?;
    let mut state = spent(words, amount)?;
    state.extend_from_slice(entries);
    Some(state)
}

/// Returns whether a state can be that of a home, for a caller that knows only the key of the bucket.
pub fn is_home(state: &[u64]) -> bool {
    state.split_at_checked(SPENT_WORDS).is_some_and(|(spent, entries)| {
        let is_spent = fixed_window::is_valid(spent) || token_bucket::valid(spent).is_some();
        is_spent && !entries.is_empty() && RegionEntries::parse(entries).is_some()
    })
}
