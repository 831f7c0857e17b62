//! Defines what a store returns: its answer to a plan, and the states of changed buckets.

use super::reservation::Reservation;
use base::time::Timestamp;
use ledger::algorithm::State;
use ledger::charge::Settlement;

/// The states of a bucket before and after an operator gave back an amount. `None` means that the bucket was full.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GivenBack {
    pub before: Option<State>,
    pub after: Option<State>,
}

/// A store's answer to a plan.
#[derive(Debug)]
pub struct TakeReply {
    /// The time of the decision on the store's clock.
    pub now: Timestamp,
    pub settlement: Settlement,
    /// The number of buckets that were evicted before they were full.
    pub evicted: u64,
    pub source: Source,
    /// The slots that the request holds until it ends.
    pub reservation: Reservation,
}

/// Where an answer comes from, for metrics and the access log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    Store,
    /// This process's cache of what the store has shown about buckets.
    Cached,
    /// This gateway's share of the limits, while the store gives no answer.
    Fallback,
}
