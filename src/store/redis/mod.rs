//! Keeps buckets in Redis, where many gateways share them.
//!
//! One script does all buckets of many requests in one act, on the server's clock; nothing is granted here, and nothing
//! is held that another gateway could want. What cannot be paid yet in any case is refused without asking. Each worker
//! has one connection and one queue: what arrives while a call is under way travels together in the next one, so no request
//! waits for a timer.
//!
//! Invariants: a call whose bytes may have left is never sent again, except once on an answer that proves that it did
//! not run; no decision waits longer than `timeout`; one that was given up before its bytes were written costs nothing.

pub mod codec;
mod connect;
mod connection;
mod deny_cache;
pub mod fault_injection;
mod heartbeat;
pub mod inspect;
mod queue;
mod read_limit;
pub mod script;
mod settings;
mod url;

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Semaphore;

use super::breaker::{Breaker, CallResult, Change, Permit};
use super::caller::Caller;
use super::error::StoreError;
use super::events::{Event, EventSink, RunningGateway};
use super::fallback::FallbackShare;
use super::reply::{Source, TakeReply};
use super::worker::Worker;
use crate::base::host_name::host_name;
use crate::base::time::Clock;
use crate::limit::charge::Plan;
use connection::{Connection, Shared};
use deny_cache::DenyCache;
use fault_injection::Hooks;
use queue::{PendingTake, ReplySender};
pub use settings::{LONGEST_PREFIX, Settings, Tls};
pub use url::Url;

#[derive(Debug)]
pub struct Redis {
    /// What decides while Redis gives no answer.
    pub fallback: Arc<FallbackShare>,
    connections: Box<[Connection]>,
    /// One permit for each worker that has been first_attempts.
    first_attempts: Semaphore,
    /// What the others are told that this gateway runs.
    this_gateway: Arc<Mutex<RunningGateway>>,
    deny_cache: Arc<DenyCache>,
    breaker: Arc<Breaker>,
    clock: Clock,
    events: EventSink,
}

impl Redis {
    pub fn new(settings: Settings, workers: usize, clock: Clock, events: EventSink) -> Redis {
        Redis::with(Hooks::default(), settings, workers, clock, events)
    }

    /// As a test chooses.
    pub fn with(hooks: Hooks, settings: Settings, workers: usize, clock: Clock, events: EventSink) -> Redis {
        let shared = Shared {
            deny_cache: Arc::new(DenyCache::new()),
            breaker: Arc::new(Breaker::new(settings.breaker)),
            fallback: Arc::new(FallbackShare::new(settings.gateways, clock.clone())),
            this_gateway: Arc::new(Mutex::new(RunningGateway { host: host_name(), configuration: String::new() })),
            hooks,
        };
        let connection =
            |worker| Connection::new(Worker(worker), settings.clone(), clock.clone(), events.clone(), shared.clone());
        let connections = (0..workers).map(connection).collect();
        let Shared { deny_cache, breaker, fallback, this_gateway, .. } = shared;
        Redis {
            fallback,
            connections,
            first_attempts: Semaphore::new(0),
            this_gateway,
            deny_cache,
            breaker,
            clock,
            events,
        }
    }

    pub async fn run(&self, worker: Worker) {
        if let Some(connection) = self.connections.get(worker.0) {
            connection.run(&self.first_attempts).await;
        }
    }

    pub async fn first_attempt(&self) {
        let workers = u32::try_from(self.connections.len()).unwrap_or(u32::MAX);
        // It is never closed; and if it were, there would be nothing to wait for.
        drop(self.first_attempts.acquire_many(workers).await);
    }

    pub async fn take(
        &self,
        worker: Worker,
        plan: &Plan,
        caller: Option<Arc<dyn Caller>>,
    ) -> Result<Option<TakeReply>, StoreError> {
        let connection = self.connections.get(worker.0).ok_or(StoreError::Unreachable)?;
        // A connection that is down knows nothing any more, and nobody waits for it: that is not the breaker's business.
        connection.usable()?;
        let now = self.clock.now();
        if let Some((now, settlement)) = self.deny_cache.refuse(plan, now) {
            return Ok(Some(TakeReply { now, settlement, evicted: 0, source: Source::Cached }));
        }
        let permit = self.breaker.acquire(now);
        if permit == Permit::Refused {
            return Err(StoreError::BreakerOpen);
        }
        let pending = Pending { redis: self, permit, answered: false };
        let (answer, answered) = ReplySender::new();
        connection.ask(PendingTake { plan: Box::new(plan.clone()), answer, caller, since: now })?;
        // The connection says so when it takes too long. If it says nothing, it was lost with the call on its way.
        let taken = answered.await.unwrap_or(Err(StoreError::Closed));
        // Nothing was learnt from one that was not pending for any more.
        if !matches!(taken, Ok(None)) {
            pending.done(if taken.is_ok() { CallResult::Success } else { CallResult::Failure });
        }
        taken
    }

    pub fn announce(&self, configuration: &str) {
        configuration.clone_into(&mut self.this_gateway.lock().configuration);
    }

    /// From here on every bucket is pending for again.
    pub fn invalidate(&self) {
        self.deny_cache.invalidate();
    }

    fn publish(&self, change: Change) {
        match change {
            Change::Opened => self.events.send(Event::BreakerOpened),
            Change::Closed => self.events.send(Event::BreakerClosed),
            Change::None => {}
        }
    }
}

/// A request that was given a permit, and gives it back if it never comes to an answer: its client may go away.
struct Pending<'r> {
    redis: &'r Redis,
    permit: Permit,
    answered: bool,
}

impl Pending<'_> {
    fn done(mut self, result: CallResult) {
        self.answered = true;
        let Redis { breaker, clock, .. } = self.redis;
        // Calls are recorded by the connection; a request only as the probe of an open breaker.
        if self.permit == Permit::Probe {
            self.redis.publish(breaker.record(self.permit, result, clock.now()));
        }
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        if !self.answered {
            self.redis.breaker.release(self.permit);
        }
    }
}
