//! Computes charges to a budget, which is a token bucket or a fixed window. Each request holds an amount of the budget
//! while the request runs, and spends its true cost when the request ends.
//!
//! A bucket has two numbers, the spent and the held amount. The spent amount comes back as in a token bucket or
//! window. The held amount is the sum of the owners' reports, as for slots ([`concurrency`](super::concurrency)). A
//! request is admitted if the spent amount, the held amount and its own reservation fit.
//!
//! An owner settles a cost with its next report, which says the sum of all settled costs
//! ([`SettledSums`](crate::holds::SettledSums)) and how much the owner still holds. A report that is lost, late or
//! doubled charges nothing twice. A settled cost is spent even if it exceeds what the bucket has left. Then the bucket
//! refuses until this debt is refilled or the period ends.
//!
//! The state begins with the three words of the token bucket or window. The entries of the owners follow. The three
//! words alone are an excerpt, in which held amounts count as free.
//!
//! Invariant: every number stays below 2^53, so that the same steps are exact in a store that counts in doubles.

use super::AlgorithmKind;
use super::fixed_window::{self, FixedWindow, Window};
use super::owner_entries::{EntryKind, Holder, OwnerEntries};
use super::step::{ChargeResult, EXACT, Entry, Level, Numbers, Period, Quota, RequestNumbers, State, Step};
use super::token_bucket::{self, TokenBucket};
use crate::cost::Cost;
use crate::holds::report::Report;
use base::time::{Micros, Timestamp};

/// The time after which a client should try again if only held amounts refuse it. It is fixed, because the end of
/// other requests is not known.
pub const WAIT: Micros = Micros(1_000_000);

/// The number of words of a state that say what is spent.
const SPENT_WORDS: usize = 3;

/// The words of a bucket of which nothing is spent, as a token bucket and as a window whose period has ended.
const NOTHING_SPENT: [u64; SPENT_WORDS] = [0, 1, 2];

/// The smallest amount that must be free to admit a request that reserves nothing.
const LEAST: Cost = Cost::from_thousandths(1);

/// The settings of one budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Budget {
    TokenBucket(TokenBucket),
    FixedWindow(FixedWindow),
}

/// A state, read at one moment.
struct Opened<'s> {
    /// The words that say what is spent. `None` if nothing is spent, and empty if invalid.
    spent: Option<&'s [u64]>,
    entries: OwnerEntries,
}

impl Budget {
    /// Accepts a report: charges what its owner has settled since the last report, and stores what the owner holds.
    /// Returns the entry, which must be stored even if all plans are refused. `None` if the report is not newer than
    /// the owner's last report, or if the bucket has too many owners. Then the plans of the call fail.
    pub fn accept(&self, state: Option<&[u64]>, report: Report, now: Timestamp) -> Option<Entry> {
        let Opened { spent, mut entries } = self.open(state, now);
        let settled = entries.accept(report)?;
        Some(joined(self.overdraw(spent, Cost::from_thousandths(settled), now), &entries))
    }

    /// Computes the result of holding `reservation` for the owner of the last accepted report. `state` is the result
    /// of [`Budget::accept`] or of a later step in the same call. A request that reserves nothing is refused if
    /// nothing is left.
    pub fn step(&self, state: Option<&[u64]>, reservation: Cost, now: Timestamp) -> Step {
        let Opened { spent, mut entries } = self.open(state, now);
        let held = Cost::from_thousandths(entries.sum);
        let needed = reservation.max(LEAST);
        let alone = self.charge(spent, needed, now);
        let charge = match alone.charge {
            ChargeResult::Never | ChargeResult::Short { .. } | ChargeResult::Held => alone.charge,
            ChargeResult::Fits { .. } if !self.fits(spent, needed.plus(held), now) => ChargeResult::Held,
            ChargeResult::Fits { .. } if !entries.charge(reservation.thousandths()) => ChargeResult::Held,
            ChargeResult::Fits { .. } => {
                let entry = joined(self.overdraw(spent, Cost::default(), now), &entries);
                ChargeResult::Fits { level: beside(alone.untouched, held.plus(reservation)), entry, delay: Micros(0) }
            }
        };
        Step { untouched: beside(alone.untouched, held), charge }
    }

    /// Returns the state of a bucket of which these owners hold something. `spent` is the part that says what is
    /// spent. `None` if nothing is spent.
    pub fn state(&self, spent: Option<&[u64]>, holders: &[Holder], now: Timestamp) -> State {
        let spent = self.open(spent, now).spent;
        let entries = OwnerEntries::of_holders(EntryKind::Budget, holders, now);
        joined(self.overdraw(spent, Cost::default(), now), &entries).state
    }

