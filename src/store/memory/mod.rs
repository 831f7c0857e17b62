//! Keeps buckets in this process: the default store.
//!
//! Buckets are spread over shards, each with a lock of its own. A shard is a priority queue by the moment at which a
//! bucket is full again: the front of it is what can be freed, and at the bound it is what loses least by being
//! forgotten. Drained buckets go last.
//!
//! Invariants: a plan holds the locks of all its shards at once, taken in their order; below `max_buckets` nothing that
//! is still spent is forgotten.

use std::cmp::Reverse;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};
use priority_queue::PriorityQueue;
use smallvec::SmallVec;

use super::{Source, Taken};
use crate::base::time::{Clock, Timestamp};
use crate::limit::algorithm::{Algorithm, Charged, Entry, State};
use crate::limit::charge::{Charge, Plan, Settlement, settle};
use crate::limit::cost::Cost;
use crate::limit::key::BucketKey;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How many buckets are kept at most.
    pub max_buckets: usize,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { max_buckets: 1_000_000 }
    }
}

#[derive(Debug)]
pub struct Memory {
    clock: Clock,
    max_buckets: usize,
    buckets: AtomicUsize,
    /// Keyed at random: no client can choose values whose buckets crowd one shard.
    hasher: RandomState,
    shards: Box<[Mutex<Shard>]>,
}

/// Buckets by their key, the soonest full in front.
type Shard = PriorityQueue<BucketKey, Kept>;

#[derive(Debug)]
struct Kept {
    full_at: Reverse<Timestamp>,
    state: State,
}

// Only the moment counts for the order.
impl PartialEq for Kept {
    fn eq(&self, other: &Kept) -> bool {
        self.full_at == other.full_at
    }
}

impl Eq for Kept {}

impl PartialOrd for Kept {
    fn partial_cmp(&self, other: &Kept) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Kept {
    fn cmp(&self, other: &Kept) -> std::cmp::Ordering {
        self.full_at.cmp(&other.full_at)
    }
}

/// The locks that one plan holds, by the number of their shard.
type Held<'m> = SmallVec<[(usize, MutexGuard<'m, Shard>); 2]>;

impl Memory {
    pub fn new(settings: &Settings, clock: Clock) -> Memory {
        // A shard gets so many buckets that one without any is out of the question at the bound.
        let shards = (settings.max_buckets / 1024).clamp(1, 16);
        Memory {
            clock,
            max_buckets: settings.max_buckets,
            buckets: AtomicUsize::new(0),
            hasher: RandomState::new(),
            shards: (0..shards).map(|_| Mutex::default()).collect(),
        }
    }

    /// A plan is decided at one instant, while the locks of all its shards are held.
    pub fn take(&self, plan: &Plan) -> Taken {
        let mut held = self.lock(plan);
        // Read under the locks: the times of one bucket's charges never step back.
        let now = self.clock.now();
        let (settlement, evicted) = self.settle(plan, &mut held, now);
        Taken { now, settlement, evicted, source: Source::Store }
    }

    /// What a plan would come to, without taking it.
    pub fn look(&self, plan: &Plan) -> Settlement {
        let held = self.lock(plan);
        let now = self.clock.now();
        let (_, states) = self.states(plan, &held);
        settle(plan, &states, now).0
    }

    /// What is kept of these buckets, one after the other.
    pub fn states_of(&self, keys: &[BucketKey]) -> (Timestamp, Vec<Option<State>>) {
        let state = |key| self.shard(self.shard_of(key)).lock().get_priority(key).map(|kept| kept.state.clone());
        let states = keys.iter().map(state).collect();
        // Read behind them: no state lies ahead of it.
        (self.clock.now(), states)
    }

    /// The same, and from then on nothing is kept of them: they are full.
    pub fn forget(&self, keys: &[BucketKey]) -> (Timestamp, Vec<Option<State>>) {
        let forget = |key| {
            let (_, kept) = self.shard(self.shard_of(key)).lock().remove(key)?;
            self.buckets.fetch_sub(1, Ordering::Relaxed);
            Some(kept.state)
        };
        let states = keys.iter().map(forget).collect();
        (self.clock.now(), states)
    }

    /// The keys of all buckets, shard by shard: no lock is held while they are looked at.
    pub fn keys(&self) -> impl Iterator<Item = Vec<BucketKey>> {
        self.shards.iter().map(|shard| shard.lock().iter().map(|(key, _)| *key).collect())
    }

