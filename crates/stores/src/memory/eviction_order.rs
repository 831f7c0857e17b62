//! Determines which bucket of a shard is evicted first.
//!
//! Full buckets are evicted first. After them, a bucket of the lowest [`SpentClass`] is evicted, so drained buckets are
//! evicted last. The limit with the most buckets of that class loses its bucket that will be full first. Limits are
//! sorted by their numbers of buckets. A limit is moved in this order only when its number has changed by more than an
//! eighth. So almost no charge moves a limit.
//!
//! A limit with few buckets is spared, so a flood of new keys under another limit does not evict them. Few means at
//! most a sixteenth of the average number per limit, or two if that is more.
//!
//! No operation visits every limit, except when the bound for few buckets has to be doubled or halved.

use std::collections::{BTreeSet, HashMap};

use foldhash::quality::RandomState;

use super::full_queue::{FullQueue, Item};
use super::queue_id::{CLASSES, QueueId, SpentClass};
use base::time::Timestamp;
use ledger::bucket_key::LimitTag;

/// A limit with at most this number of buckets is spared if the average limit has more.
const FEW: usize = 2;

/// A limit is also spared if it has at most the average number of buckets divided by this number.
const SPARED: usize = 16;

#[derive(Debug, Default)]
pub(crate) struct EvictionOrder {
    /// The limits that have a bucket in this shard.
    limits: HashMap<LimitTag, LimitQueues, RandomState>,
    /// The limits, ordered by the first time at which one of their buckets can be full.
    soonest: BTreeSet<(Timestamp, LimitTag)>,
    /// For each class, the limits that can lose a bucket of the class, ordered by [`LimitQueues::noted`].
    largest: [BTreeSet<(usize, LimitTag)>; CLASSES],
    /// The largest number of buckets with which a limit is spared.
    spared: usize,
}

/// The buckets of one limit.
#[derive(Debug)]
struct LimitQueues {
    none_full_before: Timestamp,
    classes: [FullQueue; CLASSES],
    /// For each class, about how many of its buckets the limit can lose. The limit is ordered by this number.
    noted: [usize; CLASSES],
}

impl Default for LimitQueues {
    fn default() -> LimitQueues {
        LimitQueues { none_full_before: Timestamp(u64::MAX), classes: Default::default(), noted: [0; CLASSES] }
    }
}

impl LimitQueues {
    fn class(&self, class: SpentClass) -> &FullQueue {
        let [little, some, much, drained] = &self.classes;
        match class {
            SpentClass::Little => little,
            SpentClass::Some => some,
            SpentClass::Much => much,
            SpentClass::Drained => drained,
        }
    }

    fn class_mut(&mut self, class: SpentClass) -> &mut FullQueue {
        let [little, some, much, drained] = &mut self.classes;
        match class {
            SpentClass::Little => little,
            SpentClass::Some => some,
            SpentClass::Much => much,
            SpentClass::Drained => drained,
        }
    }

    fn buckets(&self) -> usize {
        self.classes.iter().map(FullQueue::len).sum()
    }

    /// Returns how many buckets of each class the limit can lose: 0 if it is spared.
    fn losable(&self, spared: usize) -> [usize; CLASSES] {
        let counts = self.classes.each_ref().map(FullQueue::len);
        if counts.iter().sum::<usize>() > spared { counts } else { [0; CLASSES] }
    }

    fn soonest_full(&self) -> Option<Item> {
        self.classes.iter().filter_map(FullQueue::first).min_by_key(|item| item.full_at)
    }
}

impl EvictionOrder {
    /// Returns the number of limits that have a bucket.
    #[cfg(test)]
    pub(super) fn limits(&self) -> usize {
        self.limits.len()
    }

    pub(super) fn get(&self, queue: QueueId, position: usize) -> Option<Item> {
        self.limits.get(&queue.limit())?.class(queue.class()).get(position)
    }

