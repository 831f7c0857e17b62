//! Stores buckets in the memory of this process: the default store.
//!
//! Buckets are spread over shards, each with a lock of its own. A [`Shard`] knows which of its buckets can be freed, and
//! at the bound which one is evicted.
//!
//! Invariants: a plan holds the locks of all its shards at once, taken in their order; below `max_buckets` nothing that
//! is not full again is evicted.

pub mod bucket_file;
pub mod bucket_stream;
mod full_queue;
mod inspect;
mod queue_id;
mod shard;

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;

use super::reply::{Source, TakeReply};
use super::store_clock::StoreClock;
use base::time::{Clock, Timestamp};
use bucket_file::BucketFileSettings;
use ledger::algorithm::{ChargeResult, Entry};
use ledger::bucket_key::BucketKey;
use ledger::charge::{Charge, Plan, Settlement, settle};
use ledger::cost::Cost;
use ledger::outcome::Outcome;
use queue_id::{QueueId, SpentClass};
use shard::{Eviction, Put, Shard};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The maximum number of buckets.
    pub max_buckets: usize,
    /// Where buckets are kept over a restart; `None`: nowhere.
    pub file: Option<BucketFileSettings>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { max_buckets: 1_000_000, file: None }
    }
}

#[derive(Debug)]
pub struct Memory {
    clock: Clock,
    /// The clock of the store in whose place this one decides.
    store_clock: Option<Arc<StoreClock>>,
    max_buckets: usize,
    buckets: AtomicUsize,
    /// Randomly keyed, so that no client can choose values whose buckets fill one shard.
    hasher: RandomState,
    shards: Box<[Mutex<Shard>]>,
}

/// The locks that a plan holds, each with the index of its shard.
type LockedShards<'m> = SmallVec<[(usize, MutexGuard<'m, Shard>); 2]>;

/// The states of a plan's buckets, where they are stored.
type States<'s> = SmallVec<[Option<&'s [u64]>; 2]>;

impl Memory {
    pub fn new(settings: &Settings, clock: Clock) -> Memory {
        // At least 1024 buckets per shard, so that none is empty at the bound.
        let shards = (settings.max_buckets / 1024).clamp(1, 16);
        Memory {
            clock,
            store_clock: None,
            max_buckets: settings.max_buckets,
            buckets: AtomicUsize::new(0),
            hasher: RandomState::new(),
            shards: (0..shards).map(|_| Mutex::default()).collect(),
        }
    }

    /// The same, on the clock of a store for which it decides.
    pub fn on(self, store_clock: Arc<StoreClock>) -> Memory {
        Memory { store_clock: Some(store_clock), ..self }
    }

    fn now(&self) -> Timestamp {
        let now = self.clock.now();
        self.store_clock.as_ref().map_or(now, |store| store.at(now))
    }

    /// Decides a plan at one instant, with the locks of all its shards held.
    pub fn take(&self, plan: &Plan) -> TakeReply {
        let mut held = self.lock(plan);
        // Read under the locks: the times of one bucket's charges never step back.
        let now = self.now();
        let (settlement, evicted) = self.settle(plan, &mut held, now);
        TakeReply { now, settlement, evicted, source: Source::Store }
    }

    /// The result that a plan would have, without charging it.
    pub fn peek(&self, plan: &Plan) -> Settlement {
        let held = self.lock(plan);
        let now = self.now();
        let (_, states) = self.states(plan, &held);
        settle(plan, &states, now).0
    }

