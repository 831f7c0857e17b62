//! Lets an operator read, find and remove buckets in memory, and give back what is spent in them.

use std::sync::atomic::Ordering;

use parking_lot::Mutex;

use super::Memory;
use super::queue_id::{QueueId, SpentClass};
use super::shard::Shard;
use crate::reply::GivenBack;
use base::time::Micros;
use ledger::algorithm::{Algorithm, AlgorithmKind, State};
use ledger::bucket_key::{BucketKey, LimitTag};
use ledger::cost::Cost;
use ledger::store_time::StoreTime;

impl Memory {
    /// Reads the states of these buckets, one after another. Returns the time, and the states in the order of the keys.
    pub fn states_of(&self, keys: &[BucketKey]) -> (StoreTime, Vec<Option<State>>) {
        let stored = |key| self.shard(self.shard_of(key)).lock().get(key).cloned();
        let states = keys.iter().map(|key| self.state_with_holds(key, stored(key), self.time())).collect();
        // The time is read after the states, so that no state is later than the time.
        (self.time(), states)
    }

    /// Removes these buckets, which makes them full. What requests hold stays held. Returns the time, and the states
    /// that the buckets had.
    pub fn remove(&self, keys: &[BucketKey]) -> (StoreTime, Vec<Option<State>>) {
        let forget = |key| {
            let removed = self.shard(self.shard_of(key)).lock().remove(key);
            if removed.is_some() {
                self.buckets.fetch_sub(1, Ordering::Relaxed);
            }
            self.state_with_holds(key, removed, self.time())
        };
        let states = keys.iter().map(forget).collect();
        (self.time(), states)
    }

    /// Gives back up to `amount` of what is spent in each of these buckets, one after another. Returns the time, and
    /// the states before and after.
    pub fn give_back(&self, buckets: &[(BucketKey, AlgorithmKind)], amount: Cost) -> (StoreTime, Vec<GivenBack>) {
        let give_back = |(key, kind): &(BucketKey, AlgorithmKind)| {
            let mut shard = self.shard(self.shard_of(key)).lock();
            let Some(state) = shard.get_mut(key) else { return GivenBack { before: None, after: None } };
            let before = Some(state.clone());
            if let Some(less) = kind.give_back(state, amount) {
                *state = less;
            }
            let after = Some(state.clone());
            drop(shard);
            let with_holds = |state| self.state_with_holds(key, state, self.time());
            GivenBack { before: with_holds(before), after: with_holds(after) }
        };
        let given = buckets.iter().map(give_back).collect();
        // The time is read after the states, so that no state is later than the time.
        (self.time(), given)
    }

    /// Begins a ban of this bucket, which lasts for `length` from now. A ban that runs is replaced. A bucket whose limit has
    /// no bans is left as it is. Returns the time, and the states before and after.
    pub fn set_ban(
        &self,
        key: &BucketKey,
        algorithm: &Algorithm,
        tag: LimitTag,
        length: Micros,
    ) -> (StoreTime, GivenBack) {
        let mut shard = self.shard(self.shard_of(key)).lock();
        let time = self.time();
        let before = shard.get(key).cloned();
        let mut after = before.clone();
        if let Some(entry) = algorithm.set_ban(before.as_deref(), length, time.of(algorithm)) {
            after = Some(entry.state.clone());
            let queue = QueueId::new(tag, SpentClass::Drained);
            self.keep(&mut shard, *key, queue, entry, time.now);
        }
        drop(shard);
        let with_holds = |state| self.state_with_holds(key, state, self.time());
        (time, GivenBack { before: with_holds(before), after: with_holds(after) })
    }

    /// Returns the keys of all buckets, as one list for each shard.
    pub fn keys(&self) -> impl Iterator<Item = Vec<BucketKey>> {
        let stored = |shard: &Mutex<Shard>| shard.lock().keys().copied().collect::<Vec<_>>();
        self.shards.iter().enumerate().map(move |(index, shard)| {
            // A budget can be both spent and held.
            let mut keys = [stored(shard), self.held_keys(index)].concat();
            keys.sort_unstable();
            keys.dedup();
            keys
        })
    }
}