    /// Adds a bucket to a queue. Calls `moved` with the slot and the new position of each bucket that has moved in its
    /// queue.
    pub(super) fn join(&mut self, queue: QueueId, item: Item, moved: impl FnMut(u32, usize)) {
        self.change(queue.limit(), |limit| {
            limit.none_full_before = limit.none_full_before.min(item.full_at);
            limit.class_mut(queue.class()).push(item, moved);
        });
    }

    /// Changes the moment at which a bucket is full. The bucket is at `position` in the queue.
    pub(super) fn update(
        &mut self,
        queue: QueueId,
        position: usize,
        full_at: Timestamp,
        moved: impl FnMut(u32, usize),
    ) {
        let Some(limit) = self.limits.get_mut(&queue.limit()) else { return };
        limit.class_mut(queue.class()).update(position, full_at, moved);
        if full_at < limit.none_full_before {
            self.change(queue.limit(), |limit| limit.none_full_before = full_at);
        }
    }

    pub(super) fn leave(&mut self, queue: QueueId, position: usize, moved: impl FnMut(u32, usize)) {
        if self.limits.contains_key(&queue.limit()) {
            self.change(queue.limit(), |limit| limit.class_mut(queue.class()).remove(position, moved));
        }
    }

    /// Notes that the bucket at this position of the queue is now in another slot of the shard.
    pub(crate) fn set_slot(&mut self, queue: QueueId, position: usize, slot: u32) {
        if let Some(limit) = self.limits.get_mut(&queue.limit()) {
            limit.class_mut(queue.class()).set_slot(position, slot);
        }
    }

    /// Returns the slot (the index in the shard) of a bucket that is full at `now`. `None` if no bucket is full.
    pub(super) fn full(&mut self, now: Timestamp) -> Option<u32> {
        while let Some((_, tag)) = self.soonest.first().copied().filter(|(before, _)| *before <= now) {
            let soonest = self.limits.get(&tag).and_then(LimitQueues::soonest_full)?;
            if soonest.full_at <= now {
                return Some(soonest.slot);
            }
            self.change(tag, |limit| limit.none_full_before = soonest.full_at);
        }
        None
    }

    /// Returns the slot (the index in the shard) of the bucket to evict when no bucket is full.
    pub(super) fn least(&mut self, buckets: usize) -> Option<u32> {
        self.adapt_spared(buckets);
        let classes = SpentClass::ALL.into_iter().zip(&self.largest);
        let (class, tag) = classes.filter_map(|(class, limits)| Some((class, limits.last()?.1))).next()?;
        self.limits.get(&tag)?.class(class).first().map(|item| item.slot)
    }

    /// Changes a limit, and updates its place in the order. Adds a new limit, and removes a limit without buckets.
    fn change(&mut self, tag: LimitTag, change: impl FnOnce(&mut LimitQueues)) {
        let limit = self.limits.entry(tag).or_default();
        let full_before = limit.none_full_before;
        change(limit);
        let full_after = limit.none_full_before;
        let losable = limit.losable(self.spared);
        for ((limits, noted), buckets) in self.largest.iter_mut().zip(&mut limit.noted).zip(losable) {
            if !is_near(*noted, buckets) {
                limits.remove(&(*noted, tag));
                if buckets > 0 {
                    limits.insert((buckets, tag));
                }
                *noted = buckets;
            }
        }
        if limit.buckets() == 0 {
            self.soonest.remove(&(full_before, tag));
            self.limits.remove(&tag);
        } else if full_before != full_after {
            self.soonest.remove(&(full_before, tag));
            self.soonest.insert((full_after, tag));
        }
    }

    /// Adapts `spared` to the average number of buckets per limit, if the average has changed much.
    fn adapt_spared(&mut self, buckets: usize) {
        let average = buckets / self.limits.len().max(1);
        let wanted = if average > FEW { (average / SPARED).max(FEW) } else { 0 };
        // While `spared` is below the average, at least one limit is not spared.
        let fits = self.spared < average.max(1) && self.spared <= 2 * wanted && wanted <= 2 * self.spared;
        if fits || (self.spared == 0 && average <= 2 * FEW) {
            return;
        }
        self.spared = wanted;
        self.largest = Default::default();
        for (tag, limit) in &mut self.limits {
            limit.noted = limit.losable(wanted);
            for (limits, buckets) in self.largest.iter_mut().zip(limit.noted) {
                if buckets > 0 {
                    limits.insert((buckets, *tag));
                }
            }
        }
    }
}

