//! Passes what concerns the owners of a bucket to the limits of which requests hold something.

use super::Algorithm;
use super::budget::Budget;
use super::concurrency::{Concurrency, Holder};
use super::step::Entry;
use crate::holds::report::{Owner, Report, TimedHoldStatus};
use base::time::Timestamp;

/// A limit of which requests hold something while they run.
enum OwnedLimit<'a> {
    Slots(&'a Concurrency),
    /// A budget that settles.
    Budget(&'a Budget),
}

impl Algorithm {
    /// Returns the limit if requests hold something of it.
    fn owned(&self) -> Option<OwnedLimit<'_>> {
        match self {
            Algorithm::Concurrency(slots) => Some(OwnedLimit::Slots(slots)),
            Algorithm::Budget(budget) if budget.settles() => Some(OwnedLimit::Budget(budget)),
            Algorithm::TokenBucket(_)
            | Algorithm::FixedWindow(_)
            | Algorithm::SlidingLog(_)
            | Algorithm::SlidingWindow(_)
            | Algorithm::LeakyBucket(_)
            | Algorithm::Budget(_)
            | Algorithm::Purse(_)
            | Algorithm::Home(_) => None,
        }
    }

    /// Returns the owners that hold something of a bucket at `now`.
    pub(super) fn plain_holders(&self, state: Option<&[u64]>, now: Timestamp) -> Vec<Holder> {
        match self.owned() {
            Some(OwnedLimit::Slots(slots)) => slots.holders(state, now),
            Some(OwnedLimit::Budget(budget)) => budget.holders(state, now),
            None => Vec::new(),
        }
    }

    /// Accepts an owner's report about a bucket. Returns the entry that the store must write even if all plans are
    /// refused. `None` if the report changes nothing, see [`Concurrency::accept`].
    pub(super) fn plain_accept(&self, state: Option<&[u64]>, report: Report, now: Timestamp) -> Option<Entry> {
        match self.owned()? {
            OwnedLimit::Slots(slots) => slots.accept(state, report, now),
            OwnedLimit::Budget(budget) => budget.accept(state, report, now),
        }
    }

    /// Returns the entry of a bucket without this owner. `None` for a limit of which requests hold nothing, and for slots
    /// without a state.
    pub(super) fn plain_without_owner(&self, state: Option<&[u64]>, owner: Owner, now: Timestamp) -> Option<Entry> {
        match self.owned()? {
            OwnedLimit::Slots(slots) => Some(slots.without_owner(state?, owner, now)),
            OwnedLimit::Budget(budget) => Some(budget.without_owner(state, owner, now)),
        }
    }

    /// Returns what has become of a timed hold of the bucket.
    pub(super) fn plain_timed_hold(&self, state: Option<&[u64]>, owner: Owner, now: Timestamp) -> TimedHoldStatus {
        match self.owned() {
            Some(OwnedLimit::Slots(slots)) => slots.timed_hold(state, owner, now),
            Some(OwnedLimit::Budget(budget)) => budget.timed_hold(state, owner, now),
            None => TimedHoldStatus::Unknown,
        }
    }
}
