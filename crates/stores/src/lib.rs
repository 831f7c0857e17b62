//! Stores of buckets. A store takes a plan atomically: all charges of the plan, or none.
//!
//! Every store answers with the time of its decision and the level of every bucket in the plan. A store writes no log
//! and no metric. It returns the result of a call to the caller, and sends everything else as an [`Event`].
//!
//! ```
//! use ledger::algorithm::Algorithm;
//! use ledger::algorithm::token_bucket::{Rate, TokenBucket};
//! use ledger::bucket_key::BucketKey;
//! use ledger::charge::{Charge, Plan};
//! use ledger::cost::Cost;
//! use stores::memory::{Memory, Settings};
//! use stores::{Clock, Micros};
//!
//! let memory = Memory::new(&Settings::default(), Clock::system());
//! let one_per_minute = Rate { amount: Cost::ONE, period: Micros(60_000_000) };
//! let bucket = Algorithm::TokenBucket(TokenBucket::new(one_per_minute, 2).unwrap());
//! let mut plan = Plan::default();
//! plan.enforce(Charge::new(BucketKey([7; 16]), bucket, Cost::ONE));
//! let granted = [(); 3].map(|()| memory.take(&plan).settlement.is_granted());
//! assert_eq!(granted, [true, true, false]);
//! ```
//!
//! A store on a server has one connection for each [`Worker`], and [`Store::run`] keeps that connection open.
//! `examples/three_takes.rs` calls a Redis.

mod ban_list;
pub mod breaker;
mod bucket_change;
mod caller;
mod error;
mod events;
mod fallback;
pub mod initialization;
mod inspector;
mod lease_acts;
mod lease_keeper;
mod lease_store;
pub mod memory;
pub mod postgres;
mod purse_index;
pub mod redis;
mod region_stores;
pub mod remote;
mod reply;
mod reply_in_parts;
mod reservation;
mod settings;
pub mod span_links;
mod store_clock;
mod subject_names;
mod take_failure;
mod timed_settlement;
mod value_parts;
mod worker;

use std::collections::HashSet;
use std::sync::Arc;

pub use ban_list::{BanList, MOST_LISTED};
use base::time::Timestamp;
pub use base::time::{Clock, Micros};
pub use bucket_change::BucketChange;
pub use caller::Caller;
pub use error::{Fault, StoreError};
pub use events::{
    CallReport, Event, EventSink, NodeChange, NoticeLevel, RunningGateway, ServerNotice, TableSize, gateway_ttl,
};
pub use inspector::Inspector;
pub use lease_acts::{ActResult, ActResults, BucketAct};
pub use lease_keeper::{
    AskAnswer, KeeperSettings, LeaseEvent, LeaseKeeper, LeaseSink, LimitNumbers, NumberChange, PurseBucket,
};
pub use lease_store::LeaseStore;
use ledger::algorithm::State;
use ledger::bucket_key::BucketKey;
use ledger::charge::{LimitId, Plan};
use ledger::holds::{Owner, TimedHold, TimedHoldCost};
use ledger::store_time::StoreTime;
use memory::Memory;
use postgres::Postgres;
pub use purse_index::IndexedPurse;
use redis::cluster::Cluster;
use redis::{Redis, Target};
pub use region_stores::{OtherStore, StoreIdentity};
use remote::Route;
use remote::fault_injection::Hooks;
use remote::transport::ReadStates;
pub use reply::{GivenBack, Source, TakeReply};
pub use reservation::{Reservation, granted_asks};
pub use settings::{Endpoint, Settings};
pub use subject_names::{SubjectName, SubjectNames};
pub use take_failure::TakeFailure;
pub use timed_settlement::TimedSettlement;
pub use worker::Worker;

/// A store of buckets, of one of the supported kinds. A new kind needs a variant here and in [`Settings`].
#[derive(Debug)]
pub enum Store {
    Memory(Arc<Memory>),
    Redis(Redis),
    Cluster(Cluster),
    Postgres(Postgres),
}

impl Store {
    /// Opens a store for a gateway with this number of workers. A remote store is not connected yet: [`Store::run`]
    /// connects it.
    pub fn open(settings: &Settings, workers: usize, clock: Clock, events: EventSink) -> Store {
        let hooks = Hooks::of_process();
        match settings {
            Settings::Memory(settings) => Store::Memory(Memory::new(settings, clock)),
            Settings::Redis(settings) => match &settings.target {
                Target::Cluster(cluster) => {
                    Store::Cluster(Cluster::open(hooks, cluster, settings.clone(), workers, clock, events))
                }
                Target::Address { .. } | Target::Sentinel(_) => {
                    Store::Redis(Redis::open(hooks, settings.clone(), workers, clock, events))
                }
            },
            Settings::Postgres(settings) => {
                Store::Postgres(Postgres::open(hooks, settings.clone(), workers, clock, events))
            }
        }
    }

