//! Steps a concurrency limit: at most `limit` slots are held at the same time.
//!
//! The state has one entry for each owner, which is a worker thread of a gateway. The entry says how much the owner
//! holds, and when the entry ends: 7 s after it was stored. Owners report the whole amount that they hold, with a
//! sequence that grows. In a call, the owner's report comes before the plans. A step adds the granted amount to the
//! first entry, which belongs to the owner of the last accepted report.
//!
//! `limit` may differ from request to request. All requests that charge one bucket share its slots.
//!
//! The bucket's moment is the latest time that the bucket has seen on the store's clock. While the moment is ahead of
//! this clock, no entry ends. If the moment is more than 10 s ahead, the moment and the ends of all entries are set
//! back.
//!
//! Invariant: every number stays below 2^53, so that the same steps are exact in a store that counts in doubles.

use std::fmt;

use smallvec::smallvec;

pub use super::owner_entries::Holder;
use super::owner_entries::{EntryKind, OwnerEntries};
use super::raise;
use super::step::{ChargeResult, EXACT, Entry, Level, Numbers, Quota, RequestNumbers, State, Step};
use crate::cost::Cost;
use crate::holds::report::{Owner, Report, TimedHoldStatus};
use base::time::{Micros, Timestamp};

pub const NAME: &str = "concurrency";

/// The reason of a refusal by a limit with too few free slots.
pub const EXCEEDED: &str = "concurrency_exceeded";

/// The unit of the quota, which is `qu` in the header `RateLimit-Policy`.
pub const QUOTA_UNIT: &str = "concurrent-requests";

/// The time after which a refused client should try again. It is fixed, because the end of other requests is not
/// known.
pub const WAIT: Micros = Micros(1_000_000);

/// The largest limit, in slots.
pub const MAX_LIMIT: u64 = 1_000_000_000;

/// The Lua twin, in the form of [`TWINS`](super::TWINS). Its function `accept` takes a report of the owner that the
/// given eight bytes identify, and returns whether the report was accepted. `accept` is called before `most`.
pub const TWIN: &str =
    concat!("local WIDTH = 32\n", include_str!("../owner_entries.lua"), include_str!("concurrency.lua"));

/// The settings of one concurrency limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Concurrency {
    limit: Cost,
    max_hold: Option<Micros>,
}

impl Concurrency {
    /// The limit with the largest number of slots.
    pub const MOST: Concurrency = Concurrency { limit: Cost::from_thousandths(MAX_LIMIT * 1000), max_hold: None };

    /// Makes a concurrency limit of `limit` slots. `None` if the number is not between 1 and [`MAX_LIMIT`].
    pub fn new(limit: u64) -> Option<Concurrency> {
        (1..=MAX_LIMIT).contains(&limit).then(|| Concurrency { limit: Cost::from_tokens(limit), max_hold: None })
    }

    /// Returns this limit with another `max_hold`: a slot is given back after this time even if its request still
    /// runs. `None` is no bound.
    #[must_use]
    pub fn with_max_hold(self, max_hold: Option<Micros>) -> Concurrency {
        Concurrency { max_hold, ..self }
    }

    /// Returns the longest time for which a request holds its slot; `None` without a longest time.
    pub fn max_hold(&self) -> Option<Micros> {
        self.max_hold
    }

    /// Returns the limit for a request that may have its own number of slots. A number above 0 is raised to at least
    /// `least`, rounded up. With 0 every request is refused.
    pub fn for_request(&self, numbers: RequestNumbers, least: Cost) -> Concurrency {
        let limit = numbers.ceiling.unwrap_or(self.limit).min(Cost::from_tokens(MAX_LIMIT));
        let limit = if limit == Cost::default() { limit } else { limit.max(least.ceil()) };
        Concurrency { limit, ..*self }
    }

    /// Returns the number of slots, which is `q` in the header `RateLimit-Policy`.
    pub fn limit(&self) -> Cost {
        self.limit
    }

    /// Returns this limit with more slots, up to the largest number that is exact.
    pub(super) fn raised(&self, by: Cost) -> Concurrency {
        Concurrency { limit: self.limit.plus(by).min(Cost::from_thousandths(EXACT)), ..*self }
    }

    /// Returns one of `of` equal shares of the slots, rounded down, and the cost. A share can pay the cost at least
    /// once.
    pub fn share(&self, cost: Cost, of: u64) -> (Concurrency, Cost) {
        let slots = self.limit.whole() / of.max(1);
        (Concurrency { limit: Cost::from_tokens(slots).max(cost), ..*self }, cost)
    }

    /// Returns the number of slots. The window is 0.
    pub fn quota(&self) -> Quota {
        Quota { limit: self.limit.whole(), window: Micros(0) }
    }

    /// Returns the settings of this limit as integers for its Lua twin.
    pub fn numbers(&self) -> Numbers {
        smallvec![self.limit.thousandths()]
    }

    /// Accepts a report. Returns the entry, which must be stored even if all plans are refused. `None` if the report
    /// is not newer than the owner's last report, or if the bucket has too many owners. Then the plans of the call
    /// fail.
    pub fn accept(&self, state: Option<&[u64]>, report: Report, now: Timestamp) -> Option<Entry> {
        let mut entries = self.open(state, now);
        entries.accept(report).map(|_| stored(&entries))
    }

