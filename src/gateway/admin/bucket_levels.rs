//! Computes the levels of buckets from their states, in the same way as every store.

use std::collections::HashMap;

use base::time::Micros;
use ledger::algorithm::ban::BanPeriod;
use ledger::algorithm::{Algorithm, ChargeResult, Level, State, budget};
use ledger::bucket_key::BucketKey;
use ledger::cost::Cost;
use ledger::holds::{Owner, Report, SettledSums};
use ledger::store_time::StoreTime;

/// An owner that is no gateway and holds no slots. The steps with which levels are computed need an owner.
const READER: Owner = Owner(u64::MAX);

/// The states of some buckets at one moment, from which the remaining amounts are computed.
#[derive(Debug)]
pub(crate) struct Levels {
    /// The time at which the states were read, by the store's clock.
    pub at: StoreTime,
    pub from: String,
    states: HashMap<BucketKey, State>,
}

/// The remaining amount of one bucket, and when the bucket can pay for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bucket {
    pub untouched: Level,
    /// The time until the bucket can pay for the request. Zero if the bucket can pay now, `None` if the bucket can never pay.
    pub wait: Option<Micros>,
    /// The time by which the bucket delays the request if the bucket can pay now.
    pub delay: Micros,
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

    /// Returns the ban of a bucket: the one that runs, or the last one until it is forgotten. `None` for a limit without bans.
    pub(crate) fn ban(&self, key: &BucketKey, algorithm: &Algorithm) -> Option<BanPeriod> {
        let Algorithm::Budget(budget) = algorithm else { return None };
        budget.last_ban(self.states.get(key).map(|state| &state[..]), self.at.of(algorithm))
    }

    /// Returns the state of a bucket, on which a step of its algorithm can be tried. `None` if the bucket is full. A
    /// bucket of slots or of a budget always has a state, with [`READER`] as an owner, because its steps need one.
    pub(crate) fn state_to_ask(&self, key: &BucketKey, algorithm: &Algorithm) -> Option<State> {
        let state = self.states.get(key);
        let report = Report { owner: READER, sequence: 1, held: Cost::default(), settled: SettledSums::default() };
        algorithm
            .accept(state.map(|state| &state[..]), report, self.at.of(algorithm))
            .map_or_else(|| state.cloned(), |entry| Some(entry.state))
    }

    pub(crate) fn bucket(&self, key: &BucketKey, algorithm: &Algorithm, cost: Cost) -> Bucket {
        let step = algorithm.step(self.state_to_ask(key, algorithm).as_deref(), cost, self.at.of(algorithm));
        let (wait, delay) = match step.charge {
            ChargeResult::Fits { delay, .. } => (Some(Micros(0)), delay),
            ChargeResult::Short { wait } => (Some(wait), Micros(0)),
            ChargeResult::Held => (Some(budget::WAIT), Micros(0)),
            ChargeResult::Never => (None, Micros(0)),
            // Nothing is asked, so no ban begins.
            ChargeResult::Banned { begins: Some(ban), .. } => (ban.otherwise, Micros(0)),
            ChargeResult::Banned { wait, .. } => (Some(wait), Micros(0)),
        };
        Bucket { untouched: step.untouched, wait, delay }
    }
}
