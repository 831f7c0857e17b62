//! WHERE BUCKETS LIVE: takes plans, all or nothing, in one act.
//!
//! Every store answers with the time that it decided by and the level of every bucket that was asked. A store never logs
//! or counts: it returns what happened to those who asked, and reports what happens beside them.

pub mod breaker;
mod caller;
mod error;
mod fallback;
pub mod memory;
pub mod redis;
mod reply;
mod report;
mod settings;
pub mod span_links;
mod worker;

use std::sync::Arc;

use crate::base::time::Clock;
use crate::limit::charge::Plan;
pub use caller::Caller;
pub use error::{Fault, StoreError};
use memory::Memory;
use redis::Redis;
pub use reply::{Source, Taken};
pub use report::{Called, Event, GATEWAY_COUNTS, Report, Running};
pub use settings::Settings;
pub use worker::Worker;

/// The stores. To add one: its file, and an arm in each `match` here.
#[derive(Debug)]
pub enum Store {
    Memory(Memory),
    Redis(Redis),
}

impl Store {
    /// Opens a store for so many lanes. One that is elsewhere is not asked for yet: that is for [`Store::run`].
    pub fn open(settings: &Settings, lanes: usize, clock: Clock, report: Report) -> Store {
        match settings {
            Settings::Memory(settings) => Store::Memory(Memory::new(settings, clock)),
            Settings::Redis(settings) => Store::Redis(Redis::new(settings.clone(), lanes, clock, report)),
        }
    }

    /// Keeps a lane's link up, for ever. To be run on the lane's own thread, once.
    pub async fn run(&self, lane: Worker) {
        match self {
            Store::Memory(_) => {}
            Store::Redis(redis) => redis.run(lane).await,
        }
    }

    /// Waits until every lane has been tried once, whatever came of it.
    pub async fn tried(&self) {
        match self {
            Store::Memory(_) => {}
            Store::Redis(redis) => redis.tried().await,
        }
    }

    /// Decides a plan, all or nothing. None when the caller had gone before the store was asked: then it spends nothing.
    pub async fn take(
        &self,
        lane: Worker,
        plan: &Plan,
        caller: Option<Arc<dyn Caller>>,
    ) -> Result<Option<Taken>, StoreError> {
        match self {
            Store::Memory(memory) => Ok(Some(memory.take(plan))),
            Store::Redis(redis) => redis.take(lane, plan, caller).await,
        }
    }

    /// Decides a plan when [`Store::take`] has given no answer, by this gateway's share.
    pub fn take_locally(&self, plan: &Plan) -> Taken {
        match self {
            Store::Memory(memory) => memory.take(plan),
            Store::Redis(redis) => redis.local.take(plan),
        }
    }

    /// From here on this gateway runs the configuration with this hash, and tells the others.
    pub fn runs(&self, configuration: &str) {
        match self {
            Store::Memory(_) => {}
            Store::Redis(redis) => redis.runs(configuration),
        }
    }

    /// Forgets what it knows without asking: other numbers hold from here on. What was spent stays spent.
    pub fn forget(&self) {
        match self {
            Store::Memory(_) => {}
            Store::Redis(redis) => redis.forget(),
        }
    }

    /// Frees what need not be kept any more. To be called every second or so.
    pub fn sweep(&self) {
        match self {
            Store::Memory(memory) => memory.sweep(),
            Store::Redis(redis) => redis.local.sweep(),
        }
    }

    /// How many buckets are kept here.
    pub fn buckets(&self) -> usize {
        match self {
            Store::Memory(memory) => memory.buckets(),
            Store::Redis(redis) => redis.local.buckets(),
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
