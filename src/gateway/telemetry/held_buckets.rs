//! Keeps the buckets of which requests of this process hold slots, for the status page.
//!
//! The entries are in [`SHARDS`] parts, so that a request waits at most while one part is copied.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use parking_lot::Mutex;

use super::top_refused::LimitVersion;
use ledger::bucket_key::BucketKey;

const SHARDS: usize = 64;

/// Counts the slots that requests of this process hold, by bucket.
#[derive(Debug)]
pub(crate) struct HeldBuckets {
    shards: Box<[Mutex<HashMap<BucketKey, HeldBucket>>]>,
}

/// A bucket of which requests hold slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeldBucket {
    pub key: BucketKey,
    /// The limit of the last request that got a slot.
    pub limit_version: LimitVersion,
    pub slots: u64,
}

impl HeldBuckets {
    pub(crate) fn new() -> HeldBuckets {
        HeldBuckets { shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }

    /// Counts a request that got a slot of the bucket.
    pub(crate) fn add(&self, key: BucketKey, limit_version: LimitVersion) {
        let Some(mut shard) = self.shard(&key).map(Mutex::lock) else { return };
        let held = shard.entry(key).or_insert(HeldBucket { key, limit_version, slots: 0 });
        held.limit_version = limit_version;
        held.slots += 1;
    }

    /// Counts the end of a request that was counted by [`HeldBuckets::add`].
    pub(crate) fn remove(&self, key: BucketKey) {
        let Some(mut shard) = self.shard(&key).map(Mutex::lock) else { return };
        if let Entry::Occupied(mut held) = shard.entry(key) {
            held.get_mut().slots = held.get().slots.saturating_sub(1);
            if held.get().slots == 0 {
                held.remove();
            }
        }
    }

    /// Returns the `max` buckets with the most slots held, in descending order. Buckets of other configurations are
    /// left out.
    pub(crate) fn top(&self, max: usize, configuration: u32) -> Vec<HeldBucket> {
        let mut buckets: Vec<HeldBucket> = Vec::new();
        for shard in &self.shards {
            buckets.extend(shard.lock().values().filter(|one| one.limit_version.configuration == configuration));
            buckets.sort_unstable_by(|one, other| (other.slots, one.key).cmp(&(one.slots, other.key)));
            buckets.truncate(max);
        }
        buckets
    }

    fn shard(&self, key: &BucketKey) -> Option<&Mutex<HashMap<BucketKey, HeldBucket>>> {
        let BucketKey([.., last]) = key;
        self.shards.get(usize::from(*last) % SHARDS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ledger::charge::LimitId;

    #[test]
    fn the_buckets_with_the_most_slots_come_first_and_a_bucket_without_slots_is_gone() {
        let held = HeldBuckets::new();
        let version = |configuration| LimitVersion { configuration, limit: LimitId(3) };
        let key = |number: u8| BucketKey([number; 16]);
        for (number, slots) in [(1, 2), (2, 5), (3, 1), (65, 3)] {
            (0..slots).for_each(|_| held.add(key(number), version(1)));
        }
        held.add(key(4), version(2));
        let top = |max| held.top(max, 1).iter().map(|one| (one.key.0[0], one.slots)).collect::<Vec<_>>();
        assert_eq!(top(3), [(2, 5), (65, 3), (1, 2)]);
        held.remove(key(3));
        (0..4).for_each(|_| held.remove(key(2)));
        assert_eq!(top(9), [(65, 3), (1, 2), (2, 1)]);
        assert_eq!(held.top(9, 2).len(), 1);
    }
}
