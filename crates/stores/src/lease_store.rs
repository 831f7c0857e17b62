//! Does acts of leases in a store of any kind: in the store of a region, or at home.
//!
//! The store of a region does them beside the charges of its requests, on the same connections. Home has a store of its own, which takes
//! no requests and sends no heartbeats.

use std::sync::Arc;

use super::error::{Fault, StoreError};
use super::events::EventSink;
use super::lease_acts::{ActResult, ActResults, BucketAct};
use super::redis::cluster::NodeId;
use super::remote::Route;
use super::settings::Settings;
use super::worker::Worker;
use super::{Clock, Micros, Store};
use base::time::{Timestamp, timeout_precisely};
use ledger::bucket_key::BucketKey;

/// The worker whose connections do the acts.
const WORKER: Worker = Worker(0);

/// The largest number of acts in one call, because a call blocks the server's other clients.
const MOST_IN_A_CALL: usize = 128;

/// A store that does acts of leases.
#[derive(Clone, Debug)]
pub struct LeaseStore {
    store: Arc<Store>,
}

impl LeaseStore {
    /// Opens a store with one connection (in a cluster, one to each node), for acts only. It is not connected yet:
    /// [`LeaseStore::run`] connects it. Its breaker, events and timeouts are its own.
    pub fn open(settings: &Settings, clock: Clock, events: EventSink) -> LeaseStore {
        let store = Store::open(settings, 1, clock, events);
        store.silence();
        LeaseStore { store: Arc::new(store) }
    }

    /// Returns a store that does acts on the connections of `store`, in the buckets that requests charge there. [`Store::run`] must
    /// connect the first worker.
    pub fn beside(store: Arc<Store>) -> LeaseStore {
        LeaseStore { store }
    }

    /// Connects the store, and connects it again whenever the connection is lost, after growing pauses of at most a second. Never
    /// returns, except for a store in memory. Only for a store of [`LeaseStore::open`], and only once.
    pub async fn run(&self) {
        self.store.run(WORKER).await;
    }

    /// Waits until [`LeaseStore::run`] has tried to connect once, with or without success. Waits for two seconds at most.
    pub async fn first_attempt(&self) {
        self.store.first_attempt().await;
    }

    /// Does these acts, and waits for at most `timeout` and the store's own timeout. Acts on one bucket are done in their order.
    /// Acts whose calendar period has changed meanwhile are done in a second call. Must be called on a tokio runtime.
    ///
    /// If the caller drops the future, the acts may still be done.
    ///
    /// # Errors
    ///
    /// When no act has an answer. That says nothing about whether the acts were done: the same words can be sent again. If only some
    /// acts have no answer, these have [`ActResult::NoAnswer`].
    pub async fn act(&self, acts: &[BucketAct], timeout: Micros) -> Result<ActResults, Fault> {
        if let Store::Memory(memory) = &*self.store {
            return Ok(memory.act(acts));
        }
        let (store, acts) = (Arc::clone(&self.store), acts.to_vec());
        // In a task, so that a caller who leaves does not break off a transaction.
        let doing = tokio::spawn(async move { act_in_calls(&store, &acts).await });
        let interrupted = |_| Fault::new(StoreError::Closed, "the acts were interrupted");
        match timeout_precisely(timeout.into(), doing).await {
            Some(done) => done.map_err(interrupted)?,
            None => Err(Fault::new(StoreError::Timeout, "no answer in time")),
        }
    }

    /// Whether the store is known to give no answer about this bucket: the last attempt to connect has failed, or the breaker is open.
    /// Of a cluster, that of the node with the bucket. Not while a connection that has ended is made again. Acts wait for that.
    pub fn is_away(&self, key: &BucketKey) -> bool {
        match &*self.store {
            Store::Memory(_) => false,
            Store::Redis(redis) => redis.is_away(WORKER),
            Store::Cluster(cluster) => cluster.is_away(WORKER, key),
            Store::Postgres(postgres) => postgres.is_away(WORKER),
        }
    }