    /// Makes a bucket hold no more than `most`.
    pub fn lower(&self, key: BucketKey, algorithm: &Algorithm, most: Cost) {
        let shard = &mut self.shard(self.shard_of(&key)).lock();
        let now = self.clock.now();
        let state = shard.get_priority(&key).map(|kept| kept.state.clone());
        let step = |cost| algorithm.step(state.as_deref(), cost, now);
        let held = step(Cost::from_thousandths(0)).untouched.remaining;
        let excess = held.thousandths().saturating_sub(most.thousandths());
        if let (1.., Charged::Fits { entry, .. }) = (excess, step(Cost::from_thousandths(excess)).charge) {
            self.keep(shard, key, entry, now);
        }
    }

    /// Forgets the buckets that are full again, and returns the memory that a crowd of them held.
    pub fn sweep(&self) {
        let now = self.clock.now();
        for shard in &self.shards {
            // In small bites, so that no request waits long for the lock.
            while self.free_some(&mut shard.lock(), now) {}
        }
    }

    pub fn buckets(&self) -> usize {
        self.buckets.load(Ordering::Relaxed)
    }

    fn shard_of(&self, key: &BucketKey) -> usize {
        let hash = self.hasher.hash_one(key);
        // The remainder is below the number of shards, so it fits.
        usize::try_from(hash % self.shards.len() as u64).unwrap_or(0)
    }

    #[allow(clippy::indexing_slicing, reason = "all numbers are of `shard_of`")]
    fn shard(&self, number: usize) -> &Mutex<Shard> {
        &self.shards[number]
    }

