//! Computes the levels of buckets from their states, by the same step that every store uses.

use std::collections::HashMap;

use base::time::Micros;
use ledger::algorithm::{Algorithm, ChargeResult, Level, State};
use ledger::bucket_key::BucketKey;
use ledger::cost::Cost;
use ledger::store_time::StoreTime;

/// The states of some buckets at one moment.
#[derive(Debug)]
pub(crate) struct Levels {
    /// The moment, on the clock of the store.
    pub at: StoreTime,
    pub from: String,
    states: HashMap<BucketKey, State>,
}

/// The level of one bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bucket {
    pub untouched: Level,
    /// The time until the bucket can pay; zero if it can now, `None` if it never can.
    pub wait: Option<Micros>,
    /// The time by which the bucket delays a request that it grants.
    pub delay: Micros,
}

impl Levels {
    /// Makes the levels of these keys, with their `states` in the same order. `from` is the place from which they were read.
    pub(crate) fn new(at: StoreTime, from: String, keys: &[BucketKey], states: Vec<Option<State>>) -> Levels {
        let states = keys.iter().zip(states).filter_map(|(key, state)| Some((*key, state?))).collect();
        Levels { at, from, states }
    }

    /// The state of a bucket; `None` if it is full and therefore not stored.
    pub(crate) fn state(&self, key: &BucketKey) -> Option<State> {
        self.states.get(key).cloned()
    }

    /// The amount spent of a bucket.
    pub(crate) fn spent(&self, key: &BucketKey, algorithm: &Algorithm) -> Cost {
        algorithm.spent(self.states.get(key).map(|state| &state[..]), self.at.of(algorithm))
    }

    pub(crate) fn bucket(&self, key: &BucketKey, algorithm: &Algorithm, cost: Cost) -> Bucket {
        let step = algorithm.step(self.states.get(key).map(|state| &state[..]), cost, self.at.of(algorithm));
        let (wait, delay) = match step.charge {
            ChargeResult::Fits { delay, .. } => (Some(Micros(0)), delay),
            ChargeResult::Short { wait } => (Some(wait), Micros(0)),
            ChargeResult::Never => (None, Micros(0)),
        };
        Bucket { untouched: step.untouched, wait, delay }
    }
}
