//! Defines the acts of leases that a store does on many buckets in one call.

use crate::error::StoreError;
use base::time::Timestamp;
use ledger::algorithm::Algorithm;
use ledger::algorithm::lease::{LeaseAct, LeaseReply};
use ledger::bucket_key::{BucketKey, LimitTag};

/// An act on one bucket: the purse of a region, or the home of a limit.
#[derive(Clone, Copy, Debug)]
pub struct BucketAct {
    pub key: BucketKey,
    /// The limit, a purse or a home.
    pub limit: Algorithm,
    pub tag: LimitTag,
    pub act: LeaseAct,
}

/// What came of an act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActResult {
    /// The act is done, and stored.
    Done(LeaseReply),
    /// Nothing was done, because the calendar's period in the call is not the one that runs on the store's clock.
    OutsidePeriod,
    /// Nothing was done, because the server has no memory for it.
    OutOfMemory,
    /// The act is not one for such a limit.
    OtherLimit,
    /// Whether the act was done is unknown, because its server gave no answer. Other servers have answered.
    NoAnswer(StoreError),
}

/// The results of acts, in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActResults {
    /// The time at which the acts were done, on the store's clock. The latest time, if the store has several servers.
    pub now: Timestamp,
    /// The number of buckets whose invalid state was replaced.
    pub healed: u64,
    pub results: Vec<ActResult>,
}

impl ActResults {
    /// Returns the results of this number of acts before any answer.
    pub(crate) fn without_answers(acts: usize) -> ActResults {
        ActResults::unanswered(StoreError::Unsent, acts)
    }

    /// Returns the results of this number of acts after an error.
    pub(crate) fn unanswered(error: StoreError, acts: usize) -> ActResults {
        ActResults { now: Timestamp(0), healed: 0, results: vec![ActResult::NoAnswer(error); acts] }
    }

    /// Whether the server had no memory for any of the acts.
    pub(crate) fn is_out_of_memory(&self) -> bool {
        !self.results.is_empty() && self.results.iter().all(|result| *result == ActResult::OutOfMemory)
    }

    /// Puts the results of some acts in their places.
    pub(crate) fn join(&mut self, places: &[usize], ActResults { now, healed, results }: ActResults) {
        self.now = self.now.max(now);
        self.healed += healed;
        for (place, result) in places.iter().zip(results) {
            if let Some(old) = self.results.get_mut(*place) {
                *old = result;
            }
        }
    }
}