    /// Drives the connection of a worker, and connects again whenever it is lost. Returns only if the worker has no
    /// connection of its own. Must be called once for each worker, on the worker's thread.
    pub async fn run(&self, worker: Worker) {
        match self {
            Store::Memory(_) => {}
            Store::Redis(redis) => redis.run(worker).await,
            Store::Cluster(cluster) => cluster.run(worker).await,
            Store::Postgres(postgres) => postgres.run(worker).await,
        }
    }

    /// Waits until every worker has tried to connect once, with or without success. Waits for two seconds at most.
    pub async fn first_attempt(&self) {
        match self {
            Store::Memory(_) => {}
            Store::Redis(redis) => redis.first_attempt().await,
            Store::Cluster(cluster) => cluster.first_attempt().await,
            Store::Postgres(postgres) => postgres.first_attempt().await,
        }
    }

    /// Decides a plan: charges all of its buckets, or charges nothing. Returns `None` if the client had already
    /// disconnected. Nothing is charged then.
    ///
    /// # Errors
    ///
    /// When the store gave no answer to the plan, or to a part of it. [`StoreError`] says whether the plan may have
    /// been charged.
    pub fn take(
        &self,
        worker: Worker,
        plan: &Plan,
        caller: Option<Arc<dyn Caller>>,
    ) -> impl Future<Output = Result<Option<TakeReply>, TakeFailure>> + Send {
        self.ask(worker, plan, caller, None)
    }

    /// Decides a plan as [`Store::take`] does, for a caller that waits at most `most` and at most the store's timeout.
    /// The error holds the answers for the parts that other servers decided.
    ///
    /// # Errors
    ///
    /// In the same cases as [`Store::take`].
    pub fn take_within(
        &self,
        most: Micros,
        worker: Worker,
        plan: &Plan,
        caller: Option<Arc<dyn Caller>>,
    ) -> impl Future<Output = Result<Option<TakeReply>, TakeFailure>> + Send {
        self.ask(worker, plan, caller, Some(most))
    }

    async fn ask(
        &self,
        worker: Worker,
        plan: &Plan,
        caller: Option<Arc<dyn Caller>>,
        answer_within: Option<Micros>,
    ) -> Result<Option<TakeReply>, TakeFailure> {
        match self {
            Store::Memory(memory) => Ok(Some(memory.take(plan))),
            Store::Redis(redis) => Ok(redis.take(worker, plan, caller, answer_within).await?),
            // On the heap, this largest future does not enlarge the tasks of requests to other stores.
            Store::Cluster(cluster) => Box::pin(cluster.take(worker, plan, caller, answer_within)).await,
            Store::Postgres(postgres) => Ok(postgres.take(worker, plan, caller, answer_within).await?),
        }
    }

    /// Decides a plan as [`Store::take`] does, for a timed hold. What the plan asks for is held until the hold settles or ends,
    /// by no worker. The reply's reservation is empty. A wait is at most `answer_within`.
    ///
    /// # Errors
    ///
    /// In the same cases as [`Store::take`], [`StoreError::OldReport`] if a bucket has [`MOST_TIMED_HOLDS`], and
    /// [`StoreError::OlderGateway`] while an older gateway shares the store.
    ///
    /// [`MOST_TIMED_HOLDS`]: ledger::holds::MOST_TIMED_HOLDS
    pub async fn take_timed(
        &self,
        worker: Worker,
        plan: &Plan,
        caller: Option<Arc<dyn Caller>>,
        answer_within: Option<Micros>,
        hold: TimedHold,
    ) -> Result<Option<TakeReply>, TakeFailure> {
        match self {
            Store::Memory(_) => {}
            Store::Redis(redis) => redis.fallback.allow_timed_holds()?,
            Store::Cluster(cluster) => cluster.fallback.allow_timed_holds()?,
            Store::Postgres(postgres) => postgres.fallback.allow_timed_holds()?,
        }
        match self {
            Store::Memory(memory) => Ok(Some(memory.take_timed(plan, hold)?)),
            Store::Redis(redis) => Ok(redis.take_timed(worker, plan, caller, answer_within, hold).await?),
            Store::Cluster(cluster) => Box::pin(cluster.take_timed(worker, plan, caller, answer_within, hold)).await,
            Store::Postgres(postgres) => Ok(postgres.take_timed(worker, plan, caller, answer_within, hold).await?),
        }
    }