    /// Makes the bucket of a charge hold no more than `most`, as after `seen`, which another store has shown of it; and
    /// charges nothing. Returns how many buckets were evicted although something was still spent in them.
    pub fn lower(&self, charge: &Charge, most: Cost, seen: &[u64]) -> u64 {
        let Charge { key, algorithm, tag, .. } = charge;
        let shard = &mut self.shard(self.shard_of(key)).lock();
        let now = self.now();
        let kept = shard.get(key);
        let begun = if kept.is_none() { algorithm.begin_with(seen, now) } else { None };
        let state = begun.as_ref().map(|entry| &entry.state).or(kept).map(AsRef::as_ref);
        let held = algorithm.step(state, Cost::default(), now).untouched.remaining;
        let excess = Cost::from_thousandths(held.thousandths().saturating_sub(most.thousandths()));
        let lowered = (excess > Cost::default()).then(|| algorithm.step(state, excess, now).charge);
        let keep = |shard: &mut Shard, entry: Entry, remaining: Cost| {
            let class = SpentClass::of(remaining, algorithm.ceiling(), Cost::ONE);
            self.keep(shard, *key, QueueId::new(*tag, class), entry, now)
        };
        if let Some(ChargeResult::Fits { level, entry, .. }) = lowered {
            return keep(shard, entry, level.remaining);
        }
        begun.map_or(0, |entry| keep(shard, entry, held))
    }

