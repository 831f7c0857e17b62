//! Computes the levels of buckets from their states, in the same way as every store.

use std::collections::HashMap;

use ledger::algorithm::ban::BanPeriod;
use ledger::algorithm::raise::Raise;
use ledger::algorithm::{Algorithm, State};
use ledger::bucket_key::BucketKey;
use ledger::bucket_level::{self, BucketLevel};
use ledger::cost::Cost;
use ledger::store_time::StoreTime;

/// The states of some buckets at one moment, from which the remaining amounts are computed.
#[derive(Debug)]
pub(crate) struct Levels {
    /// The time at which the states were read, by the store's clock.
    pub at: StoreTime,
    pub from: String,
    states: HashMap<BucketKey, State>,
}

impl Levels {
    /// Makes the levels of the buckets with these keys. `states` has the same order as `keys`. `from` names the place from
    /// which the states were read.
    pub(crate) fn new(at: StoreTime, from: String, keys: &[BucketKey], states: Vec<Option<State>>) -> Levels {
        let states = keys.iter().zip(states).filter_map(|(key, state)| Some((*key, state?))).collect();
        Levels { at, from, states }
    }

    /// Returns the state of a bucket. `None` if the bucket is full, and so not stored.
    pub(crate) fn state(&self, key: &BucketKey) -> Option<State> {
        self.states.get(key).cloned()
    }

    /// Returns the amount that is spent of a bucket.
    pub(crate) fn spent(&self, key: &BucketKey, algorithm: &Algorithm) -> Cost {
        algorithm.spent(self.states.get(key).map(|state| &state[..]), self.at.of(algorithm))
    }

    /// Returns the running ban of a bucket, or the last ban until it is forgotten. `None` for a limit without bans.
    pub(crate) fn ban(&self, key: &BucketKey, algorithm: &Algorithm) -> Option<BanPeriod> {
        algorithm.last_ban(self.states.get(key).map(|state| &state[..]), self.at.of(algorithm))
    }

    /// Returns the raises of a bucket that run.
    pub(crate) fn raises(&self, key: &BucketKey, algorithm: &Algorithm) -> Vec<Raise> {
        algorithm.raises(self.states.get(key).map(|state| &state[..]), self.at.of(algorithm))
    }

    /// Returns the limit of a bucket, with the raises that run.
    pub(crate) fn raised(&self, key: &BucketKey, algorithm: &Algorithm) -> Algorithm {
        algorithm.raised(algorithm.raised_by(self.states.get(key).map(|state| &state[..]), self.at.of(algorithm)))
    }

    /// Returns the state of a bucket, on which a step of its algorithm can be tried, as [`bucket_level::state_to_ask`] does.
    pub(crate) fn state_to_ask(&self, key: &BucketKey, algorithm: &Algorithm) -> Option<State> {
        bucket_level::state_to_ask(algorithm, self.states.get(key).map(|state| &state[..]), self.at.of(algorithm))
    }

    /// Returns the level of a bucket for a request of this cost.
    pub(crate) fn bucket(&self, key: &BucketKey, algorithm: &Algorithm, cost: Cost) -> BucketLevel {
        BucketLevel::of(algorithm, self.states.get(key).map(|state| &state[..]), cost, self.at.of(algorithm))
    }
}
