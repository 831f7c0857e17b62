//! Keeps what requests have settled of buckets during a hand-over, until the process that has the buckets charges it.

use std::collections::HashMap;

use foldhash::quality::RandomState;

use base::time::Timestamp;
use ledger::bucket_key::BucketKey;
use ledger::cost::Cost;

/// What requests have settled of a bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Settlements {
    /// The number of resets. Each forgets what was spent before.
    pub resets: u64,
    /// The sum of the costs since the last reset.
    pub cost: Cost,
}

/// Settled costs, what of them was sent to the next process, and when the last one was settled.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnchargedCost {
    pub settled: Settlements,
    pub sent: Settlements,
    pub at: Timestamp,
}

impl Settlements {
    /// Returns what is settled since `before`.
    pub(super) fn since(self, before: Settlements) -> Settlements {
        match self.resets.saturating_sub(before.resets) {
            0 => Settlements { resets: 0, cost: self.cost.less(before.cost) },
            resets => Settlements { resets, cost: self.cost },
        }
    }
}

/// Adds what is newly settled of a bucket.
pub(super) fn keep(
    uncharged: &mut HashMap<BucketKey, UnchargedCost, RandomState>,
    key: BucketKey,
    new: Settlements,
    now: Timestamp,
) {
    if new != Settlements::default() {
        let none = UnchargedCost { settled: Settlements::default(), sent: Settlements::default(), at: now };
        let kept = uncharged.entry(key).or_insert(none);
        let before = if new.resets > 0 { Cost::default() } else { kept.settled.cost };
        let settled = Settlements { resets: kept.settled.resets + new.resets, cost: before.plus(new.cost) };
        *kept = UnchargedCost { settled, at: now, ..*kept };
    }
}