    /// Charges a cost that was spent already to a bucket without owners, even if the bucket cannot pay it. The bucket
    /// then refuses until the debt is refilled or the period ends.
    pub fn settle(&self, state: Option<&[u64]>, cost: Cost, now: Timestamp) -> Entry {
        self.overdraw(self.open(state, now).spent, cost, now)
    }

    /// Returns the amount that is spent at `now`, without what is held.
    pub fn spent(&self, state: Option<&[u64]>, now: Timestamp) -> Cost {
        let spent = self.open(state, now).spent;
        match self {
            Budget::TokenBucket(bucket) => bucket.spent(spent, now),
            Budget::FixedWindow(window) => window.spent(spent, now),
        }
    }

    /// Returns the amount that all owners together hold at `now`.
    pub fn held(&self, state: Option<&[u64]>, now: Timestamp) -> Cost {
        Cost::from_thousandths(self.open(state, now).entries.sum)
    }

    /// Returns the owners that hold something at `now`, beginning with the owner of the last accepted report.
    pub fn holders(&self, state: Option<&[u64]>, now: Timestamp) -> Vec<Holder> {
        self.open(state, now).entries.holders().collect()
    }

    /// Returns the entry that a store must write at `now` in place of the state. `None` if the state needs no
    /// correction.
    pub fn correction(&self, state: Option<&[u64]>, now: Timestamp) -> Option<Entry> {
        let Opened { spent, entries } = self.open(state, now);
        let corrected = match self {
            Budget::TokenBucket(bucket) => bucket.correction(spent, now),
            Budget::FixedWindow(window) => window.correction(spent, now),
        };
        let is_corrected = corrected.is_some() || entries.is_corrected;
        is_corrected.then(|| joined(self.overdraw(spent, Cost::default(), now), &entries))
    }

    /// Returns the part of a state that says what is spent. In this part, held amounts count as free.
    pub fn excerpt(state: &[u64]) -> State {
        State::from_slice(state.get(..SPENT_WORDS).unwrap_or(state))
    }

    /// Returns the limit's quota at `now`.
    pub fn quota(&self, now: Timestamp) -> Quota {
        match self {
            Budget::TokenBucket(bucket) => bucket.quota(),
            Budget::FixedWindow(window) => window.quota(now),
        }
    }

    /// Returns the largest reservation that an untouched bucket admits.
    pub fn ceiling(&self) -> Cost {
        match self {
            Budget::TokenBucket(bucket) => bucket.burst(),
            Budget::FixedWindow(window) => window.limit(),
        }
    }

    /// Returns how a fixed window defines its periods; `None` for a token bucket.
    pub fn window(&self) -> Option<Window> {
        match self {
            Budget::TokenBucket(_) => None,
            Budget::FixedWindow(window) => Some(window.window()),
        }
    }

    /// Returns the period of a fixed window that contains `now`. `None` if no period runs, and for a token bucket.
    pub fn period(&self, state: Option<&[u64]>, now: Timestamp) -> Option<Period> {
        match self {
            Budget::TokenBucket(_) => None,
            Budget::FixedWindow(window) => window.period(self.open(state, now).spent, now),
        }
    }

    /// Returns the budget for a request with its own rate and size. `least` is the smallest cost of a request.
    pub fn for_request(&self, numbers: RequestNumbers, least: Cost) -> Budget {
        match self {
            Budget::TokenBucket(bucket) => Budget::TokenBucket(bucket.for_request(numbers, least)),
            Budget::FixedWindow(window) => Budget::FixedWindow(window.for_request(numbers, least)),
        }
    }

    /// Returns the budget with the fastest refill that any of its requests can have.
    pub fn at_fastest(&self) -> Budget {
        match self {
            Budget::TokenBucket(bucket) => Budget::TokenBucket(bucket.at_fastest()),
            Budget::FixedWindow(_) => *self,
        }
    }

    /// Returns this budget for a bucket that `other` may charge too. In a token bucket, the higher of their fastest
    /// refills applies.
    #[must_use]
    pub fn alongside(self, other: &Budget) -> Budget {
        match (self, other) {
            (Budget::TokenBucket(bucket), Budget::TokenBucket(other)) => Budget::TokenBucket(bucket.alongside(other)),
            (mine, _) => mine,
        }
    }

    /// Returns one of `of` equal shares of this budget, and the cost to charge to the share.
    pub fn share(&self, cost: Cost, of: u64) -> (Budget, Cost) {
        match self {
            Budget::TokenBucket(bucket) => {
                let (bucket, cost) = bucket.share(cost, of);
                (Budget::TokenBucket(bucket), cost)
            }
            Budget::FixedWindow(window) => {
                let (window, cost) = window.share(cost, of);
                (Budget::FixedWindow(window), cost)
            }
        }
    }