/// Whether a limit can keep its place in the order, because its number of buckets has changed little.
fn is_near(noted: usize, buckets: usize) -> bool {
    (noted == 0) == (buckets == 0) && noted.abs_diff(buckets) <= noted / 8
}

#[cfg(test)]
mod tests {
    use super::super::shard::{Eviction, Put, Shard};
    use super::*;
    use ledger::bucket_key::BucketKey;
    use proptest::prelude::*;
    use smallvec::smallvec;
    use std::collections::BTreeMap;

    /// The expected buckets of a shard, each with its limit, its class, and the moment at which it is full.
    type ExpectedBuckets = BTreeMap<u16, (u32, SpentClass, u64)>;

    fn key(number: u16) -> BucketKey {
        let mut bytes = [0; 16];
        bytes[..2].copy_from_slice(&number.to_le_bytes());
        BucketKey(bytes)
    }

    /// Whether this bucket may be evicted next, by the rules at the top of this file. Limits are ordered by numbers
    /// that may be wrong by an eighth, so 7/9 of the largest number is enough.
    fn may_go(kept: &ExpectedBuckets, spared: usize, number: u16) -> bool {
        let in_limit = |limit: u32| kept.values().filter(|(of, ..)| *of == limit).count();
        let losable = || kept.values().filter(|(limit, ..)| in_limit(*limit) > spared);
        let lowest = losable().map(|(_, class, _)| *class).min();
        let of_lowest = |limit: u32| losable().filter(|(of, class, _)| (*of, Some(*class)) == (limit, lowest)).count();
        let most = losable().map(|(limit, ..)| of_lowest(*limit)).max();
        let (limit, class, full_at) = kept[&number];
        let soonest =
            losable().filter(|(of, of_class, _)| (*of, *of_class) == (limit, class)).map(|(_, _, at)| *at).min();
        let has_most = most.is_some_and(|most| 9 * of_lowest(limit) >= 7 * most);
        Some(class) == lowest && has_most && Some(full_at) == soonest
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Adds, changes and evicts random buckets while time passes.
        #[test]
        fn the_next_to_go_is_full_or_of_the_lowest_class_of_the_limits_that_are_not_spared(
            steps in prop::collection::vec((0u16..120, 0u32..12, 0usize..CLASSES, 0u64..90, prop::bool::weighted(0.3)), 1..400)
        ) {
            let (mut shard, mut expected, mut now) = (Shard::default(), ExpectedBuckets::new(), 0);
            for (number, limit, class, later, evicts) in steps {
                now += later / 30;
                let (limit, class, full_at) = (limit * limit / 24, SpentClass::ALL[class], now + later);
                let queue = QueueId::new(LimitTag(limit), class);
                let put = shard.put(key(number), queue, Timestamp(full_at), smallvec![]);
                let is_new = expected.insert(number, (limit, class, full_at)).is_none();
                prop_assert_eq!(put, if is_new { Put::Added } else { Put::Replaced });
                if evicts {
                    let evicted = shard.evict(Timestamp(now));
                    let gone: Vec<u16> = expected.keys().copied().filter(|number| shard.get(&key(*number)).is_none()).collect();
                    let [gone] = gone[..] else { panic!("{gone:?}") };
                    let is_full = |number: &u16| expected[number].2 <= now;
                    if evicted == Some(Eviction::Full) {
                        prop_assert!(is_full(&gone));
                    } else {
                        prop_assert!(!expected.keys().any(is_full));
                        prop_assert!(may_go(&expected, shard.order().spared, gone), "{gone} of {expected:?}");
                    }
                    expected.remove(&gone);
                }
                prop_assert_eq!(shard.keys().count(), expected.len());
            }
        }
    }
}