    /// Removes the buckets that are full again, and shrinks the shards that were much larger.
    pub fn sweep(&self) {
        let now = self.now();
        for shard in &self.shards {
            // In small batches, so that no request waits long for the lock.
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

    #[allow(clippy::indexing_slicing, reason = "every number comes from `shard_of`")]
    fn shard(&self, number: usize) -> &Mutex<Shard> {
        &self.shards[number]
    }

    fn lock(&self, plan: &Plan) -> LockedShards<'_> {
        let mut numbers: SmallVec<[usize; 4]> = plan.charges().map(|charge| self.shard_of(&charge.key)).collect();
        // Sorted, so that two requests which share two shards lock them in the same order.
        numbers.sort_unstable();
        numbers.dedup();
        numbers.into_iter().map(|number| (number, self.shard(number).lock())).collect()
    }

    #[allow(clippy::indexing_slicing, reason = "the indices come from `index_of`, within the held locks")]
    fn settle(&self, plan: &Plan, held: &mut LockedShards<'_>, now: Timestamp) -> (Settlement, u64) {
        let (indices, states) = self.states(plan, held);
        let (settlement, entries) = settle(plan, &states, now);
        drop(states);
        let mut evicted = 0;
        // A shadow of a refused request has no outcome, but its bucket may have to be corrected.
        let unasked = std::iter::repeat(&Outcome::UNASKED);
        let outcomes = settlement.enforced.iter().chain(&settlement.shadow).chain(unasked);
        for (((charge, index), entry), outcome) in plan.charges().zip(&indices).zip(entries).zip(outcomes) {
            if let Some(entry) = entry {
                let class = SpentClass::of(outcome.remaining, charge.algorithm.ceiling(), charge.cost);
                let queue = QueueId::new(charge.tag, class);
                evicted += self.keep(&mut held[*index].1, charge.key, queue, entry, now);
            }
        }
        (settlement, evicted)
    }

    /// For each charge, the index of its shard among the held ones, and the state of its bucket.
    #[allow(
        clippy::indexing_slicing,
        reason = "indices are of `index_of`; a bucket that is not looked up would be a full one"
    )]
    fn states<'s>(&self, plan: &Plan, held: &'s LockedShards<'_>) -> (SmallVec<[usize; 2]>, States<'s>) {
        let indices: SmallVec<[usize; 2]> = plan.charges().map(|charge| self.index_of(held, &charge.key)).collect();
        let state = |(charge, index): (&Charge, &usize)| held[*index].1.get(&charge.key).map(AsRef::as_ref);
        let states = plan.charges().zip(&indices).map(state).collect();
        (indices, states)
    }

    /// The index of the lock that guards this bucket.
    fn index_of(&self, held: &LockedShards<'_>, key: &BucketKey) -> usize {
        match held.len() {
            1 => 0,
            _ => held.binary_search_by_key(&self.shard_of(key), |(number, _)| *number).unwrap_or(0),
        }
    }

    /// Returns how many buckets were evicted although something was still spent in them.
    fn keep(&self, shard: &mut Shard, key: BucketKey, queue: QueueId, entry: Entry, now: Timestamp) -> u64 {
        if shard.put(key, queue, entry.kept_until, entry.state) == Put::Replaced
            || self.buckets.fetch_add(1, Ordering::Relaxed) < self.max_buckets
        {
            return 0;
        }
        self.buckets.fetch_sub(1, Ordering::Relaxed);
        u64::from(shard.evict(now) == Some(Eviction::Spent))
    }

    /// Frees up to `BATCH` full buckets; returns whether there may be more.
    fn free_some(&self, shard: &mut Shard, now: Timestamp) -> bool {
        const BATCH: usize = 256;
        let freed = shard.free_full(now, BATCH);
        self.buckets.fetch_sub(freed, Ordering::Relaxed);
        if freed < BATCH {
            shard.shrink();
        }
        freed == BATCH
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::time::Micros;
    use ledger::algorithm::Algorithm;
    use ledger::algorithm::token_bucket::{Rate, TokenBucket};
    use ledger::bucket_key::LimitTag;
    use ledger::cost::Cost;
    use ledger::outcome::Verdict;
    use smallvec::smallvec;

    const SECOND: u64 = 1_000_000;

    fn plan(charges: impl IntoIterator<Item = Charge>) -> Plan {
        Plan { enforced: charges.into_iter().collect(), shadow: smallvec![] }
    }

    fn memory(max_buckets: usize) -> (Memory, Clock) {
        let clock = Clock::manual(Timestamp(1_000 * SECOND));
        (Memory::new(&Settings { max_buckets, ..Settings::default() }, clock.clone()), clock)
    }

    fn verdict(memory: &Memory, plan: Plan) -> Verdict {
        memory.take(&plan).settlement.verdict
    }

    #[test]
    fn a_refused_request_spends_nothing_in_any_bucket() {
        let (memory, _) = memory(4096);
        assert_eq!(
            verdict(&memory, plan([Charge::of_token_bucket(1, 5, 1), Charge::of_token_bucket(2, 1, 1)])),
            Verdict::Allow
        );
        for _ in 0..10 {
            assert_eq!(
                verdict(&memory, plan([Charge::of_token_bucket(1, 5, 1), Charge::of_token_bucket(2, 1, 1)])),
                Verdict::Deny
            );
        }
        let left = memory.take(&plan([Charge::of_token_bucket(1, 5, 1)])).settlement.enforced[0].remaining;
        assert_eq!(left, Cost::from_tokens(3));
    }

    #[test]
    fn a_shadow_is_charged_by_itself_and_only_when_the_request_passed() {
        let (memory, _) = memory(4096);
        let both = |enforced: u64| Plan {
            enforced: smallvec![Charge::of_token_bucket(1, 3, enforced)],
            shadow: smallvec![Charge::of_token_bucket(2, 1, 1)],
        };
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
            verdict(&memory, plan([Charge::of_token_bucket(bucket, 200, u64::from(bucket) + 1)]));
        }
        clock.set(Timestamp(1_050 * SECOND));
        memory.sweep();
        assert_eq!(memory.buckets(), 50);
        clock.set(Timestamp(1_100 * SECOND));
        memory.sweep();
        assert_eq!(memory.buckets(), 0);
    }

    #[test]
    fn at_the_bound_the_soonest_full_bucket_is_evicted_and_drained_ones_are_kept() {
        let (memory, _) = memory(10);
        for bucket in 0..10 {
            verdict(&memory, plan([Charge::of_token_bucket(bucket, 100, 100)]));
        }
        let mut evicted = 0;
        for bucket in 100..200 {
            evicted += memory.take(&plan([Charge::of_token_bucket(bucket, 100, 1)])).evicted;
        }
        assert_eq!((memory.buckets(), evicted), (10, 100));
        for bucket in 0..10 {
            assert_eq!(
                verdict(&memory, plan([Charge::of_token_bucket(bucket, 100, 1)])),
                Verdict::Deny,
                "bucket {bucket}"
            );
        }
    }

    /// `burst` tokens that refill in `window`, in a bucket of its own for each `key`; each window is another limit.
    fn charge_by(key: u64, burst: u64, window: Micros) -> Charge {
        let rate = Rate { amount: Cost::from_tokens(burst), period: window };
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&key.to_le_bytes());
        bytes[8..].copy_from_slice(&window.0.to_le_bytes());
        Charge {
            key: BucketKey(bytes),
            algorithm: Algorithm::TokenBucket(TokenBucket::new(rate, burst).unwrap()),
            tag: LimitTag(u32::from(window == DAY)),
            purpose: ledger::charge::ChargePurpose::Spend,
            ..Charge::of_token_bucket(0, 1, 1)
        }
    }

    const DAY: Micros = Micros(86_400 * SECOND);

    /// A ceiling for each key (`burst` at once, 1 per second) beside a quota per day for each account, with ever new
    /// accounts; then one key asks three times its burst at once.
    #[track_caller]
    fn check_flood(max_buckets: usize, accounts: u64, burst: u64, quota: u64) {
        const AFTERWARDS: u64 = 5_000;
        let (memory, clock) = memory(max_buckets);
        let ceiling = Micros(burst * SECOND);
        let request = |key: u64, account: u64| {
            verdict(&memory, plan([charge_by(key, burst, ceiling), charge_by(account, quota, DAY)]))
        };
        for account in 0..accounts {
            clock.set(Timestamp(1_000 * SECOND + account * 1_000));
            request(account, account);
        }
        let victim = u64::MAX;
        let passed = (0..3 * burst).filter(|number| request(victim, accounts + number) == Verdict::Allow).count();
        assert_eq!(passed as u64, burst, "of three times the burst, with {quota} per day");
        assert!(memory.buckets() <= max_buckets);
        // A flood of other keys between two requests does not refill it.
        for account in 2 * accounts..2 * accounts + AFTERWARDS {
            request(account, account);
        }
        assert_eq!(request(victim, victim), Verdict::Deny, "{burst} at once, {quota} per day");
    }

    #[test]
    fn a_flood_under_a_slow_limit_does_not_switch_a_fast_one_off() {
        for burst in [5, 10, 100] {
            for quota in [1, 2, 5, 10, 20] {
                check_flood(2_000, 4_500, burst, quota);
            }
        }
    }

    #[test]
    fn a_flood_among_a_hundred_thousand_buckets_does_not_switch_a_limit_off() {
        for (burst, quota) in [(5, 20), (5, 1), (100, 2), (10, 5)] {
            check_flood(100_000, 101_000, burst, quota);
        }
    }

    /// A million take 15 seconds of CPU in a debug build: only in the long form of the proof, `scripts/prove eviction`.
    #[test]
    fn a_flood_among_three_hundred_thousand_buckets_or_a_million_does_not_switch_a_limit_off() {
        let is_long = std::env::var("TOLLGATE_PROOF").is_ok_and(|form| form == "long");
        let buckets = if is_long { 1_000_000 } else { 300_000 };
        check_flood(buckets, u64::try_from(buckets).unwrap() + 1_000, 5, 1);
    }

    #[test]
    fn a_flood_under_one_variant_of_a_limit_does_not_switch_another_off() {
        let (memory, _) = memory(2_000);
        let of = |variant: u32, charge: Charge| Charge { variant, tag: LimitTag(7).of_variant(variant), ..charge };
        for account in 0..4_500 {
            verdict(&memory, plan([of(0, charge_by(account, 1, DAY))]));
        }
        let paying = || verdict(&memory, plan([of(1, charge_by(u64::MAX, 100, Micros(SECOND)))]));
        assert_eq!((0..300).filter(|_| paying() == Verdict::Allow).count(), 100);
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
                    let plan = plan(order.map(|bucket| Charge::of_token_bucket(bucket, 1000, 1)));
                    (0..1000).filter(|_| verdict(memory, plan.clone()) == Verdict::Allow).count()
                })
            };
            let callers: Vec<_> = (0..8).map(|caller_number| caller(orders[caller_number % 2])).collect();
            callers.into_iter().map(|caller| caller.join().unwrap()).sum::<usize>()
        });
        assert_eq!(granted, 1000);
    }
}