    /// Returns the settings of this budget as integers for its Lua twin, for a call at about the time `near`.
    pub fn numbers(&self, near: Timestamp) -> Numbers {
        match self {
            Budget::TokenBucket(bucket) => bucket.numbers(),
            Budget::FixedWindow(window) => window.numbers(near),
        }
    }

    fn open<'s>(&self, state: Option<&'s [u64]>, now: Timestamp) -> Opened<'s> {
        let none = || OwnerEntries::of(EntryKind::Budget, [].into_iter().collect(), now);
        let Some(state) = state else { return Opened { spent: None, entries: none() } };
        let (spent, rest) = state.split_at(state.len().min(SPENT_WORDS));
        let is_valid = match self {
            Budget::TokenBucket(_) => token_bucket::valid(spent).is_some(),
            Budget::FixedWindow(_) => fixed_window::is_valid(spent),
        };
        let entries = match rest {
            [] => Some(none()),
            rest => OwnerEntries::parse(EntryKind::Budget, rest).map(|entries| entries.at(now)),
        };
        match entries {
            Some(entries) if is_valid => Opened { spent: Some(spent), entries },
            // An invalid state counts as a bucket of which everything is spent.
            _ => Opened { spent: Some(&[]), entries: none() },
        }
    }

    fn charge(&self, spent: Option<&[u64]>, cost: Cost, now: Timestamp) -> Step {
        match self {
            Budget::TokenBucket(bucket) => bucket.step(spent, cost, now),
            Budget::FixedWindow(window) => window.step(spent, cost, now),
        }
    }

    fn fits(&self, spent: Option<&[u64]>, cost: Cost, now: Timestamp) -> bool {
        matches!(self.charge(spent, cost, now).charge, ChargeResult::Fits { .. })
    }

    fn overdraw(&self, spent: Option<&[u64]>, cost: Cost, now: Timestamp) -> Entry {
        match self {
            Budget::TokenBucket(bucket) => bucket.overdraw(spent, cost, now),
            Budget::FixedWindow(window) => window.overdraw(spent, cost, now),
        }
    }
}

/// Gives back up to `amount` of what was spent. `spent` is the function that gives back to the token bucket or window.
/// Returns the new state, or `None` for an invalid state.
pub fn give_back(state: &[u64], amount: Cost, spent: fn(&[u64], Cost) -> Option<State>) -> Option<State> {
    let (words, entries) = state.split_at_checked(SPENT_WORDS)?;
    let mut state = spent(words, amount)?;
    state.extend_from_slice(entries);
    let is_whole = |entries| OwnerEntries::parse(EntryKind::Budget, entries).is_some_and(|entries| entries.is_whole());
    (entries.is_empty() || is_whole(entries)).then_some(state)
}

/// Returns a kind of budget that can have this state, for a caller that knows only the key of the bucket. `None` for
/// the state of another algorithm, or of a budget without owners.
pub fn kind_of(state: &[u64]) -> Option<AlgorithmKind> {
    let (spent, entries) = state.split_at_checked(SPENT_WORDS)?;
    match OwnerEntries::is_stored(EntryKind::Budget, entries) {
        true if fixed_window::is_valid(spent) => Some(AlgorithmKind::WindowBudget),
        true if token_bucket::valid(spent).is_some() => Some(AlgorithmKind::TokenBudget),
        _ => None,
    }
}

/// Returns a state as [`Budget::state`] does, for a caller that knows only the key of the bucket.
pub fn state_of_any(spent: Option<&[u64]>, holders: &[Holder], now: Timestamp) -> State {
    let mut state = Budget::excerpt(spent.unwrap_or(&NOTHING_SPENT));
    OwnerEntries::of_holders(EntryKind::Budget, holders, now).pack_into(&mut state);
    state
}

/// Returns the entry with these owners. `spent` is the part that says what is spent.
fn joined(spent: Entry, entries: &OwnerEntries) -> Entry {
    let Entry { mut state, kept_until } = spent;
    let kept_until = kept_until.min(Timestamp(EXACT));
    if entries.is_empty() {
        return Entry { state, kept_until };
    }
    entries.pack_into(&mut state);
    Entry { state, kept_until: kept_until.max(entries.kept_until()) }
}

/// Returns the level without the held amount.
fn beside(level: Level, held: Cost) -> Level {
    Level { remaining: level.remaining.less(held), ..level }
}

#[cfg(test)]
mod tests;
