//! Keeps the buckets of one shard, and evicts them in the order of [`EvictionOrder`]. Buckets with timed holds are not evicted
//! until these end.

use std::collections::HashMap;
use std::hash::BuildHasher;

use foldhash::quality::RandomState;
use hashbrown::HashTable;

use super::eviction_order::EvictionOrder;
use super::full_queue::{FullQueue, Item};
use super::queue_id::QueueId;
use super::segmented_vec::SegmentedVec;
use base::time::Timestamp;
use ledger::algorithm::State;
use ledger::bucket_key::BucketKey;

/// A part of the memory store: its buckets by their keys, and the order in which they are evicted.
#[derive(Debug, Default)]
pub(crate) struct Shard {
    /// The slot of each bucket (its index in `buckets`), found by the hash of its key.
    slots: HashTable<u32>,
    hasher: RandomState,
    buckets: Buckets,
    order: EvictionOrder,
    held: HeldBuckets,
}

/// The buckets with timed holds. They are not in the [`EvictionOrder`].
#[derive(Debug, Default)]
struct HeldBuckets {
    /// Orders the buckets by the moment at which the last of their holds ends.
    ends: FullQueue,
    /// The moment at which each bucket is full.
    full_at: HashMap<BucketKey, Timestamp, RandomState>,
}

impl HeldBuckets {
    fn full_at(&self, key: &BucketKey) -> Option<Timestamp> {
        // Most stores have no such bucket.
        if self.full_at.is_empty() { None } else { self.full_at.get(key).copied() }
    }
}

/// The buckets of a shard. The slot of a bucket is its index here.
type Buckets = SegmentedVec<Bucket, 128>;

/// A bucket. The moment at which it is full is stored in its queue.
#[derive(Debug)]
struct Bucket {
    key: BucketKey,
    state: State,
    queue: QueueId,
    /// The bucket's position in its queue, or in that of held buckets.
    position: u32,
}

impl Bucket {
    fn position(&self) -> usize {
        to_index(self.position)
    }
}

fn to_index(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

fn to_number(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}

/// Whether something was lost when a bucket was evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Eviction {
    /// The bucket was full again, so nothing is lost.
    Full,
    /// Something was still spent in the bucket.
    Spent,
}

/// Whether the shard already had a bucket with this key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Put {
    Replaced,
    Added,
}

impl Shard {
    fn slot(&self, key: &BucketKey) -> Option<u32> {
        let is_its = |slot: &u32| self.buckets.get(to_index(*slot)).is_some_and(|bucket| bucket.key == *key);
        self.slots.find(self.hasher.hash_one(key), is_its).copied()
    }

    fn bucket(&self, key: &BucketKey) -> Option<&Bucket> {
        self.buckets.get(to_index(self.slot(key)?))
    }

    pub(super) fn get(&self, key: &BucketKey) -> Option<&State> {
        self.bucket(key).map(|bucket| &bucket.state)
    }

    pub(super) fn get_mut(&mut self, key: &BucketKey) -> Option<&mut State> {
        let slot = self.slot(key)?;
        self.buckets.get_mut(to_index(slot)).map(|bucket| &mut bucket.state)
    }

    /// Returns the eviction queue of a bucket, the moment at which the bucket is full, and its state.
    pub(super) fn kept(&self, key: &BucketKey) -> Option<(QueueId, Timestamp, &State)> {
        let bucket = self.bucket(key)?;
        let full_at = match self.held.full_at(key) {
            Some(full_at) => full_at,
            None => self.order.get(bucket.queue, bucket.position())?.full_at,
        };
        Some((bucket.queue, full_at, &bucket.state))
    }

