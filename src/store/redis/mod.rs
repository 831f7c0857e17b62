//! Keeps buckets in Redis, where many gateways share them.
//!
//! One script does all buckets of many requests in one act, on the server's clock; nothing is granted here, and nothing
//! is held that another gateway could want. What cannot be paid yet in any case is refused without asking. Each lane
//! has one link and one queue: what arrives while a call is under way travels together in the next one, so no request
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

use super::breaker::{Breaker, Change, Permit};
use super::caller::Caller;
use super::error::StoreError;
use super::fallback::FallbackShare;
use super::reply::{Source, Taken};
use super::report::{Event, Report, Running};
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
    pub local: Arc<FallbackShare>,
    links: Box<[Connection]>,
    /// One permit for each lane that has been tried.
    tried: Semaphore,
    /// What the others are told that this gateway runs.
    running: Arc<Mutex<Running>>,
    envelope: Arc<DenyCache>,
    breaker: Arc<Breaker>,
    clock: Clock,
    report: Report,
}

impl Redis {
    pub fn new(settings: Settings, lanes: usize, clock: Clock, report: Report) -> Redis {
        Redis::with(Hooks::default(), settings, lanes, clock, report)
    }

    /// As a test chooses.
    pub fn with(hooks: Hooks, settings: Settings, lanes: usize, clock: Clock, report: Report) -> Redis {
        let shared = Shared {
            envelope: Arc::new(DenyCache::new()),
            breaker: Arc::new(Breaker::new(settings.breaker)),
            local: Arc::new(FallbackShare::new(settings.gateways, clock.clone())),
            running: Arc::new(Mutex::new(Running { host: host_name(), configuration: String::new() })),
            hooks,
        };
        let link =
            |lane| Connection::new(Worker(lane), settings.clone(), clock.clone(), report.clone(), shared.clone());
        let links = (0..lanes).map(link).collect();
        let Shared { envelope, breaker, local, running, .. } = shared;
        Redis { local, links, tried: Semaphore::new(0), running, envelope, breaker, clock, report }
    }

    pub async fn run(&self, lane: Worker) {
        if let Some(link) = self.links.get(lane.0) {
            link.run(&self.tried).await;
        }
    }

    pub async fn tried(&self) {
        let lanes = u32::try_from(self.links.len()).unwrap_or(u32::MAX);
        // It is never closed; and if it were, there would be nothing to wait for.
        drop(self.tried.acquire_many(lanes).await);
    }

    pub async fn take(
        &self,
        lane: Worker,
        plan: &Plan,
        caller: Option<Arc<dyn Caller>>,
    ) -> Result<Option<Taken>, StoreError> {
        let link = self.links.get(lane.0).ok_or(StoreError::Unreachable)?;
        // A link that is down knows nothing any more, and nobody waits for it: that is not the breaker's business.
        link.usable()?;
        let now = self.clock.now();
        if let Some((now, settlement)) = self.envelope.refuse(plan, now) {
            return Ok(Some(Taken { now, settlement, evicted: 0, source: Source::Cached }));
        }
        let leave = self.breaker.ask(now);
        if leave == Permit::Refused {
            return Err(StoreError::BreakerOpen);
        }
        let asked = Asked { redis: self, leave, answered: false };
        let (answer, answered) = ReplySender::new();
        link.ask(PendingTake { plan: Box::new(plan.clone()), answer, caller, since: now })?;
        // The link says so when it takes too long. If it says nothing, it was lost with the call on its way.
        let taken = answered.await.unwrap_or(Err(StoreError::Closed));
        // Nothing was learnt from one that was not asked for any more.
        if !matches!(taken, Ok(None)) {
            asked.done(taken.is_ok());
        }
        taken
    }

    pub fn runs(&self, configuration: &str) {
        configuration.clone_into(&mut self.running.lock().configuration);
    }

    /// From here on every bucket is asked for again.
    pub fn forget(&self) {
        self.envelope.forget();
    }

    fn tell(&self, change: Change) {
        match change {
            Change::Opened => self.report.tell(Event::BreakerOpened),
            Change::Closed => self.report.tell(Event::BreakerClosed),
            Change::None => {}
        }
    }
}

/// A request that was given leave, and gives it back if it never comes to an answer: its client may go away.
struct Asked<'r> {
    redis: &'r Redis,
    leave: Permit,
    answered: bool,
}

impl Asked<'_> {
    fn done(mut self, good: bool) {
        self.answered = true;
        let Redis { breaker, clock, .. } = self.redis;
        // As long as nothing has failed, nothing is to be told, and no clock to be read.
        if !good || breaker.is_troubled() {
            self.redis.tell(breaker.answered(self.leave, good, clock.now()));
        }
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        if !self.answered {
            self.redis.breaker.returned(self.leave);
        }
    }
}
