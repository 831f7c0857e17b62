//! Keeps the buckets of which requests of this process hold slots or amounts, for the status page.
//!
//! The entries are in [`SHARDS`] parts, so that a request waits at most while one part is copied.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use parking_lot::Mutex;

use super::top_refused::LimitVersion;
use ledger::bucket_key::BucketKey;
use ledger::cost::Cost;

const SHARDS: usize = 64;

/// Counts what requests of this process hold, by bucket.
#[derive(Debug)]
pub(crate) struct HeldBuckets {
    shards: Box<[Mutex<HashMap<BucketKey, HeldBucket>>]>,
}

/// A bucket of which requests hold something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeldBucket {
    pub key: BucketKey,
    /// The limit of the last request that was admitted and holds something of the bucket.
    pub limit_version: LimitVersion,
    /// The number of requests that hold something of the bucket.
    pub requests: u64,
    /// What these requests hold of a budget. 0 for slots.
    pub amount: Cost,
}

impl HeldBuckets {
    pub(crate) fn new() -> HeldBuckets {
        HeldBuckets { shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }

    /// Counts a request that was admitted and holds a slot, or this amount of a budget.
    pub(crate) fn add(&self, key: BucketKey, amount: Cost, limit_version: LimitVersion) {
        let Some(mut shard) = self.shard(&key).map(Mutex::lock) else { return };
        let new = HeldBucket { key, limit_version, requests: 0, amount: Cost::default() };
        let held = shard.entry(key).or_insert(new);
        held.limit_version = limit_version;
        held.requests += 1;
        held.amount = held.amount.plus(amount);
    }

    /// Counts the end of a request that was counted by [`HeldBuckets::add`].
    pub(crate) fn remove(&self, key: BucketKey, amount: Cost) {
        let Some(mut shard) = self.shard(&key).map(Mutex::lock) else { return };
        if let Entry::Occupied(mut entry) = shard.entry(key) {
            let held = entry.get_mut();
            held.requests = held.requests.saturating_sub(1);
            held.amount = Cost::from_thousandths(held.amount.thousandths().saturating_sub(amount.thousandths()));
            if held.requests == 0 {
                entry.remove();
            }
        }
    }

    /// Returns the `max` buckets with the most requests, in descending order. Buckets of other configurations are
    /// left out.
    pub(crate) fn top(&self, max: usize, configuration: u32) -> Vec<HeldBucket> {
        let mut buckets: Vec<HeldBucket> = Vec::new();
        for shard in &self.shards {
            buckets.extend(shard.lock().values().filter(|one| one.limit_version.configuration == configuration));
            buckets.sort_unstable_by(|one, other| (other.requests, one.key).cmp(&(one.requests, other.key)));
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
    fn the_buckets_with_the_most_requests_come_first_and_a_bucket_without_requests_is_gone() {
        let held = HeldBuckets::new();
        let version = |configuration| LimitVersion { configuration, limit: LimitId(3) };
        let key = |number: u8| BucketKey([number; 16]);
        let amount = Cost::from_tokens(7);
        for (number, requests) in [(1, 2), (2, 5), (3, 1), (65, 3)] {
            (0..requests).for_each(|_| held.add(key(number), amount, version(1)));
        }
        held.add(key(4), amount, version(2));
        let top = |max| held.top(max, 1).iter().map(|one| (one.key.0[0], one.requests)).collect::<Vec<_>>();
        assert_eq!(top(3), [(2, 5), (65, 3), (1, 2)]);
        held.remove(key(3), amount);
        (0..4).for_each(|_| held.remove(key(2), amount));
        assert_eq!(top(9), [(65, 3), (1, 2), (2, 1)]);
        assert_eq!(held.top(9, 1)[1].amount, Cost::from_tokens(14));
        assert_eq!(held.top(9, 2).len(), 1);
    }
}
