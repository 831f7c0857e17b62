//! Reads, finds and removes buckets of a shared store for an operator, without a gateway.

use super::error::Fault;
use super::reply::GivenBack;
use super::{postgres, redis};
use base::time::Timestamp;
use ledger::algorithm::{AlgorithmKind, State};
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
    /// Reads the states of these buckets. Returns the time at which they were read, and the states in the order of the keys.
    /// `None` means that the bucket is full.
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

    /// Removes these buckets, which makes them full. Returns the time and the earlier states, as [`Inspector::states`]
    /// does.
    ///
    /// # Errors
    ///
    /// When the store gives no answer, or refuses the request.
    pub async fn remove(&mut self, keys: &[BucketKey]) -> Result<(Timestamp, Vec<Option<State>>), Fault> {
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

    /// Returns the keys of all buckets for which `is` returns true. Calls `progress` with the number of buckets visited so far.
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
