//! Stores buckets in the memory of this process: the default store.
//!
//! Buckets are spread over shards, each with a lock of its own. A [`Shard`] determines which bucket is evicted when
//! there are `max_buckets`.
//!
//! Invariants: a plan holds the locks of all its shards at once, taken in the order of the shards. While there are
//! fewer than `max_buckets` buckets, only buckets that are full again are removed. What requests hold is never
//! evicted.

#[cfg(test)]
mod ban_tests;
pub mod bucket_file;
pub mod bucket_stream;
#[cfg(test)]
mod budget_tests;
mod eviction_order;
mod full_queue;
mod hold_table;
mod inspect;
mod leases;
pub(crate) mod local_holds;
#[cfg(test)]
pub(crate) mod no_slots;
mod queue_id;
#[cfg(test)]
mod raise_tests;
mod segmented_vec;
mod settlements;
mod shard;
pub mod slot_stream;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod timed_hold_tests;
mod timed_holds;

use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use foldhash::quality::RandomState;
use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;

use super::reply::{Source, TakeReply};
use super::reservation::Reservation;
use super::store_clock::StoreClock;
use base::time::{Clock, Timestamp};
use bucket_file::BucketFileSettings;
use ledger::algorithm::{Algorithm, ChargeResult, Entry};
use ledger::bucket_key::BucketKey;
use ledger::charge::{Charge, Entries, Plan, Settlement, settle};
use ledger::cost::Cost;
use ledger::outcome::Outcome;
use ledger::store_time::StoreTime;
use local_holds::LocalHolds;
pub use local_holds::{PREVIOUS_PROCESS, PROCESS};
use queue_id::{QueueId, SpentClass};
use shard::{Eviction, Put, Shard};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The maximum number of buckets.
    pub max_buckets: usize,
    /// The file that keeps the buckets over a restart. `None` if the buckets are lost when the process ends.
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
    /// The clock of the remote store that this store replaces during an outage.
    store_clock: Option<Arc<StoreClock>>,
    max_buckets: usize,
    buckets: AtomicUsize,
    /// How many buckets were evicted for settled costs since the last decision about a budget.
    evicted_by_settling: AtomicU64,
    /// Assigns keys to shards, by a random key of its own, so that no client can fill one shard.
    hasher: RandomState,
    shards: Box<[Mutex<Shard>]>,
    /// What requests hold of the buckets, with one part for each shard.
    holds: Box<[LocalHolds]>,
}

/// The locks that a plan holds, each with the index of its shard.
type LockedShards<'m> = SmallVec<[(usize, MutexGuard<'m, Shard>); 2]>;

/// The states of a plan's buckets, borrowed from their shards.
type States<'s> = SmallVec<[Option<&'s [u64]>; 2]>;

impl Memory {
    pub fn new(settings: &Settings, clock: Clock) -> Arc<Memory> {
        Arc::new(Memory::with_clocks(settings, clock, None))
    }

    /// Makes a memory store that replaces a remote store during an outage, on the clock of that store.
    pub(crate) fn in_place_of_store(settings: &Settings, clock: Clock, store_clock: Arc<StoreClock>) -> Memory {
        Memory::with_clocks(settings, clock, Some(store_clock))
    }

    fn with_clocks(settings: &Settings, clock: Clock, store_clock: Option<Arc<StoreClock>>) -> Memory {
        // A shard gets at least 1024 buckets, so that no shard is empty when the store is full.
        let shards = (settings.max_buckets / 1024).clamp(1, 16);
        Memory {
            clock,
            store_clock,
            max_buckets: settings.max_buckets,
            buckets: AtomicUsize::new(0),
            evicted_by_settling: AtomicU64::new(0),
            hasher: RandomState::default(),
            shards: (0..shards).map(|_| Mutex::default()).collect(),
            holds: (0..shards).map(|_| LocalHolds::default()).collect(),
        }
    }

    fn now(&self) -> Timestamp {
        self.time().now
    }

    /// Returns the time of the store. Periods of a calendar end by the machine's clock. If that clock was set back,
    /// they end by the clock of the process.
    pub(crate) fn time(&self) -> StoreTime {
        let now = self.clock.now();
        match &self.store_clock {
            Some(store) => store.at(now).into(),
            None => StoreTime { now, date: self.date_at(now) },
        }
    }

