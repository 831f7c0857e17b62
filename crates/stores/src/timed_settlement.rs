//! Defines what a store makes of the settlement of a timed hold.

/// The result of the settlement of a timed hold at one bucket. In order: the later one counts for a hold whose buckets have several
/// results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TimedSettlement {
    /// The hold is unknown, or has ended.
    Ended,
    /// An earlier call has settled, so nothing changes.
    SettledBefore,
    Settled,
}

/// Returns the result at the bucket with this index. A store has answered for every bucket.
pub(crate) fn at(results: &[TimedSettlement], index: usize) -> TimedSettlement {
    results.get(index).copied().unwrap_or(TimedSettlement::Ended)
}