    /// Computes the result of charging `cost` to the owner of the last accepted report. `state` is the result of
    /// [`Concurrency::accept`] or of a later step in the same call.
    pub fn step(&self, state: Option<&[u64]>, cost: Cost, now: Timestamp) -> Step {
        let mut entries = self.open(state, now);
        let untouched = self.level(&entries);
        let room = self.limit.thousandths().checked_sub(entries.sum);
        let charge = match room {
            _ if cost > self.limit => ChargeResult::Never,
            Some(room) if cost.thousandths() <= room && entries.charge(cost.thousandths()) => {
                ChargeResult::Fits { level: self.level(&entries), entry: stored(&entries), delay: Micros(0) }
            }
            _ => ChargeResult::Short { wait: WAIT },
        };
        Step { untouched, charge }
    }

    /// Returns the amount that all owners together hold at `now`.
    pub fn spent(&self, state: Option<&[u64]>, now: Timestamp) -> Cost {
        Cost::from_thousandths(self.open(state, now).sum)
    }

    /// Returns the owners that hold something at `now`, beginning with the owner of the last accepted report.
    pub fn holders(&self, state: Option<&[u64]>, now: Timestamp) -> Vec<Holder> {
        self.open(state, now).holders().collect()
    }

    /// Returns the entry that a store must write at `now` in place of the state. `None` if the state needs no
    /// correction.
    pub fn correction(&self, state: Option<&[u64]>, now: Timestamp) -> Option<Entry> {
        let entries = self.open(state, now);
        entries.is_corrected.then(|| stored(&entries))
    }

    /// Returns the entry of a bucket with the same owners. Its state is empty if no owner has an entry.
    pub(super) fn unchanged(&self, state: &[u64], now: Timestamp) -> Entry {
        self.kept(&self.open(Some(state), now), now)
    }

    /// Returns the entry of a bucket without this owner. Its state is empty if no other owner has an entry.
    pub(super) fn without_owner(&self, state: &[u64], owner: Owner, now: Timestamp) -> Entry {
        self.kept(&self.open(Some(state), now).without(owner), now)
    }

    /// Returns what has become of a timed hold.
    pub(super) fn timed_hold(&self, state: Option<&[u64]>, owner: Owner, now: Timestamp) -> TimedHoldStatus {
        self.open(state, now).timed_hold(owner)
    }

    fn kept(&self, entries: &OwnerEntries, now: Timestamp) -> Entry {
        if entries.is_empty() { Entry { state: State::new(), kept_until: now } } else { stored(entries) }
    }

    fn open(&self, state: Option<&[u64]>, now: Timestamp) -> OwnerEntries {
        OwnerEntries::open(EntryKind::Slots, state, self.limit.thousandths(), now)
    }

    fn level(&self, entries: &OwnerEntries) -> Level {
        let free = self.limit.thousandths().saturating_sub(entries.sum);
        let reset_after = if entries.sum == 0 { Micros(0) } else { WAIT };
        Level { remaining: Cost::from_thousandths(free), reset_after }
    }
}

/// Returns the state of a bucket of which these owners hold something at `now`, beside those of the stored state `kept`.
pub fn state(kept: Option<&[u64]>, holders: &[Holder], now: Timestamp) -> State {
    let stored = kept.and_then(raise::plain).and_then(|plain| OwnerEntries::parse(EntryKind::Slots, plain));
    let entries = match stored {
        Some(stored) => stored.at(now).with_holders(holders),
        None => OwnerEntries::of_holders(EntryKind::Slots, holders, now),
    };
    raise::with_prefix(kept.map_or(&[], raise::prefix), entries.pack())
}

/// Returns whether a stored value is the state of a concurrency limit, for a caller that knows only the key of the
/// bucket.
pub fn is_stored(state: &[u64]) -> bool {
    raise::plain(state).is_some_and(|state| OwnerEntries::is_stored(EntryKind::Slots, state))
}

/// Returns the state unchanged, because only owners give back slots. `None` for an invalid state.
pub fn give_back(state: &[u64], _amount: Cost) -> Option<State> {
    let is_whole = OwnerEntries::parse(EntryKind::Slots, state).is_some_and(|entries| entries.is_whole());
    is_whole.then(|| State::from_slice(state))
}

fn stored(entries: &OwnerEntries) -> Entry {
    Entry { state: entries.pack(), kept_until: entries.kept_until() }
}

/// Displays the limit as `8 at once`, or `8 at once max_hold 90s`.
impl fmt::Display for Concurrency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at once", self.limit)?;
        match self.max_hold {
            Some(hold) if hold.0.is_multiple_of(60_000_000) => write!(f, " max_hold {}m", hold.0 / 60_000_000),
            Some(hold) if hold.0.is_multiple_of(1_000_000) => write!(f, " max_hold {}s", hold.0 / 1_000_000),
            Some(hold) => write!(f, " max_hold {}ms", hold.0 / 1_000),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
