//! Keeps the buckets behind one lock, and decides which of them is evicted first.
//!
//! Buckets are classed by how much of their limit was spent as their last charge left it. At the bound, full buckets go
//! first, then those of the lowest class, and within a class the soonest full. A drained bucket therefore goes last,
//! whatever its rate: a flood of new keys under a slow limit does not push out the drained bucket of a fast one, which
//! would switch that limit off.

use std::cmp::{Ordering, Reverse};

use foldhash::quality::RandomState;
use priority_queue::PriorityQueue;

use crate::base::time::Timestamp;
use crate::limit::algorithm::State;
use crate::limit::cost::Cost;
use crate::limit::key::BucketKey;

/// How many classes there are. Each is a queue of its own, so a look-up asks as many maps at most.
const CLASSES: usize = 4;

/// How much of a limit is spent in a bucket. The lowest class is evicted first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SpentClass {
    /// Less than an eighth.
    Little,
    /// Less than half.
    Some,
    /// Half or more.
    Much,
    /// The bucket cannot pay its last cost again.
    Drained,
}

impl SpentClass {
    pub const ALL: [SpentClass; CLASSES] =
        [SpentClass::Little, SpentClass::Some, SpentClass::Much, SpentClass::Drained];

    /// The class of a bucket that holds `remaining` of `ceiling` after it has paid `cost`.
    pub fn of(remaining: Cost, ceiling: Cost, cost: Cost) -> SpentClass {
        let (remaining, ceiling) = (remaining.thousandths(), ceiling.thousandths());
        // Without overflow: a ceiling is below 2^53.
        let spent = ceiling.saturating_sub(remaining);
        if remaining < cost.thousandths() || remaining == 0 {
            SpentClass::Drained
        } else if spent >= ceiling.div_ceil(2) {
            SpentClass::Much
        } else if spent >= ceiling.div_ceil(8) {
            SpentClass::Some
        } else {
            SpentClass::Little
        }
    }
}

/// Buckets by their key; in each class the soonest full in front.
#[derive(Debug)]
pub struct Shard {
    classes: [PriorityQueue<BucketKey, Bucket, RandomState>; CLASSES],
}

/// What is kept of one bucket.
#[derive(Debug)]
struct Bucket {
    full_at: Reverse<Timestamp>,
    state: State,
}

// Only the moment decides the order.
impl PartialEq for Bucket {
    fn eq(&self, other: &Bucket) -> bool {
        self.full_at == other.full_at
    }
}

impl Eq for Bucket {}

impl PartialOrd for Bucket {
    fn partial_cmp(&self, other: &Bucket) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Bucket {
    fn cmp(&self, other: &Bucket) -> Ordering {
        self.full_at.cmp(&other.full_at)
    }
}

/// A bucket that was evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Eviction {
    /// It was full again: nothing is lost.
    Full,
    /// Something was still spent in it.
    Spent,
}

/// Whether a bucket was already kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    Replaced,
    Added,
}

impl Shard {
    pub fn new() -> Shard {
        Shard { classes: std::array::from_fn(|_| PriorityQueue::with_hasher(RandomState::default())) }
    }

    pub fn get(&self, key: &BucketKey) -> Option<&State> {
        self.classes.iter().find_map(|queue| queue.get_priority(key)).map(|bucket| &bucket.state)
    }

    /// All that is kept of a bucket.
    pub fn kept(&self, key: &BucketKey) -> Option<(SpentClass, Timestamp, &State)> {
        let mut classes = SpentClass::ALL.into_iter().zip(&self.classes);
        classes
            .find_map(|(class, queue)| queue.get_priority(key).map(|bucket| (class, bucket.full_at.0, &bucket.state)))
    }

