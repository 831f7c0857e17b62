//! Keeps the slots of one owner.

use std::collections::{BTreeMap, BTreeSet};

use crate::algorithm::Algorithm;
use crate::bucket_key::BucketKey;
use crate::cost::Cost;
use base::time::Timestamp;

/// Identifies a slot of one owner: the amount that a request holds of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotId(u64);

/// The amount of a slot, and the limit that granted it. The slot ends at the latest after the limit's
/// [`Algorithm::max_hold`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlotTerms {
    pub amount: Cost,
    pub algorithm: Algorithm,
}

/// The slots that have not ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Slots {
    slots: BTreeMap<SlotId, Slot>,
    last: u64,
    /// For each slot with a `max_hold`, the moment at which the slot ends at the latest.
    ends: BTreeSet<(Timestamp, SlotId)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Slot {
    bucket: BucketKey,
    amount: Cost,
    end: Option<Timestamp>,
}

impl Slots {
    /// Adds a slot that is held from `now`.
    pub fn add(&mut self, bucket: BucketKey, terms: SlotTerms, now: Timestamp) -> SlotId {
        self.last += 1;
        let slot = SlotId(self.last);
        let end = terms.algorithm.max_hold().map(|longest| now.plus(longest));
        if let Some(end) = end {
            self.ends.insert((end, slot));
        }
        self.slots.insert(slot, Slot { bucket, amount: terms.amount, end });
        slot
    }

    /// Ends a slot. Returns the slot's bucket and amount. `None` if the slot had ended before.
    pub fn end(&mut self, slot: SlotId) -> Option<(BucketKey, Cost)> {
        let Slot { bucket, amount, end } = self.slots.remove(&slot)?;
        if let Some(end) = end {
            self.ends.remove(&(end, slot));
        }
        Some((bucket, amount))
    }

    /// Ends one slot whose `max_hold` has passed at `now`. Returns its bucket and amount. `None` if there is no such
    /// slot.
    pub fn end_overdue(&mut self, now: Timestamp) -> Option<(BucketKey, Cost)> {
        let (_, slot) = self.ends.first().copied().filter(|(end, _)| *end <= now)?;
        self.end(slot)
    }

    /// Ends all slots.
    pub fn clear(&mut self) {
        self.slots.clear();
        self.ends.clear();
    }

    /// Returns the first moment at which a slot has been held for its longest time.
    pub fn next_end(&self) -> Option<Timestamp> {
        self.ends.first().map(|(end, _)| *end)
    }
}