    /// Returns the time by which calendar periods end. `now` is the time on the clock of the process.
    pub(crate) fn date_at(&self, now: Timestamp) -> Timestamp {
        self.clock.date(now).max(now)
    }

    /// Decides a plan at one moment, while it holds the locks of all shards with the plan's buckets.
    pub fn take(self: &Arc<Self>, plan: &Plan) -> TakeReply {
        if plan.holds() {
            return self.take_and_hold(plan);
        }
        let mut held = self.lock(plan);
        // The clock is read under the locks, so that the times of a bucket's charges never go back.
        let time = self.time();
        let (settlement, evicted) = self.settle(plan, &mut held, time);
        TakeReply { now: time.date, settlement, evicted, source: Source::Store, reservation: Reservation::default() }
    }

    /// Returns the result that a plan would have now, without charging the plan.
    pub fn peek(&self, plan: &Plan) -> Settlement {
        if plan.holds() {
            return self.peek_and_hold(plan);
        }
        let held = self.lock(plan);
        let time = self.time();
        let (_, states) = self.states(plan, &held);
        settle(plan, &states, time).0
    }

    /// Lowers the bucket of a charge to at most `most` remaining tokens. `seen` is the bucket's state in another store.
    /// Returns the number of buckets that were evicted before they were full.
    pub fn lower(&self, charge: &Charge, most: Cost, seen: &[u64]) -> u64 {
        let Charge { key, algorithm, tag, .. } = charge;
        let shard = &mut self.shard(self.shard_of(key)).lock();
        let now = self.now();
        let kept = shard.get(key);
        let begun = if kept.is_none() { algorithm.begin_with(seen, now) } else { None };
        let state = begun.as_ref().map(|entry| &entry.state).or(kept).map(AsRef::as_ref);
        let held = algorithm.step(state, Cost::default(), now).untouched.remaining;
        let excess = Cost::from_thousandths(held.thousandths().saturating_sub(most.thousandths()));
        // The excess must be spent. The step of a settling budget only reserves.
        if excess > Cost::default()
            && let Some(entry) = algorithm.settle(state, excess, now)
        {
            let class = SpentClass::of(most, algorithm.ceiling(), Cost::ONE);
            return self.keep(shard, *key, QueueId::new(*tag, class), entry, now);
        }
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

    /// Removes the buckets that are full again, and releases memory.
    pub fn sweep(&self) {
        let now = self.now();
        self.end_overdue_slots(now);
        for shard in &self.shards {
            // Buckets are freed in small batches, so that no request waits long for the lock.
            while self.free_some(&mut shard.lock(), now) {}
        }
    }

    pub fn buckets(&self) -> usize {
        self.buckets.load(Ordering::Relaxed)
    }

    fn shard_of(&self, key: &BucketKey) -> usize {
        let hash = self.hasher.hash_one(key);
        // The remainder is below the number of shards, so it fits into a `usize`.
        usize::try_from(hash % self.shards.len() as u64).unwrap_or(0)
    }

    #[allow(clippy::indexing_slicing, reason = "every number comes from `shard_of`")]
    fn shard(&self, number: usize) -> &Mutex<Shard> {
        &self.shards[number]
    }

    fn lock(&self, plan: &Plan) -> LockedShards<'_> {
        let mut numbers: SmallVec<[usize; 4]> = plan.charges().map(|charge| self.shard_of(&charge.key)).collect();
        // The numbers are sorted, so that two requests lock shared shards in the same order.
        numbers.sort_unstable();
        numbers.dedup();
        numbers.into_iter().map(|number| (number, self.shard(number).lock())).collect()
    }

    #[allow(clippy::indexing_slicing, reason = "the indices come from `index_of`, within the held locks")]
    fn settle(&self, plan: &Plan, held: &mut LockedShards<'_>, time: StoreTime) -> (Settlement, u64) {
        let (indices, states) = self.states(plan, held);
        let (settlement, entries) = settle(plan, &states, time);
        drop(states);
        let evicted = self.store(plan, &settlement, &indices, entries, held, time);
        (settlement, evicted)
    }

