//! Reads, finds and removes buckets of a shared store for an operator, without a gateway.

use std::collections::HashMap;

use super::error::Fault;
use super::reply::GivenBack;
use super::{postgres, redis};
use base::time::{Micros, Timestamp};
use ledger::algorithm::{Algorithm, AlgorithmKind, State, budget};
use ledger::bucket_key::BucketKey;
use ledger::cost::Cost;

/// A connection to a shared store, for an operator who reads, finds and removes buckets.
#[derive(Debug)]
pub enum Inspector {
    Redis(redis::inspect::Inspector),
    Cluster(redis::cluster::inspect::Inspector),
    Postgres(postgres::inspect::Inspector),
}

impl Inspector {
    /// Reads the states of these buckets. Returns the time at which they were read, and the states in the order of the
    /// keys. `None` means that the bucket is full.
    ///
    /// # Errors
    ///
    /// When the store gives no answer, or refuses the request.
    pub async fn states(&mut self, keys: &[BucketKey]) -> Result<(Timestamp, Vec<Option<State>>), Fault> {
        match self {
            Inspector::Redis(redis) => redis.states(keys).await,
            Inspector::Cluster(cluster) => cluster.states(keys).await,
            Inspector::Postgres(postgres) => postgres.states(keys).await,
        }
    }

    /// Makes these buckets full. What requests hold stays held. The kind is `None` if the caller does not know the
    /// bucket's limit. Returns the time and the earlier states, as [`Inspector::states`] does.
    ///
    /// # Errors
    ///
    /// When the store gives no answer, or refuses the request. Some buckets may be full then.
    pub async fn reset(
        &mut self,
        buckets: &[(BucketKey, Option<AlgorithmKind>)],
    ) -> Result<(Timestamp, Vec<Option<State>>), Fault> {
        let keys: Vec<BucketKey> = buckets.iter().map(|(key, _)| *key).collect();
        let (mut now, mut before) = self.states(&keys).await?;
        let kind_of = |(index, (_, kind)): (usize, &(BucketKey, Option<AlgorithmKind>))| {
            kind.or_else(|| budget::kind_of(before.get(index)?.as_deref()?)).filter(|kind| kind.is_budget())
        };
        let kinds: Vec<Option<AlgorithmKind>> = buckets.iter().enumerate().map(kind_of).collect();
        let budgets: Vec<_> = keys.iter().zip(&kinds).filter_map(|(key, kind)| Some((*key, (*kind)?))).collect();
        let others: Vec<_> = keys.iter().zip(&kinds).filter(|(_, kind)| kind.is_none()).map(|(key, _)| *key).collect();
        let mut found: HashMap<BucketKey, Option<State>> = HashMap::new();
        if !budgets.is_empty() {
            let (at, given) = self.give_back(&budgets, budget::EVERYTHING).await?;
            now = now.max(at);
            found.extend(budgets.iter().map(|(key, _)| *key).zip(given.into_iter().map(|given| given.before)));
        }
        if !others.is_empty() {
            let (at, states) = self.remove(&others).await?;
            now = now.max(at);
            found.extend(others.into_iter().zip(states));
        }
        for (key, before) in keys.iter().zip(&mut before) {
            if let Some(state) = found.remove(key) {
                *before = state;
            }
        }
        Ok((now, before))
    }

    /// Removes these buckets. Returns the time and the earlier states, as [`Inspector::states`] does.
    async fn remove(&mut self, keys: &[BucketKey]) -> Result<(Timestamp, Vec<Option<State>>), Fault> {
        match self {
            Inspector::Redis(redis) => redis.remove(keys).await,
            Inspector::Cluster(cluster) => cluster.remove(keys).await,
            Inspector::Postgres(postgres) => postgres.remove(keys).await,
        }
    }

    /// Gives back up to `amount` of what is spent in each of these buckets. Returns the time, and the states before and
    /// after the change.
    ///
    /// # Errors
    ///
    /// When the store gives no answer, or refuses the request.
    pub async fn give_back(
        &mut self,
        buckets: &[(BucketKey, AlgorithmKind)],
        amount: Cost,
    ) -> Result<(Timestamp, Vec<GivenBack>), Fault> {
        match self {
            Inspector::Redis(redis) => redis.give_back(buckets, amount).await,
            Inspector::Cluster(cluster) => cluster.give_back(buckets, amount).await,
            Inspector::Postgres(postgres) => postgres.give_back(buckets, amount).await,
        }
    }

    /// Begins a ban of each of these buckets, which lasts for `length` from now. A ban that runs is replaced. A bucket whose
    /// limit has no bans is left as it is. Returns the time, and the states before and after.
    ///
    /// # Errors
    ///
    /// When the store gives no answer, or refuses the request.
    pub async fn set_ban(
        &mut self,
        buckets: &[(BucketKey, Algorithm)],
        length: Micros,
    ) -> Result<(Timestamp, Vec<GivenBack>), Fault> {
        match self {
            Inspector::Redis(redis) => redis.set_ban(buckets, length).await,
            Inspector::Cluster(cluster) => cluster.set_ban(buckets, length).await,
            Inspector::Postgres(postgres) => postgres.set_ban(buckets, length).await,
        }
    }

    /// Returns the keys of all buckets for which `is` returns true. Calls `progress` with the number of buckets visited
    /// so far.
    ///
    /// # Errors
    ///
    /// When the store gives no answer, or refuses the request.
    pub async fn find(
        &mut self,
        is: &dyn Fn(&BucketKey) -> bool,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Vec<BucketKey>, Fault> {
        match self {
            Inspector::Redis(redis) => redis.find(is, progress).await,
            Inspector::Cluster(cluster) => cluster.find(is, progress).await,
            Inspector::Postgres(postgres) => postgres.find(is, progress).await,
        }
    }
}