    pub(super) fn put(&mut self, key: BucketKey, queue: QueueId, full_at: Timestamp, state: State) -> Put {
        let kept = self.slot(&key);
        if let Some(slot) = kept
            && let Some(bucket) = self.buckets.get_mut(to_index(slot))
        {
            bucket.state = state;
            let (before, position) = (bucket.queue, bucket.position());
            if self.held.full_at(&key).is_some() {
                bucket.queue = queue;
                self.held.full_at.insert(key, full_at);
            } else if before == queue {
                self.order.update(queue, position, full_at, mover(&mut self.buckets));
            } else {
                bucket.queue = queue;
                self.order.leave(before, position, mover(&mut self.buckets));
                self.order.join(queue, Item { full_at, slot }, mover(&mut self.buckets));
            }
            return Put::Replaced;
        }
        let Shard { slots, hasher, buckets, order, .. } = self;
        let slot = to_number(buckets.len());
        buckets.push(Bucket { key, state, queue, position: 0 });
        slots.insert_unique(hasher.hash_one(key), slot, |slot| hash_of(*slot, buckets, hasher));
        order.join(queue, Item { full_at, slot }, mover(buckets));
        Put::Added
    }

    pub(super) fn remove(&mut self, key: &BucketKey) -> Option<State> {
        let slot = self.slot(key)?;
        self.remove_slot(slot)
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &BucketKey> {
        self.buckets.iter().map(|bucket| &bucket.key)
    }

    /// Keeps a bucket from eviction until this moment, or a later one that was set before.
    pub(super) fn hold(&mut self, key: &BucketKey, until: Timestamp) {
        let Some(slot) = self.slot(key) else { return };
        let Some(bucket) = self.buckets.get(to_index(slot)) else { return };
        let (queue, position) = (bucket.queue, bucket.position());
        if self.held.full_at(key).is_some() {
            if self.held.ends.get(position).is_some_and(|item| item.full_at < until) {
                self.held.ends.update(position, until, mover(&mut self.buckets));
            }
            return;
        }
        let Some(Item { full_at, .. }) = self.order.get(queue, position) else { return };
        self.order.leave(queue, position, mover(&mut self.buckets));
        self.held.full_at.insert(*key, full_at);
        self.held.ends.push(Item { full_at: until, slot }, mover(&mut self.buckets));
    }

    /// Lets a bucket be evicted like others, because it has no timed hold any more.
    pub(super) fn release(&mut self, key: &BucketKey) {
        let Some(full_at) = self.held.full_at(key) else { return };
        self.held.full_at.remove(key);
        let Some(slot) = self.slot(key) else { return };
        let Some(bucket) = self.buckets.get(to_index(slot)) else { return };
        let (queue, position) = (bucket.queue, bucket.position());
        self.held.ends.remove(position, mover(&mut self.buckets));
        self.order.join(queue, Item { full_at, slot }, mover(&mut self.buckets));
    }

    fn release_ended(&mut self, now: Timestamp) {
        while let Some(Item { slot, .. }) = self.held.ends.first().filter(|item| item.full_at <= now)
            && let Some(key) = self.buckets.get(to_index(slot)).map(|bucket| bucket.key)
        {
            self.release(&key);
        }
    }

    /// Evicts the first bucket in the order at `now`, and returns whether something was lost. `None` if there is no
    /// bucket, or if every one has timed holds.
    pub(super) fn evict(&mut self, now: Timestamp) -> Option<Eviction> {
        self.release_ended(now);
        if let Some(slot) = self.order.full(now) {
            self.remove_slot(slot);
            return Some(Eviction::Full);
        }
        let slot = self.order.least(self.buckets.len() - self.held.full_at.len())?;
        self.remove_slot(slot);
        Some(Eviction::Spent)
    }

    /// Removes up to `most` buckets that are full at `now`, and returns the number of removed buckets.
    pub(crate) fn free_full(&mut self, now: Timestamp, most: usize) -> usize {
        self.release_ended(now);
        let mut freed = 0;
        while freed < most
            && let Some(slot) = self.order.full(now)
        {
            self.remove_slot(slot);
            freed += 1;
        }
        freed
    }

    #[cfg(test)]
    pub(super) fn order(&self) -> &EvictionOrder {
        &self.order
    }

    /// Releases memory if it was reserved for many more buckets than there are now.
    pub(crate) fn shrink(&mut self) {
        let Shard { slots, hasher, buckets, .. } = self;
        if slots.capacity() > 1024 && slots.len() < slots.capacity() / 4 {
            slots.shrink_to_fit(|slot| hash_of(*slot, buckets, hasher));
        }
    }

    fn remove_slot(&mut self, slot: u32) -> Option<State> {
        let key = self.buckets.get(to_index(slot))?.key;
        self.release(&key);
        let Shard { slots, hasher, buckets, order, held } = self;
        let bucket = buckets.swap_remove(to_index(slot))?;
        if let Ok(entry) = slots.find_entry(hasher.hash_one(bucket.key), |kept| *kept == slot) {
            entry.remove();
        }
        // The last bucket has moved to the free slot. `leave` may move it within its queue, so the queue must know the
        // new slot first.
        if let Some(last) = buckets.get(to_index(slot)) {
            let former = to_number(buckets.len());
            if let Some(kept) = slots.find_mut(hasher.hash_one(last.key), |kept| *kept == former) {
                *kept = slot;
            }
            match held.full_at(&last.key) {
                Some(_) => held.ends.set_slot(last.position(), slot),
                None => order.set_slot(last.queue, last.position(), slot),
            }
        }
        order.leave(bucket.queue, bucket.position(), mover(buckets));
        Some(bucket.state)
    }
}

fn hash_of(slot: u32, buckets: &Buckets, hasher: &RandomState) -> u64 {
    buckets.get(to_index(slot)).map_or(0, |bucket| hasher.hash_one(bucket.key))
}

/// Returns a function that stores the new position of a bucket in its queue.
fn mover(buckets: &mut Buckets) -> impl FnMut(u32, usize) {
    |slot, position| {
        if let Some(bucket) = buckets.get_mut(to_index(slot)) {
            bucket.position = to_number(position);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::full_queue::PackedItem;
    use super::super::queue_id::SpentClass;
    use super::*;
    use ledger::bucket_key::LimitTag;
    use smallvec::smallvec;

    fn key(number: u8) -> BucketKey {
        BucketKey([number; 16])
    }

    fn put(shard: &mut Shard, number: u8, class: SpentClass, full_at: u64) -> Put {
        put_under(shard, LimitTag(0), number, class, full_at)
    }

    fn put_under(shard: &mut Shard, limit: LimitTag, number: u8, class: SpentClass, full_at: u64) -> Put {
        shard.put(key(number), QueueId::new(limit, class), Timestamp(full_at), smallvec![u64::from(number)])
    }

    #[test]
    fn full_buckets_are_evicted_first_then_the_least_spent_and_of_those_the_soonest_full() {
        let mut shard = Shard::default();
        put(&mut shard, 1, SpentClass::Drained, 50);
        put(&mut shard, 2, SpentClass::Drained, 1000);
        put(&mut shard, 3, SpentClass::Little, 9000);
        put(&mut shard, 4, SpentClass::Some, 150);
        put(&mut shard, 5, SpentClass::Little, 8000);
        let mut evicted = || {
            let evicted = shard.evict(Timestamp(100));
            (evicted, (1..=5).filter(|number| shard.get(&key(*number)).is_some()).collect::<Vec<u8>>())
        };
        assert_eq!(evicted(), (Some(Eviction::Full), vec![2, 3, 4, 5]));
        assert_eq!(evicted(), (Some(Eviction::Spent), vec![2, 3, 4]));
        assert_eq!(evicted(), (Some(Eviction::Spent), vec![2, 4]));
        assert_eq!(evicted(), (Some(Eviction::Spent), vec![2]));
        assert_eq!(evicted(), (Some(Eviction::Spent), vec![]));
        assert_eq!(evicted(), (None, vec![]));
    }

    #[test]
    fn a_bucket_with_holds_is_not_evicted_until_they_end() {
        let mut shard = Shard::default();
        for number in 0..20 {
            put(&mut shard, number, SpentClass::Little, 1000 + u64::from(number));
        }
        for number in [3, 4, 5] {
            shard.hold(&key(number), Timestamp(500));
        }
        // A longer hold, a later charge, a shorter hold, and one that has settled.
        shard.hold(&key(4), Timestamp(700));
        put(&mut shard, 3, SpentClass::Drained, 600);
        shard.hold(&key(3), Timestamp(400));
        shard.release(&key(5));
        let mut evict_all = |now| {
            while shard.evict(Timestamp(now)).is_some() {}
            (0..20).filter(|number| shard.get(&key(*number)).is_some()).collect::<Vec<u8>>()
        };
        assert_eq!(evict_all(100), [3, 4]);
        assert_eq!(evict_all(499), [3, 4]);
        assert_eq!(evict_all(500), [4]);
        assert_eq!(shard.kept(&key(4)).map(|(_, full_at, _)| full_at), Some(Timestamp(1004)));
        put(&mut shard, 1, SpentClass::Little, 900);
        assert_eq!((shard.free_full(Timestamp(900), 9), shard.remove(&key(4)).is_some()), (1, true));
        assert_eq!((shard.keys().count(), shard.held.full_at.len(), shard.held.ends.len()), (0, 0, 0));
    }

    #[test]
    fn a_bucket_that_changes_its_class_is_kept_once() {
        let mut shard = Shard::default();
        assert_eq!(put(&mut shard, 1, SpentClass::Little, 10), Put::Added);
        assert_eq!(put(&mut shard, 1, SpentClass::Drained, 20), Put::Replaced);
        assert_eq!(put(&mut shard, 1, SpentClass::Drained, 30), Put::Replaced);
        assert_eq!(shard.keys().count(), 1);
        assert_eq!(shard.free_full(Timestamp(29), 10), 0);
        assert_eq!(shard.free_full(Timestamp(30), 10), 1);
        assert_eq!(shard.get(&key(1)), None);
    }
    #[test]
    fn a_flood_under_one_limit_evicts_none_of_another_and_full_buckets_go_first_whatever_their_limit() {
        let (fast, slow) = (LimitTag(1), LimitTag(2));
        let mut shard = Shard::default();
        put_under(&mut shard, fast, 1, SpentClass::Little, 200);
        put_under(&mut shard, fast, 2, SpentClass::Drained, 300);
        put_under(&mut shard, fast, 3, SpentClass::Drained, 50);
        for number in 10..20 {
            put_under(&mut shard, slow, number, SpentClass::Drained, 9000);
        }
        assert_eq!(shard.evict(Timestamp(100)), Some(Eviction::Full));
        assert_eq!(shard.get(&key(3)), None);
        for number in 20..250 {
            put_under(&mut shard, slow, number, SpentClass::Drained, 9000);
            assert_eq!(shard.evict(Timestamp(100)), Some(Eviction::Spent));
        }
        assert!(shard.get(&key(1)).is_some() && shard.get(&key(2)).is_some());
        assert_eq!(shard.keys().count(), 12);
    }

    #[test]
    fn a_bucket_takes_68_bytes_and_6_to_12_of_the_table() {
        assert_eq!(size_of::<Bucket>() + size_of::<PackedItem>(), 68);
    }

    #[test]
    fn a_limit_without_a_bucket_holds_no_memory() {
        let mut shard = Shard::default();
        for number in 0..100 {
            put_under(&mut shard, LimitTag(number.into()), number, SpentClass::Some, 10);
        }
        // A bucket may also change its limit.
        assert_eq!(put_under(&mut shard, LimitTag(0), 1, SpentClass::Some, 20), Put::Replaced);
        assert_eq!(shard.order.limits(), 99);
        assert_eq!(shard.remove(&key(1)), Some(smallvec![1]));
        assert_eq!(shard.free_full(Timestamp(10), 1000), 99);
        assert_eq!(shard.order.limits(), 0);
    }
}
