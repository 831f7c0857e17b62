//! Defines what a store returns: its answer to a plan, and the states of buckets from which an operator gave back.

use base::time::Timestamp;
use ledger::algorithm::State;
use ledger::charge::Settlement;

/// The states of a bucket before and after an operator gave back an amount; `None` for a full bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GivenBack {
    pub before: Option<State>,
    pub after: Option<State>,
}

/// A store's answer to a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TakeReply {
    /// The time of the decision on the store's clock.
    pub now: Timestamp,
    pub settlement: Settlement,
    /// The number of buckets that were evicted to make room although they were not full again.
    pub evicted: u64,
    pub source: Source,
}

/// The source of an answer, by which metrics and the access log distinguish it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    Store,
    /// Levels that the store has shown earlier, by which it would have refused too.
    Cached,
    /// This gateway's share of the limits, because the store gave no answer.
    Fallback,
}
