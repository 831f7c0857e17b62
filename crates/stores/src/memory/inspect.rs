//! Lets an operator read, find and remove buckets in memory, and give back what is spent in them.

use std::sync::atomic::Ordering;

use parking_lot::Mutex;

use super::Memory;
use super::queue_id::{QueueId, SpentClass};
use super::shard::Shard;
use crate::ban_list::BanList;
use crate::reply::GivenBack;
use base::time::Timestamp;
use ledger::algorithm::raise::after_reset;
use ledger::algorithm::{Algorithm, AlgorithmKind, Entry, State, budget, concurrency};
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

    /// Removes these buckets, which makes them full. What requests hold stays held, and raises stay. Returns the time, and the
    /// states that the buckets had.
    pub fn remove(&self, keys: &[BucketKey]) -> (StoreTime, Vec<Option<State>>) {
        let forget = |key| {
            let shard = &mut self.shard(self.shard_of(key)).lock();
            let time = self.time();
            let kept = shard.kept(key);
            let kept = kept.map(|(queue, until, state)| (queue, state.clone(), left_by_reset(state, until, time.now)));
            let removed = match kept {
                Some((queue, state, Some(entry))) => {
                    self.keep(shard, *key, queue, entry, time.now);
                    Some(state)
                }
                _ => {
                    let removed = shard.remove(key);
                    self.buckets.fetch_sub(usize::from(removed.is_some()), Ordering::Relaxed);
                    removed
                }
            };
            self.state_with_holds(key, removed, time)
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
            if let Some(less) = kind.give_back_at(state, amount, self.time().now) {
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

    /// Changes this bucket of the limit with this tag. `change` computes the new entry from the state, and returns `None` if the bucket
    /// stays as it is. Returns the time, and the states before and after.
    pub fn change(
        &self,
        key: &BucketKey,
        tag: LimitTag,
        change: impl FnOnce(Option<&[u64]>, StoreTime) -> Option<Entry>,
    ) -> (StoreTime, GivenBack) {
        let mut shard = self.shard(self.shard_of(key)).lock();
        let time = self.time();
        let before = shard.get(key).cloned();
        let mut after = before.clone();
        if let Some(entry) = change(before.as_deref(), time) {
            after = Some(entry.state.clone());
            let queue = QueueId::new(tag, SpentClass::Drained);
            self.keep(&mut shard, *key, queue, entry, time.now);
        }
        drop(shard);
        let with_holds = |state| self.state_with_holds(key, state, self.time());
        (time, GivenBack { before: with_holds(before), after: with_holds(after) })
    }

    /// Lists the running bans of the limit whose buckets have the keys for which `is` returns true.
    pub fn list_bans(&self, limit: &Algorithm, is: &dyn Fn(&BucketKey) -> bool) -> BanList {
        let mut list = BanList::default();
        for keys in self.keys() {
            list.visited += keys.len() as u64;
            for key in keys.into_iter().filter(is) {
                // One bucket is read at a time, so that no request waits long for the lock.
                let shard = self.shard(self.shard_of(&key)).lock();
                list.add(key, limit, shard.get(&key).map(AsRef::as_ref), self.time());
            }
        }
        list.at = self.time();
        list
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

/// Returns what a reset leaves of a bucket: raises, and what timed holds hold that have not ended. `None` if it leaves nothing.
fn left_by_reset(state: &[u64], kept_until: Timestamp, now: Timestamp) -> Option<Entry> {
    let held = match concurrency::is_stored(state) {
        true => Some(State::from_slice(state)),
        false => budget::kind_of(state).and_then(|kind| kind.give_back_at(state, budget::EVERYTHING, now)),
    };
    held.map(|state| Entry { state, kept_until }).or_else(|| after_reset(state, now))
}
