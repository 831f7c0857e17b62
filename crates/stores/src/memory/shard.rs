//! Keeps the buckets behind one lock, and evicts them in the order of [`EvictionOrder`].

use foldhash::quality::RandomState;
use indexmap::IndexMap;

use super::eviction_order::EvictionOrder;
use super::full_queue::Item;
use super::queue_id::QueueId;
use base::time::Timestamp;
use ledger::algorithm::State;
use ledger::bucket_key::BucketKey;

/// Buckets by their key, and the order in which they are evicted.
#[derive(Debug, Default)]
pub(crate) struct Shard {
    buckets: IndexMap<BucketKey, Bucket, RandomState>,
    order: EvictionOrder,
}

/// A bucket; the moment at which it is full is in its queue.
#[derive(Debug)]
struct Bucket {
    state: State,
    queue: QueueId,
    /// Its position in that queue; 32 bits suffice, since a shard has at most a sixteenth of 10^9 buckets.
    position: u32,
}

impl Bucket {
    fn position(&self) -> usize {
        usize::try_from(self.position).unwrap_or(usize::MAX)
    }
}

/// A bucket that was evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Eviction {
    /// It was full again: nothing is lost.
    Full,
    /// Something was still spent in it.
    Spent,
}

/// Whether a bucket was already kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Put {
    Replaced,
    Added,
}

impl Shard {
    pub fn get(&self, key: &BucketKey) -> Option<&State> {
        self.buckets.get(key).map(|bucket| &bucket.state)
    }

    pub fn get_mut(&mut self, key: &BucketKey) -> Option<&mut State> {
        self.buckets.get_mut(key).map(|bucket| &mut bucket.state)
    }

    /// The whole entry of a bucket: its queue, the moment at which it is full, and its state.
    pub fn kept(&self, key: &BucketKey) -> Option<(QueueId, Timestamp, &State)> {
        let bucket = self.buckets.get(key)?;
        let item = self.order.get(bucket.queue, bucket.position())?;
        Some((bucket.queue, item.full_at, &bucket.state))
    }

    pub fn put(&mut self, key: BucketKey, queue: QueueId, full_at: Timestamp, state: State) -> Put {
        if let Some((slot, _, bucket)) = self.buckets.get_full_mut(&key) {
            bucket.state = state;
            let (before, position) = (bucket.queue, bucket.position());
            if before == queue {
                self.order.update(queue, position, full_at, mover(&mut self.buckets));
            } else {
                bucket.queue = queue;
                self.order.leave(before, position, mover(&mut self.buckets));
                self.order.join(queue, Item { full_at, slot }, mover(&mut self.buckets));
            }
            return Put::Replaced;
        }
        // By an eighth, not by doubling: what is reserved and not used is memory that an operator pays for.
        if self.buckets.len() == self.buckets.capacity() {
            self.buckets.reserve_exact((self.buckets.len() / 8).max(16));
        }
        let (slot, _) = self.buckets.insert_full(key, Bucket { state, queue, position: 0 });
        self.order.join(queue, Item { full_at, slot }, mover(&mut self.buckets));
        Put::Added
    }

    pub fn remove(&mut self, key: &BucketKey) -> Option<State> {
        let slot = self.buckets.get_index_of(key)?;
        self.remove_slot(slot)
    }

    pub fn keys(&self) -> impl Iterator<Item = &BucketKey> {
        self.buckets.keys()
    }

    /// Evicts the bucket whose loss matters least at `now`; `None` when there is no bucket.
    pub fn evict(&mut self, now: Timestamp) -> Option<Eviction> {
        if let Some(slot) = self.order.full(now) {
            self.remove_slot(slot);
            return Some(Eviction::Full);
        }
        let slot = self.order.least(self.buckets.len())?;
        self.remove_slot(slot);
        Some(Eviction::Spent)
    }

    /// Frees up to `most` buckets that are full at `now`, and returns how many were freed.
    pub(crate) fn free_full(&mut self, now: Timestamp, most: usize) -> usize {
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
    pub fn order(&self) -> &EvictionOrder {
        &self.order
    }

    /// Returns memory that a crowd of buckets held and few need now.
    pub(crate) fn shrink(&mut self) {
        if self.buckets.capacity() > 1024 && self.buckets.len() < self.buckets.capacity() / 4 {
            self.buckets.shrink_to_fit();
        }
        self.order.shrink();
    }

    fn remove_slot(&mut self, slot: usize) -> Option<State> {
        let (_, bucket) = self.buckets.swap_remove_index(slot)?;
        // The last bucket is in its slot now; its queue learns that first, since leaving may move it.
        if let Some((_, last)) = self.buckets.get_index(slot) {
            self.order.set_slot(last.queue, last.position(), slot);
        }
        self.order.leave(bucket.queue, bucket.position(), mover(&mut self.buckets));
        Some(bucket.state)
    }
}

/// A function that notes the position of a bucket that has moved within its queue.
fn mover(buckets: &mut IndexMap<BucketKey, Bucket, RandomState>) -> impl FnMut(usize, usize) {
    |slot, position| {
        if let Some((_, bucket)) = buckets.get_index_mut(slot) {
            bucket.position = u32::try_from(position).unwrap_or(u32::MAX);
        }
    }
}

#[cfg(test)]
mod tests {
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
    fn a_bucket_takes_eighty_bytes_in_its_map_and_queue() {
        let hash = size_of::<u64>();
        assert_eq!(hash + size_of::<BucketKey>() + size_of::<Bucket>() + size_of::<Item>(), 80);
    }

    #[test]
    fn a_limit_without_a_bucket_holds_no_memory() {
        let mut shard = Shard::default();
        for number in 0..100 {
            put_under(&mut shard, LimitTag(number.into()), number, SpentClass::Some, 10);
        }
        // A bucket may change its limit too: two limits of which one took the other's name, say.
        assert_eq!(put_under(&mut shard, LimitTag(0), 1, SpentClass::Some, 20), Put::Replaced);
        assert_eq!(shard.order.limits(), 99);
        assert_eq!(shard.remove(&key(1)), Some(smallvec![1]));
        assert_eq!(shard.free_full(Timestamp(10), 1000), 99);
        assert_eq!(shard.order.limits(), 0);
    }
}
