//! Passes what concerns the owners of a bucket to the limits of which requests hold something.

use super::Algorithm;
use super::concurrency::Holder;
use super::step::Entry;
use crate::holds::report::{Owner, Report, TimedHoldStatus};
use base::time::Timestamp;

impl Algorithm {
    /// Returns the owners that hold something of a bucket at `now`.
    pub(super) fn plain_holders(&self, state: Option<&[u64]>, now: Timestamp) -> Vec<Holder> {
        match self {
            Algorithm::Concurrency(slots) => slots.holders(state, now),
            Algorithm::Budget(budget) => budget.holders(state, now),
            Algorithm::TokenBucket(_)
            | Algorithm::FixedWindow(_)
            | Algorithm::SlidingLog(_)
            | Algorithm::SlidingWindow(_)
            | Algorithm::LeakyBucket(_)
            | Algorithm::Purse(_)
            | Algorithm::Home(_) => Vec::new(),
        }
    }

    /// Accepts an owner's report about a bucket. Returns the entry that the store must write even if all plans are
    /// refused. `None` if the report changes nothing, see [`super::concurrency::Concurrency::accept`].
    pub(super) fn plain_accept(&self, state: Option<&[u64]>, report: Report, now: Timestamp) -> Option<Entry> {
        match self {
            Algorithm::Concurrency(slots) => slots.accept(state, report, now),
            Algorithm::Budget(budget) if budget.settles() => budget.accept(state, report, now),
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

    /// Returns the entry of a bucket without this owner. `None` for a limit of which requests hold nothing.
    pub(super) fn plain_without_owner(&self, state: Option<&[u64]>, owner: Owner, now: Timestamp) -> Option<Entry> {
        match self {
            Algorithm::Concurrency(slots) => Some(slots.without_owner(state?, owner, now)),
            Algorithm::Budget(budget) if budget.settles() => Some(budget.without_owner(state, owner, now)),
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

    /// Returns what has become of a timed hold of the bucket.
    pub(super) fn plain_timed_hold(&self, state: Option<&[u64]>, owner: Owner, now: Timestamp) -> TimedHoldStatus {
        match self {
            Algorithm::Concurrency(slots) => slots.timed_hold(state, owner, now),
            Algorithm::Budget(budget) if budget.settles() => budget.timed_hold(state, owner, now),
            Algorithm::TokenBucket(_)
            | Algorithm::FixedWindow(_)
            | Algorithm::SlidingLog(_)
            | Algorithm::SlidingWindow(_)
            | Algorithm::LeakyBucket(_)
            | Algorithm::Budget(_)
            | Algorithm::Purse(_)
            | Algorithm::Home(_) => TimedHoldStatus::Unknown,
        }
    }
}