    pub fn put(&mut self, key: BucketKey, class: SpentClass, full_at: Timestamp, state: State) -> Put {
        let bucket = Bucket { full_at: Reverse(full_at), state };
        let mut put = Put::Added;
        for (queue, other) in self.classes.iter_mut().zip(SpentClass::ALL) {
            if other != class && queue.remove(&key).is_some() {
                put = Put::Replaced;
                break;
            }
        }
        let [little, some, much, drained] = &mut self.classes;
        let queue = match class {
            SpentClass::Little => little,
            SpentClass::Some => some,
            SpentClass::Much => much,
            SpentClass::Drained => drained,
        };
        // By an eighth, not by doubling: what is reserved and not used is memory that an operator pays for.
        if queue.len() == queue.capacity() {
            queue.reserve_exact((queue.len() / 8).max(16));
        }
        match queue.push(key, bucket) {
            Some(_) => Put::Replaced,
            None => put,
        }
    }

    pub fn remove(&mut self, key: &BucketKey) -> Option<State> {
        self.classes.iter_mut().find_map(|queue| queue.remove(key)).map(|(_, bucket)| bucket.state)
    }

    pub fn keys(&self) -> impl Iterator<Item = &BucketKey> {
        self.classes.iter().flat_map(|queue| queue.iter().map(|(key, _)| key))
    }

    /// Evicts the bucket whose loss matters least at `now`; `None` when there is no bucket.
    pub fn evict(&mut self, now: Timestamp) -> Option<Eviction> {
        if self.classes.iter_mut().any(|queue| pop_full(queue, now)) {
            return Some(Eviction::Full);
        }
        self.classes.iter_mut().find_map(PriorityQueue::pop).map(|_| Eviction::Spent)
    }

    /// Frees up to `most` buckets that are full at `now`, and returns how many those were.
    pub fn free_full(&mut self, now: Timestamp, most: usize) -> usize {
        let mut freed = 0;
        for queue in &mut self.classes {
            while freed < most && pop_full(queue, now) {
                freed += 1;
            }
        }
        freed
    }

    /// Returns memory that a crowd of buckets held and few need now.
    pub fn shrink(&mut self) {
        for queue in &mut self.classes {
            if queue.capacity() > 1024 && queue.len() < queue.capacity() / 4 {
                queue.shrink_to_fit();
            }
        }
    }
}

impl Default for Shard {
    fn default() -> Shard {
        Shard::new()
    }
}

/// Removes the soonest full bucket if it is full at `now`.
fn pop_full(queue: &mut PriorityQueue<BucketKey, Bucket, RandomState>, now: Timestamp) -> bool {
    let is_full = queue.peek().is_some_and(|(_, bucket)| bucket.full_at.0 <= now);
    is_full && queue.pop().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use smallvec::smallvec;

    fn key(number: u8) -> BucketKey {
        BucketKey([number; 16])
    }

    fn put(shard: &mut Shard, number: u8, class: SpentClass, full_at: u64) -> Put {
        shard.put(key(number), class, Timestamp(full_at), smallvec![u64::from(number)])
    }

    #[test]
    fn a_class_is_the_share_that_is_spent() {
        let class = |remaining, cost| {
            SpentClass::of(Cost::from_tokens(remaining), Cost::from_tokens(100), Cost::from_tokens(cost))
        };
        let cases = [
            (99, 1, SpentClass::Little),
            (88, 1, SpentClass::Little),
            (87, 1, SpentClass::Some),
            (51, 1, SpentClass::Some),
            (50, 1, SpentClass::Much),
            (1, 1, SpentClass::Much),
            (0, 1, SpentClass::Drained),
            (60, 61, SpentClass::Drained),
        ];
        for (remaining, cost, expected) in cases {
            assert_eq!(class(remaining, cost), expected, "{remaining} left after paying {cost}");
        }
    }

    #[test]
    fn full_buckets_are_evicted_first_then_the_least_spent_and_of_those_the_soonest_full() {
        let mut shard = Shard::new();
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
        let mut shard = Shard::new();
        assert_eq!(put(&mut shard, 1, SpentClass::Little, 10), Put::Added);
        assert_eq!(put(&mut shard, 1, SpentClass::Drained, 20), Put::Replaced);
        assert_eq!(put(&mut shard, 1, SpentClass::Drained, 30), Put::Replaced);
        assert_eq!(shard.keys().count(), 1);
        assert_eq!(shard.free_full(Timestamp(29), 10), 0);
        assert_eq!(shard.free_full(Timestamp(30), 10), 1);
        assert_eq!(shard.get(&key(1)), None);
    }
}
