//! What a store answers to a plan.

use crate::base::time::Timestamp;
use crate::limit::charge::Settlement;

/// What a store did with a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TakeReply {
    /// The store's own clock, when it decided.
    pub now: Timestamp,
    pub settlement: Settlement,
    /// Buckets that had to be forgotten to make room, although something was still spent.
    pub evicted: u64,
    pub source: Source,
}

/// Where an answer comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    Store,
    /// From what the store has shown before: it would have said the same.
    Cached,
    /// From this gateway's share: the store gave no answer.
    Fallback,
}