    /// Returns the node of a cluster with this bucket. `None` for a store with one server, and if the node is not known.
    pub(crate) fn node_of(&self, key: &BucketKey) -> Option<NodeId> {
        match &*self.store {
            Store::Cluster(cluster) => cluster.node_of(key),
            Store::Memory(_) | Store::Redis(_) | Store::Postgres(_) => None,
        }
    }

    /// Whether states of the newest format may be written, because all gateways that share the store read them.
    pub fn writes_newest_format(&self) -> bool {
        self.store.writes_newest_format()
    }

    /// Whether the store does only one call at a time, so that calls made together wait for each other.
    pub fn is_serial(&self) -> bool {
        matches!(&*self.store, Store::Postgres(_))
    }

    /// Returns when the store last answered, on this process's clock. A store of [`LeaseStore::open`] is asked for its time about
    /// every two seconds. `None` before the first answer, and for a store in memory.
    pub fn heard(&self) -> Option<Timestamp> {
        self.store.heard()
    }

    /// Uses the user, the password and the certificates of these settings for new connections.
    pub fn replace_login(&self, settings: &Settings) {
        self.store.replace_login(settings);
    }

    /// Converts a time of this process's clock to the store's clock.
    pub fn clock_at(&self, ours: Timestamp) -> Timestamp {
        self.store.clock_at(ours)
    }
}

/// Does acts in as many calls as needed.
async fn act_in_calls(store: &Store, acts: &[BucketAct]) -> Result<ActResults, Fault> {
    let mut all = ActResults::without_answers(acts.len());
    let (mut first_fault, mut is_answered) = (None, acts.is_empty());
    for (call, some) in acts.chunks(MOST_IN_A_CALL).enumerate() {
        let places: Vec<usize> = (call * MOST_IN_A_CALL..).take(some.len()).collect();
        match act_in_periods(store, some).await {
            Ok(done) => {
                is_answered = true;
                all.join(&places, done);
            }
            Err(fault) => {
                all.join(&places, ActResults::unanswered(fault.error, some.len()));
                first_fault.get_or_insert(fault);
            }
        }
    }
    match first_fault {
        Some(fault) if !is_answered => Err(fault),
        _ => Ok(all),
    }
}

/// Does acts in one call, and in a second one those that the first has left out because of their periods.
async fn act_in_periods(store: &Store, acts: &[BucketAct]) -> Result<ActResults, Fault> {
    let mut done = store.act(WORKER, acts).await?;
    let outside = done.results.iter().zip(acts).enumerate();
    let outside = outside.filter(|(_, (result, _))| **result == ActResult::OutsidePeriod);
    let (places, again): (Vec<usize>, Vec<BucketAct>) = outside.map(|(place, (_, act))| (place, *act)).unzip();
    if !again.is_empty() {
        let second = store.act(WORKER, &again).await;
        done.join(&places, second.unwrap_or_else(|fault| ActResults::unanswered(fault.error, again.len())));
    }
    Ok(done)
}

impl Store {
    /// Does acts of leases. Waits at most for the store's timeout. In a cluster, acts whose node gave no answer have
    /// [`ActResult::NoAnswer`].
    ///
    /// # Errors
    ///
    /// When no server gave an answer.
    async fn act(&self, worker: Worker, acts: &[BucketAct]) -> Result<ActResults, Fault> {
        match self {
            Store::Memory(memory) => Ok(memory.act(acts)),
            Store::Redis(redis) => redis.act(worker, acts, Route::Owner).await,
            Store::Cluster(cluster) => cluster.act(worker, acts).await,
            Store::Postgres(postgres) => postgres.act(worker, acts, Route::Owner).await,
        }
    }

    /// Sends no heartbeats on new connections.
    fn silence(&self) {
        match self {
            Store::Memory(_) => {}
            Store::Redis(redis) => redis.silence(),
            Store::Cluster(cluster) => cluster.silence(),
            Store::Postgres(postgres) => postgres.silence(),
        }
    }

    fn heard(&self) -> Option<Timestamp> {
        match self {
            Store::Memory(_) => None,
            Store::Redis(redis) => redis.heard(),
            Store::Cluster(cluster) => cluster.heard(),
            Store::Postgres(postgres) => postgres.heard(),
        }
    }
}