    /// Settles these costs for a timed hold, one for each of its buckets, and gives back what it holds. A call that repeats
    /// another changes nothing. Returns the result of each cost, in their order. If the store gave no answer to one, the same call
    /// may be repeated.
    ///
    /// # Errors
    /// Of a cost, if the store gave no answer about its bucket.
    pub async fn settle_timed(
        &self,
        worker: Worker,
        owner: Owner,
        costs: &[TimedHoldCost],
    ) -> Vec<Result<TimedSettlement, StoreError>> {
        let call = TimedHold::settle(owner, costs);
        let answer = match self {
            Store::Memory(memory) => return memory.settle_timed(&call),
            Store::Cluster(cluster) => return Box::pin(cluster.settle_timed(worker, owner, costs)).await,
            Store::Redis(redis) => redis.settle_timed_now(worker, call).await,
            Store::Postgres(postgres) => postgres.settle_timed_now(worker, call).await,
        };
        let of = |index| answer.as_ref().map(|results| timed_settlement::at(results, index)).map_err(|error| *error);
        (0..costs.len()).map(of).collect()
    }

    /// Reads the states of buckets, in the order of the keys, and changes nothing. `None` is the state of a full bucket. A
    /// shared store is asked once for all buckets, or once for each hash tag of a cluster. No state is later than the returned
    /// time. Waits at most for the store's timeout.
    ///
    /// # Errors
    ///
    /// When the store gave no answer for a bucket.
    pub async fn read(
        &self,
        worker: Worker,
        keys: &[BucketKey],
    ) -> Result<(StoreTime, Vec<Option<State>>), StoreError> {
        let ReadStates { now, states } = match self {
            Store::Memory(memory) => return Ok(memory.states_of(keys)),
            Store::Redis(redis) => redis.read(worker, keys, Route::Owner).await?,
            Store::Cluster(cluster) => cluster.read(worker, keys).await?,
            Store::Postgres(postgres) => postgres.read(worker, keys, Route::Owner).await?,
        };
        Ok((now.into(), states))
    }

    /// Decides a plan in this process, with this gateway's share of each limit. For use after [`Store::take`] has
    /// returned an error. All slots that this gateway holds are counted. The new slots need no [`Store::hold`].
    pub fn take_fallback(&self, worker: Worker, plan: &Plan) -> TakeReply {
        match self {
            Store::Memory(memory) => memory.take(plan),
            Store::Redis(redis) => redis.take_fallback(worker, plan),
            Store::Cluster(cluster) => cluster.take_fallback(worker, plan),
            Store::Postgres(postgres) => postgres.take_fallback(worker, plan),
        }
    }

    /// Refuses a plan because a ban that the store has shown still runs. `None` if no such ban is known. For use after
    /// [`Store::take`] has returned an error.
    pub fn refuse_banned(&self, plan: &Plan) -> Option<TakeReply> {
        match self {
            Store::Memory(_) => None,
            Store::Redis(redis) => redis.fallback.refuse_banned(plan),
            Store::Cluster(cluster) => cluster.fallback.refuse_banned(plan),
            Store::Postgres(postgres) => postgres.fallback.refuse_banned(plan),
        }
    }

    /// Holds the slots of a request that was admitted without a limit, after [`Store::take`] has returned an error.
    /// Other gateways see these slots once the store answers again. Add the result to the request's reservation with
    /// [`Reservation::join`]. The memory store holds nothing.
    pub fn hold(&self, worker: Worker, plan: &Plan) -> Reservation {
        match self {
            Store::Memory(_) => Reservation::default(),
            Store::Redis(redis) => redis.hold(worker, plan),
            Store::Cluster(cluster) => cluster.hold(worker, plan),
            Store::Postgres(postgres) => postgres.hold(worker, plan),
        }
    }

    /// Ends all slots of this gateway at the end of the process. Waits until the store knows that they have ended.
    pub async fn end_all_slots(&self) {
        match self {
            Store::Memory(_) => {}
            Store::Redis(redis) => redis.end_all_slots().await,
            Store::Cluster(cluster) => cluster.end_all_slots().await,
            Store::Postgres(postgres) => postgres.end_all_slots().await,
        }
    }