    /// Stores the entries of a settled plan. `indices` has for each charge the index in `held` of its shard's lock.
    /// Returns the number of buckets that were evicted before they were full.
    #[allow(clippy::indexing_slicing, reason = "the indices come from `index_of`, within the held locks")]
    fn store(
        &self,
        plan: &Plan,
        settlement: &Settlement,
        indices: &[usize],
        entries: Entries,
        held: &mut LockedShards<'_>,
        time: StoreTime,
    ) -> u64 {
        let mut evicted = 0;
        // When a request is refused, its shadow charges have no outcome, but the new state of their buckets is stored
        // too.
        let unasked = std::iter::repeat(&Outcome::UNASKED);
        let outcomes = settlement.enforced.iter().chain(&settlement.shadow).chain(unasked);
        // A budget can need a correction although the plan is refused and no entry is left.
        let entries = entries.into_iter().chain(std::iter::repeat(None));
        for (((charge, index), entry), outcome) in plan.charges().zip(indices).zip(entries).zip(outcomes) {
            let now = time.of(&charge.algorithm);
            let entry = match &charge.algorithm {
                Algorithm::Concurrency(_) => None,
                // A reservation does not change what is spent. So only a ban that begins is stored.
                Algorithm::Budget(budget) if budget.settles() => match entry {
                    // What timed holds hold stays in the bucket.
                    Some(Entry { state, .. }) if outcome.ban.is_some_and(|ban| ban.begins) => {
                        charge.algorithm.without_owner(Some(&state), PROCESS, now)
                    }
                    _ => {
                        let kept = held[*index].1.get(&charge.key).map(AsRef::as_ref);
                        charge.algorithm.correction(kept, now)
                    }
                },
                _ => entry,
            };
            if let Some(entry) = entry {
                let class = class(&charge.algorithm, &entry, outcome.remaining, charge.cost, now);
                let queue = QueueId::new(charge.tag, class);
                evicted += self.keep(&mut held[*index].1, charge.key, queue, entry, time.now);
            }
        }
        evicted
    }

    /// Returns for each charge the index of its shard among the held locks, and the state of its bucket.
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

    /// Returns the index of the lock that guards this bucket.
    fn index_of(&self, held: &LockedShards<'_>, key: &BucketKey) -> usize {
        match held.len() {
            1 => 0,
            _ => held.binary_search_by_key(&self.shard_of(key), |(number, _)| *number).unwrap_or(0),
        }
    }

    /// Stores an entry. Returns the number of buckets that were evicted before they were full.
    fn keep(&self, shard: &mut Shard, key: BucketKey, queue: QueueId, entry: Entry, now: Timestamp) -> u64 {
        let put = shard.put(key, queue, entry.kept_until, entry.state);
        self.make_room(shard, put, now)
    }

    /// Evicts buckets if a new one was put and there are too many. Returns the number of buckets that were evicted before they
    /// were full.
    fn make_room(&self, shard: &mut Shard, put: Put, now: Timestamp) -> u64 {
        if put == Put::Replaced || self.buckets.fetch_add(1, Ordering::Relaxed) < self.max_buckets {
            return 0;
        }
        let mut spent = 0;
        // There may be more than one bucket too many if some could not be evicted before, because of timed holds.
        for _ in 0..2 {
            let Some(evicted) = shard.evict(now) else { break };
            spent += u64::from(evicted == Eviction::Spent);
            if self.buckets.fetch_sub(1, Ordering::Relaxed) <= self.max_buckets + 1 {
                break;
            }
        }
        spent
    }

    /// Frees up to `BATCH` full buckets. Returns whether there may be more.
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

/// Returns the class of a bucket after it was charged `cost`. A bucket with a ban or a raise that runs counts as drained, and one
/// that remembers a ban as half spent. So does a purse or a home count as drained: what is lost of it is lost for all regions.
fn class(algorithm: &Algorithm, entry: &Entry, remaining: Cost, cost: Cost, now: Timestamp) -> SpentClass {
    let class = SpentClass::of(remaining, algorithm.ceiling(), cost);
    let (is_leased, raised) = (algorithm.is_leased(), algorithm.raised_by(Some(&entry.state), now));
    if is_leased || raised > Cost::default() {
        return SpentClass::Drained;
    }
    match algorithm.last_ban(Some(&entry.state), now) {
        Some(ban) if ban.end > now => SpentClass::Drained,
        Some(_) => class.max(SpentClass::Much),
        None => class,
    }
}
