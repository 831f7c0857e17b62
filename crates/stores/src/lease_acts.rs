//! Defines the acts of leases that a store does on many buckets in one call.

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
}

/// The results of acts, in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActResults {
    /// The time at which the acts were done, on the store's clock.
    pub now: Timestamp,
    /// The number of buckets whose invalid state was replaced.
    pub healed: u64,
    pub results: Vec<ActResult>,
}
