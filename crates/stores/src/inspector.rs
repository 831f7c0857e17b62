//! Reads, finds and removes buckets of a shared store for an operator, without a gateway.

use std::collections::HashMap;

use super::ban_list::BanList;
use super::bucket_change::BucketChange;
use super::error::Fault;
use super::remote::heartbeat::WITH_RAISES;
use super::reply::GivenBack;
use super::{postgres, redis};
use base::time::{Micros, Timestamp};
use ledger::algorithm::raise::{after_reset, restored};
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

    /// Makes these buckets full. What requests hold stays held, and raises stay. The kind is `None` if the caller does not know the
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
        let read_at = now;
        let is_raised =
            |state: &Option<State>| state.as_ref().is_some_and(|state| after_reset(state, read_at).is_some());
        let others = keys.iter().zip(&kinds).zip(&before).filter(|((_, kind), _)| kind.is_none());
        let (raised, others): (Vec<_>, Vec<_>) = others.partition(|(_, before)| is_raised(before));
        let [raised, others] = [raised, others].map(|all| all.iter().map(|((key, _), _)| **key).collect::<Vec<_>>());
        let mut found: HashMap<BucketKey, Option<State>> = HashMap::new();
        if !budgets.is_empty() {
            let (at, given) = self.give_back(&budgets, budget::EVERYTHING).await?;
            now = now.max(at);
            found.extend(budgets.iter().map(|(key, _)| *key).zip(given.into_iter().map(|given| given.before)));
        }
        if !raised.is_empty() {
            // Raises stay.
            let (at, reset) = self.change(&raised, &|_, state, now| after_reset(state?, now)).await?;
            now = now.max(at);
            found.extend(raised.into_iter().zip(reset.into_iter().map(|reset| reset.before)));
        }
        if !others.is_empty() {
            let (at, states) = self.remove(&others).await?;
            now = now.max(at);
            // Another operator may have raised a bucket after it was read above.
            let removed: HashMap<BucketKey, Option<State>> = others.into_iter().zip(states).collect();
            let lost: Vec<BucketKey> =
                removed.iter().filter(|(_, state)| is_raised(state)).map(|(key, _)| *key).collect();
            if !lost.is_empty() {
                let restore = |key: &BucketKey, state: Option<&[u64]>, now: Timestamp| {
                    restored(removed.get(key)?.as_deref()?, state, now)
                };
                self.change(&lost, &restore).await?;
            }
            found.extend(removed);
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

    /// Bans each of these buckets for `length` from now. A running ban is replaced. A bucket whose limit has no bans
    /// stays unchanged. Returns the time, and the states before and after.
    ///
    /// # Errors
    ///
    /// When the store gives no answer, or refuses the request.
    pub async fn set_ban(
        &mut self,
        buckets: &[(BucketKey, Algorithm)],
        length: Micros,
    ) -> Result<(Timestamp, Vec<GivenBack>), Fault> {
        let keys: Vec<BucketKey> = buckets.iter().map(|(key, _)| *key).collect();
        let limit = |key: &BucketKey| buckets.iter().find(|(own, _)| own == key).map(|(_, limit)| limit);
        self.change(&keys, &|key, state, now| limit(key)?.set_ban(state, length, now)).await
    }

    /// Changes each of these buckets. Returns the time, and the states before and after.
    ///
    /// # Errors
    ///
    /// When the store gives no answer or refuses the request, or if a bucket changes too often.
    pub async fn change(
        &mut self,
        keys: &[BucketKey],
        change: &BucketChange<'_>,
    ) -> Result<(Timestamp, Vec<GivenBack>), Fault> {
        match self {
            Inspector::Redis(redis) => redis.change(keys, change).await,
            Inspector::Cluster(cluster) => cluster.change(keys, change).await,
            Inspector::Postgres(postgres) => postgres.change(keys, change).await,
        }
    }

    /// Returns how many live gateways cannot read the states of buckets with raises.
    ///
    /// # Errors
    ///
    /// When the store gives no answer, or refuses the request.
    pub async fn count_gateways_without_raises(&mut self) -> Result<usize, Fault> {
        match self {
            Inspector::Redis(redis) => redis.count_older_gateways(WITH_RAISES).await,
            Inspector::Cluster(cluster) => cluster.count_older_gateways(WITH_RAISES).await,
            Inspector::Postgres(postgres) => postgres.count_older_gateways(WITH_RAISES).await,
        }
    }

    /// Lists the running bans of the limit whose buckets have the keys for which `is` returns true. Calls `progress` with the
    /// number of buckets visited so far.
    ///
    /// # Errors
    ///
    /// When the store gives no answer, or refuses the request.
    pub async fn list_bans(
        &mut self,
        limit: &Algorithm,
        is: &dyn Fn(&BucketKey) -> bool,
        progress: &mut dyn FnMut(u64),
    ) -> Result<BanList, Fault> {
        match self {
            Inspector::Redis(redis) => redis.list_bans(limit, is, progress).await,
            Inspector::Cluster(cluster) => cluster.list_bans(limit, is, progress).await,
            Inspector::Postgres(postgres) => postgres.list_bans(limit, is, progress).await,
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