    /// Waits until the store knows what the requests of this gateway hold.
    pub async fn all_reported(&self) {
        match self {
            Store::Memory(_) => {}
            Store::Redis(redis) => redis.all_reported().await,
            Store::Cluster(cluster) => cluster.all_reported().await,
            Store::Postgres(postgres) => postgres.all_reported().await,
        }
    }

    /// Sets the hash of the configuration in force. Heartbeats announce this hash to the other gateways.
    pub fn announce(&self, configuration: &str) {
        match self {
            Store::Memory(_) => {}
            Store::Redis(redis) => redis.announce(configuration),
            Store::Cluster(cluster) => cluster.announce(configuration),
            Store::Postgres(postgres) => postgres.announce(configuration),
        }
    }

    /// Sets the limits whose charges may be undone, because another bucket of the same request may refuse. Their
    /// buckets are cached for a shorter time.
    pub fn expect_undone_charges(&self, limits: HashSet<LimitId>) {
        if let Store::Cluster(cluster) = self {
            cluster.expect_undone_charges(limits);
        }
    }

    /// Uses the user, the password and the certificates of these settings for new connections.
    pub fn replace_login(&self, settings: &Settings) {
        match (self, settings) {
            (Store::Redis(redis), Settings::Redis(settings)) => redis.replace_login(settings),
            (Store::Cluster(cluster), Settings::Redis(settings)) => cluster.replace_login(settings),
            (Store::Postgres(postgres), Settings::Postgres(settings)) => postgres.replace_login(&settings.login),
            // A change to another kind of store needs a restart.
            (Store::Memory(_) | Store::Redis(_) | Store::Cluster(_) | Store::Postgres(_), _) => {}
        }
    }

    /// Converts a time of this process's clock to the store's clock.
    pub fn clock_at(&self, ours: Timestamp) -> Timestamp {
        match self {
            Store::Memory(memory) => memory.date_at(ours),
            Store::Redis(redis) => redis.clock_at(ours),
            Store::Cluster(cluster) => cluster.clock_at(ours),
            Store::Postgres(postgres) => postgres.clock_at(ours),
        }
    }

    /// Removes what is cached about buckets, after the settings of limits have changed. What was spent stays spent.
    pub fn invalidate(&self) {
        match self {
            Store::Memory(_) => {}
            Store::Redis(redis) => redis.invalidate(),
            Store::Cluster(cluster) => cluster.invalidate(),
            Store::Postgres(postgres) => postgres.invalidate(),
        }
    }

    /// Removes the buckets that are full again from this process's memory. Should be called about once a second.
    pub fn sweep(&self) {
        match self {
            Store::Memory(memory) => memory.sweep(),
            Store::Redis(redis) => redis.fallback.sweep(),
            Store::Cluster(cluster) => cluster.fallback.sweep(),
            Store::Postgres(postgres) => postgres.fallback.sweep(),
        }
    }

    /// Returns the memory store, whose buckets no other gateway shares. `None` for a shared store.
    pub fn local_buckets(&self) -> Option<&Arc<Memory>> {
        match self {
            Store::Memory(memory) => Some(memory),
            Store::Redis(_) | Store::Cluster(_) | Store::Postgres(_) => None,
        }
    }

    /// Whether several gateways share the buckets.
    pub fn is_shared(&self) -> bool {
        self.local_buckets().is_none()
    }

    /// Returns the number of buckets in this process. Buckets that replace a shared store during an outage count too.
    pub fn buckets(&self) -> usize {
        match self {
            Store::Memory(memory) => memory.buckets(),
            Store::Redis(redis) => redis.fallback.buckets(),
            Store::Cluster(cluster) => cluster.fallback.buckets(),
            Store::Postgres(postgres) => postgres.fallback.buckets(),
        }
    }

    /// Whether states of the newest format may be written: with marks of the thresholds that were reported, and raises in purses. In a shared
    /// store, all live gateways must read them.
    pub fn writes_newest_format(&self) -> bool {
        match self {
            Store::Memory(_) => true,
            Store::Redis(redis) => redis.fallback.writes_newest_format(),
            Store::Cluster(cluster) => cluster.fallback.writes_newest_format(),
            Store::Postgres(postgres) => postgres.fallback.writes_newest_format(),
        }
    }

    /// Returns the store's name in gateway.yaml and in metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Store::Memory(_) => "memory",
            Store::Redis(_) | Store::Cluster(_) => "redis",
            Store::Postgres(_) => "postgres",
        }
    }
}