    fn lock(&self, plan: &Plan) -> Held<'_> {
        let mut numbers: SmallVec<[usize; 4]> = plan.charges().map(|charge| self.shard_of(&charge.key)).collect();
        // Sorted, so that two requests which share two shards lock them in the same order.
        numbers.sort_unstable();
        numbers.dedup();
        numbers.into_iter().map(|number| (number, self.shard(number).lock())).collect()
    }

    #[allow(clippy::indexing_slicing, reason = "places are of `place`, among what is held")]
    fn settle(&self, plan: &Plan, held: &mut Held<'_>, now: Timestamp) -> (Settlement, u64) {
        let (places, states) = self.states(plan, held);
        let (settlement, entries) = settle(plan, &states, now);
        let mut evicted = 0;
        for ((charge, place), entry) in plan.charges().zip(&places).zip(entries) {
            if let Some(entry) = entry {
                evicted += self.keep(&mut held[*place].1, charge.key, entry, now);
            }
        }
        (settlement, evicted)
    }

    /// Where each charge's bucket is among the held shards, and what is remembered of it.
    #[allow(
        clippy::indexing_slicing,
        reason = "places are of `place`; a bucket that is not looked up would be a full one"
    )]
    fn states(&self, plan: &Plan, held: &Held<'_>) -> (SmallVec<[usize; 2]>, SmallVec<[Option<State>; 2]>) {
        let places: SmallVec<[usize; 2]> = plan.charges().map(|charge| self.place(held, &charge.key)).collect();
        let state = |(charge, place): (&Charge, &usize)| {
            held[*place].1.get_priority(&charge.key).map(|kept| kept.state.clone())
        };
        let states = plan.charges().zip(&places).map(state).collect();
        (places, states)
    }

    /// Which of the held locks guards this bucket.
    fn place(&self, held: &Held<'_>, key: &BucketKey) -> usize {
        match held.len() {
            1 => 0,
            _ => held.binary_search_by_key(&self.shard_of(key), |(number, _)| *number).unwrap_or(0),
        }
    }

    /// Returns how many buckets had to go although something was still spent.
    fn keep(&self, shard: &mut Shard, key: BucketKey, entry: Entry, now: Timestamp) -> u64 {
        // By an eighth, not by doubling: what is reserved and not used is memory that an operator pays for.
        if shard.len() == shard.capacity() {
            shard.reserve_exact((shard.len() / 8).max(16));
        }
        let kept = Kept { full_at: Reverse(entry.full_at), state: entry.state };
        if shard.push(key, kept).is_some() || self.buckets.fetch_add(1, Ordering::Relaxed) < self.max_buckets {
            return 0;
        }
        self.buckets.fetch_sub(1, Ordering::Relaxed);
        shard.pop().map_or(0, |(_, gone)| u64::from(gone.full_at.0 > now))
    }

    /// Frees up to a bite of buckets; says whether there may be more.
    fn free_some(&self, shard: &mut Shard, now: Timestamp) -> bool {
        const BITE: usize = 256;
        let expired = |shard: &Shard| shard.peek().is_some_and(|(_, kept)| kept.full_at.0 <= now);
        let mut freed = 0;
        while freed < BITE && expired(shard) {
            shard.pop();
            freed += 1;
        }
        self.buckets.fetch_sub(freed, Ordering::Relaxed);
        if freed < BITE && shard.capacity() > 1024 && shard.len() < shard.capacity() / 4 {
            shard.shrink_to_fit();
        }
        freed == BITE
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::time::Micros;
    use crate::limit::algorithm::Algorithm;
    use crate::limit::algorithm::token_bucket::{Rate, TokenBucket};
    use crate::limit::charge::LimitId;
    use crate::limit::cost::Cost;
    use crate::limit::outcome::Verdict;
    use smallvec::smallvec;

    const SECOND: u64 = 1_000_000;

    /// `burst` tokens at one per second.
    fn charge(bucket: u8, burst: u64, cost: u64) -> Charge {
        let rate = Rate { amount: Cost::ONE, period: Micros(SECOND) };
        Charge {
            key: BucketKey([bucket; 16]),
            algorithm: Algorithm::TokenBucket(TokenBucket::new(rate, burst).unwrap()),
            cost: Cost::from_tokens(cost),
            limit: LimitId(0),
            variant: 0,
        }
    }

    fn plan(charges: impl IntoIterator<Item = Charge>) -> Plan {
        Plan { enforced: charges.into_iter().collect(), shadow: smallvec![] }
    }

    fn memory(max_buckets: usize) -> (Memory, Clock) {
        let clock = Clock::manual(Timestamp(1_000 * SECOND));
        (Memory::new(&Settings { max_buckets }, clock.clone()), clock)
    }

    fn verdict(memory: &Memory, plan: Plan) -> Verdict {
        memory.take(&plan).settlement.verdict
    }

    #[test]
    fn a_refused_request_spends_nothing_in_any_bucket() {
        let (memory, _) = memory(4096);
        assert_eq!(verdict(&memory, plan([charge(1, 5, 1), charge(2, 1, 1)])), Verdict::Allow);
        for _ in 0..10 {
            assert_eq!(verdict(&memory, plan([charge(1, 5, 1), charge(2, 1, 1)])), Verdict::Deny);
        }
        let left = memory.take(&plan([charge(1, 5, 1)])).settlement.enforced[0].remaining;
        assert_eq!(left, Cost::from_tokens(3));
    }

    #[test]
    fn a_shadow_is_charged_by_itself_and_only_when_the_request_passed() {
        let (memory, _) = memory(4096);
        let both =
            |enforced: u64| Plan { enforced: smallvec![charge(1, 3, enforced)], shadow: smallvec![charge(2, 1, 1)] };
        let first = memory.take(&both(1)).settlement;
        let second = memory.take(&both(1)).settlement;
        let refused = memory.take(&both(2)).settlement;
        assert_eq!((first.verdict, first.shadow[0].verdict), (Verdict::Allow, Verdict::Allow));
        assert_eq!((second.verdict, second.shadow[0].verdict), (Verdict::Allow, Verdict::Deny));
        assert_eq!((refused.verdict, refused.shadow.len()), (Verdict::Deny, 0));
    }

    #[test]
    fn a_bucket_that_is_full_again_is_freed() {
        let (memory, clock) = memory(4096);
        for bucket in 0..100 {
            verdict(&memory, plan([charge(bucket, 200, u64::from(bucket) + 1)]));
        }
        clock.set(Timestamp(1_050 * SECOND));
        memory.sweep();
        assert_eq!(memory.buckets(), 50);
        clock.set(Timestamp(1_100 * SECOND));
        memory.sweep();
        assert_eq!(memory.buckets(), 0);
    }

    #[test]
    fn at_the_bound_the_soonest_full_goes_and_the_drained_stay() {
        let (memory, _) = memory(10);
        for bucket in 0..10 {
            verdict(&memory, plan([charge(bucket, 100, 100)]));
        }
        let mut evicted = 0;
        for bucket in 100..200 {
            evicted += memory.take(&plan([charge(bucket, 100, 1)])).evicted;
        }
        assert_eq!((memory.buckets(), evicted), (10, 100));
        for bucket in 0..10 {
            assert_eq!(verdict(&memory, plan([charge(bucket, 100, 1)])), Verdict::Deny, "bucket {bucket}");
        }
    }

    #[test]
    fn callers_on_many_threads_never_get_more_than_the_burst_between_them() {
        let (memory, _) = memory(1_000_000);
        // Opposite orders of the same buckets: a deadlock, if locks were taken as they are listed.
        let orders = [[1, 2, 3], [3, 2, 1]];
        let granted = std::thread::scope(|scope| {
            let memory = &memory;
            let caller = |order: [u8; 3]| {
                scope.spawn(move || {
                    let plan = plan(order.map(|bucket| charge(bucket, 1000, 1)));
                    (0..1000).filter(|_| verdict(memory, plan.clone()) == Verdict::Allow).count()
                })
            };
            let callers: Vec<_> = (0..8).map(|caller_number| caller(orders[caller_number % 2])).collect();
            callers.into_iter().map(|caller| caller.join().unwrap()).sum::<usize>()
        });
        assert_eq!(granted, 1000);
    }
}
