//! WHERE BUCKETS LIVE: takes plans, all or nothing, in one act.
//!
//! Every store answers with the time that it decided by and the level of every bucket that was asked. A store never logs
//! or counts: it returns what happened to those who asked, and reports what happens beside them.

pub mod breaker;
mod call_timer;
mod caller;
mod error;
mod events;
mod fallback;
pub mod memory;
pub mod redis;
mod reply;
mod settings;
pub mod span_links;
mod worker;

use std::sync::Arc;

use crate::base::time::Clock;
use crate::limit::charge::Plan;
pub use caller::Caller;
pub use error::{Fault, StoreError};
pub use events::{CallReport, Event, EventSink, RunningGateway, gateway_ttl};
use memory::Memory;
use redis::Redis;
pub use reply::{Source, TakeReply};
pub use settings::{Endpoint, Settings};
pub use worker::Worker;

/// The stores. To add one: its file, and an arm in each `match` here.
#[derive(Debug)]
pub enum Store {
    Memory(Memory),
    Redis(Redis),
}

impl Store {
    /// Opens a store for so many workers. One that is elsewhere is not asked for yet: that is for [`Store::run`].
    pub fn open(settings: &Settings, workers: usize, clock: Clock, events: EventSink) -> Store {
        match settings {
            Settings::Memory(settings) => Store::Memory(Memory::new(settings, clock)),
            Settings::Redis(settings) => Store::Redis(Redis::new(settings.clone(), workers, clock, events)),
        }
    }

    /// Keeps a worker's link up, for ever. To be run on the worker's own thread, once.
    pub async fn run(&self, worker: Worker) {
        match self {
            Store::Memory(_) => {}
            Store::Redis(redis) => redis.run(worker).await,
        }
    }

    /// Waits until every worker has been tried once, whatever came of it.
    pub async fn first_attempt(&self) {
        match self {
            Store::Memory(_) => {}
            Store::Redis(redis) => redis.first_attempt().await,
        }
    }

    /// Decides a plan, all or nothing. None when the caller had gone before the store was asked: then it spends nothing.
    pub async fn take(
        &self,
        worker: Worker,
        plan: &Plan,
        caller: Option<Arc<dyn Caller>>,
    ) -> Result<Option<TakeReply>, StoreError> {
        match self {
            Store::Memory(memory) => Ok(Some(memory.take(plan))),
            Store::Redis(redis) => redis.take(worker, plan, caller).await,
        }
    }

    /// Decides a plan when [`Store::take`] has given no answer, by this gateway's share.
    pub fn take_fallback(&self, plan: &Plan) -> TakeReply {
        match self {
            Store::Memory(memory) => memory.take(plan),
            Store::Redis(redis) => redis.fallback.take(plan),
        }
    }

    /// From here on this gateway runs the configuration with this hash, and tells the others.
    pub fn announce(&self, configuration: &str) {
        match self {
            Store::Memory(_) => {}
            Store::Redis(redis) => redis.announce(configuration),
        }
    }

    /// Forgets what it knows without asking: other numbers hold from here on. What was spent stays spent.
    pub fn invalidate(&self) {
        match self {
            Store::Memory(_) => {}
            Store::Redis(redis) => redis.invalidate(),
        }
    }

    /// Frees what need not be kept any more. To be called every second or so.
    pub fn sweep(&self) {
        match self {
            Store::Memory(memory) => memory.sweep(),
            Store::Redis(redis) => redis.fallback.sweep(),
        }
    }

    /// The buckets, where this process holds them itself and no other gateway shares them.
    pub fn local_buckets(&self) -> Option<&Memory> {
        match self {
            Store::Memory(memory) => Some(memory),
            Store::Redis(_) => None,
        }
    }

    /// Whether several gateways share the buckets.
    pub fn is_shared(&self) -> bool {
        self.local_buckets().is_none()
    }

    /// How many buckets are kept here.
    pub fn buckets(&self) -> usize {
        match self {
            Store::Memory(memory) => memory.buckets(),
            Store::Redis(redis) => redis.fallback.buckets(),
        }
    }

    /// Its name in gateway.yaml and in metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Store::Memory(_) => "memory",
            Store::Redis(_) => "redis",
        }
    }
}
