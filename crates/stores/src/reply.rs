//! Defines what a store returns: its answer to a plan, and the states of buckets from which an operator gave back.

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
    /// The number of buckets that were evicted to make room although something was still spent in them.
    pub evicted: u64,
    pub source: Source,
    /// What the request holds until it ends. Empty if its limits are rates, or if it was refused.
    pub reservation: Reservation,
}

/// Where an answer comes from. Metrics and the access log distinguish answers by their source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    Store,
    /// What the store has shown earlier about a bucket. The store itself would have refused the plan too.
    Cached,
    /// This gateway's share of the limits, used because the store gave no answer.
    Fallback,
}
