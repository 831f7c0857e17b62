//! Stores buckets on a server that many gateways share: the parts that do not depend on the kind of server.
//!
//! A [`Transport`] decides many requests atomically, by the server's clock. A request that no state of the store can
//! grant is refused without a call. Each worker has one connection and one queue, or shares them. Requests that arrive
//! during a call are sent together in the next one.
//!
//! Invariants: a call whose bytes may have been sent is repeated only once, and only after a reply has proved that it
//! did not run. No decision waits longer than `timeout`. A request that is abandoned before its bytes are written costs
//! nothing.

pub(crate) mod acts;
#[cfg(test)]
mod ban_tests;
mod call_timer;
pub(super) mod connection;
pub(super) mod deny_cache;
#[cfg(test)]
mod fake_transport;
pub mod fault_injection;
pub(crate) mod heartbeat;
pub(crate) mod holds;
pub(crate) mod login;
mod pending_reply;
mod queue;
#[cfg(test)]
mod raise_tests;
mod settings;
pub mod transport;
mod undone_charges;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Semaphore;

use super::breaker::{Breaker, Permit};
use super::caller::Caller;
use super::error::StoreError;
use super::events::{EventSink, RunningGateway};
use super::fallback::FallbackShare;
use super::reply::{Source, TakeReply};
use super::reservation::Reservation;
use super::store_clock::StoreClock;
use super::timed_settlement::TimedSettlement;
use super::worker::Worker;
use base::time::{Clock, Micros, Timestamp};
use connection::Connection;
pub(crate) use connection::StoreState;
use deny_cache::DenyCache;
use fault_injection::Hooks;
use heartbeat::ConnectedWorkers;
use holds::{GatewaySlots, WorkerHolds};
use ledger::bucket_key::BucketKey;
use ledger::charge::Plan;
use ledger::holds::{self as holds_protocol, TimedHold};
use pending_reply::PendingReply;
pub(crate) use pending_reply::WaitPeriod;
pub(crate) use queue::Route;
use queue::{Attempt, PendingTake, ReplySender};
pub use settings::Settings;
use transport::{ReadStates, Transport};

/// How long the start of the process waits for connections.
const LONGEST_START: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub struct Remote<T: Transport> {
    /// Makes the connections to the server, and the calls on them.
    pub transport: Arc<T>,
    /// Decides requests in this process while the store gives no answer.
    pub fallback: Arc<FallbackShare>,
    connections: Box<[Connection<T>]>,
    /// The slots that requests hold, for each connection.
    holds: Box<[Arc<WorkerHolds>]>,
    /// One permit for each connection whose first attempt has ended.
    first_attempts: Semaphore,
    /// What this gateway announces to the other gateways.
    this_gateway: Arc<Mutex<RunningGateway>>,
    deny_cache: Arc<DenyCache>,
    breaker: Arc<Breaker>,
    /// Whether new connections send no heartbeats.
    is_silent: Arc<AtomicBool>,
    /// When the server last answered acts, as a [`Timestamp`].
    heard: Arc<AtomicU64>,
    clock: Clock,
    store_clock: Arc<StoreClock>,
    events: EventSink,
}

impl<T: Transport> Remote<T> {
    /// Makes a store on this server, with this number of connections. `hooks` are the faults that a test injects.
    pub fn new(
        transport: T,
        settings: Settings,
        hooks: Hooks,
        connections: usize,
        clock: Clock,
        events: EventSink,
    ) -> Remote<T> {
        let state = StoreState::new(&settings, &clock, hooks);
        let name = state.gateway_name;
        let holds = |worker| WorkerHolds::new(name, Worker(worker), 1, events.clone(), &state.fallback);
        let holds: Vec<_> = (0..connections).map(holds).collect();
        Remote::sharing(state, transport, settings, &holds, clock, events)
    }

    /// Makes a store that shares its state with other stores, as the nodes of a cluster do. Each worker in `holds` has
    /// one connection.
    pub fn sharing(
        shared: StoreState,
        transport: T,
        settings: Settings,
        holds: &[Arc<WorkerHolds>],
        clock: Clock,
        events: EventSink,
    ) -> Remote<T> {
        let transport = Arc::new(transport);
        let connected: Arc<ConnectedWorkers> = Arc::default();
        let connection = |holds: &Arc<WorkerHolds>| {
            let (transport, shared) = (Arc::clone(&transport), shared.clone());
            let (clock, events, connected) = (clock.clone(), events.clone(), Arc::clone(&connected));
            Connection::new(Arc::clone(holds), transport, settings.timeout, clock, events, shared, connected)
        };
        let connections = holds.iter().map(connection).collect();
        let StoreState { deny_cache, breaker, fallback, store_clock, this_gateway, is_silent, heard, .. } = shared;
        Remote {
            transport,
            fallback,
            connections,
            holds: holds.into(),
            first_attempts: Semaphore::new(0),
            this_gateway,
            deny_cache,
            breaker,
            is_silent,
            heard,
            clock,
            store_clock,
            events,
        }
    }

    /// Drives the connection of a worker. Returns at once if the worker has no connection of its own.
    pub async fn run(&self, worker: Worker) {
        let Some(connection) = self.connections.get(worker.0) else { return };
        let connected = connection.run(&self.first_attempts);
        if worker == Worker(0) {
            tokio::join!(self.transport.run(&self.events), connected);
        } else {
            connected.await;
        }
    }

    pub async fn first_attempt(&self) {
        let connections = u32::try_from(self.connections.len()).unwrap_or(u32::MAX);
        // The start continues even after a timeout.
        let attempts = self.first_attempts.acquire_many(connections);
        drop(tokio::time::timeout(LONGEST_START, attempts).await);
    }

    /// Decides a plan. Returns `None` if the client disconnected before the plan was sent. Waits at most
    /// `answer_within`, and at most the store's timeout.
    ///
    /// # Errors
    /// Returns the reason why the store has not decided.
    pub async fn take(
        &self,
        worker: Worker,
        plan: &Plan,
        caller: Option<Arc<dyn Caller>>,
        answer_within: Option<Micros>,
    ) -> Result<Option<TakeReply>, StoreError> {
        // While the connection is down, no cache entry is valid and no request waits.
        let connection = self.usable_connection(worker)?;
        let now = self.clock.now();
        if let Some((now, settlement)) = self.deny_cache.refuse(plan, now) {
            let reservation = Reservation::default();
            return Ok(Some(TakeReply { now, settlement, evicted: 0, source: Source::Cached, reservation }));
        }
        let waiting = WaitPeriod { since: now, until: answer_within.map(|most| now.plus(most)) };
        self.query_on(connection, plan, caller, waiting, Route::Owner, None).await
    }

    /// Decides a plan as [`Remote::take`] does, for a timed hold.
    ///
    /// # Errors
    /// In the same cases as [`Remote::take`].
    pub async fn take_timed(
        &self,
        worker: Worker,
        plan: &Plan,
        caller: Option<Arc<dyn Caller>>,
        answer_within: Option<Micros>,
        hold: TimedHold,
    ) -> Result<Option<TakeReply>, StoreError> {
        let since = self.clock.now();
        let waiting = WaitPeriod { since, until: answer_within.map(|most| since.plus(most)) };
        self.query(worker, plan, caller, waiting, Route::Owner, Some(hold)).await
    }

    /// Settles for a timed hold as [`Remote::settle_timed`] does, and waits at most for the store's timeout.
    ///
    /// # Errors
    /// In the same cases as [`Remote::settle_timed`].
    pub async fn settle_timed_now(
        &self,
        worker: Worker,
        call: holds_protocol::Call,
    ) -> Result<Vec<TimedSettlement>, StoreError> {
        let waiting = WaitPeriod { since: self.clock.now(), until: None };
        self.settle_timed(worker, call, waiting, Route::Owner).await
    }

    /// Settles for a timed hold. Returns the result at each bucket of the call, in its order.
    ///
    /// # Errors
    /// Returns the reason why the store has not answered.
    pub async fn settle_timed(
        &self,
        worker: Worker,
        call: holds_protocol::Call,
        waiting: WaitPeriod,
        route: Route,
    ) -> Result<Vec<TimedSettlement>, StoreError> {
        let connection = self.usable_connection(worker)?;
        let timed = Some(Box::new(call));
        let reply = self.query_on(connection, &Plan::default(), None, waiting, route, timed).await?;
        // Without a caller, no call is left out.
        Ok(connection::timed_holds::settled(&reply.ok_or(StoreError::Unsent)?.settlement))
    }

    /// Decides a plan as [`Remote::take`] does, but without the deny cache. `waiting` is the period in which the
    /// request waits. `route` says why this server is asked. `hold` is what takes in the worker's place.
    ///
    /// # Errors
    /// In the same cases as [`Remote::take`].
    pub async fn query(
        &self,
        worker: Worker,
        plan: &Plan,
        caller: Option<Arc<dyn Caller>>,
        waiting: WaitPeriod,
        route: Route,
        hold: Option<TimedHold>,
    ) -> Result<Option<TakeReply>, StoreError> {
        let connection = self.usable_connection(worker)?;
        // A part of a plan may hold nothing.
        let timed = hold.filter(|_| plan.holds()).map(|hold| Box::new(hold.take(plan)));
        self.query_on(connection, plan, caller, waiting, route, timed).await
    }

    /// Whether a worker's connection can be used.
    ///
    /// # Errors
    /// Returns the reason why the connection cannot be used.
    pub fn usable(&self, worker: Worker) -> Result<(), StoreError> {
        self.usable_connection(worker).map(drop)
    }

    /// Returns the connection of a worker, if it can be used.
    fn usable_connection(&self, worker: Worker) -> Result<&Connection<T>, StoreError> {
        let connection = self.connection(worker)?;
        connection.usable()?;
        Ok(connection)
    }

    /// Returns the connection of a worker. Several workers may share one.
    fn connection(&self, worker: Worker) -> Result<&Connection<T>, StoreError> {
        let index = worker.0.checked_rem(self.connections.len()).ok_or(StoreError::Unreachable)?;
        self.connections.get(index).ok_or(StoreError::Unreachable)
    }

    async fn query_on(
        &self,
        connection: &Connection<T>,
        plan: &Plan,
        caller: Option<Arc<dyn Caller>>,
        WaitPeriod { since, until }: WaitPeriod,
        route: Route,
        timed: Option<Box<holds_protocol::Call>>,
    ) -> Result<Option<TakeReply>, StoreError> {
        let permit = self.breaker.acquire(since);
        if permit == Permit::Refused {
            return Err(StoreError::BreakerOpen);
        }
        let Remote { breaker, clock, events, .. } = self;
        let connected = connection.connected_at();
        let mut pending = PendingReply { breaker, clock, events, permit, connected, result: None };
        let holds = plan.holds();
        let (answer, result) = ReplySender::new();
        let plan = Box::new(plan.clone());
        connection.ask(PendingTake { plan, answer, caller, since, attempt: Attempt::First, holds, route, timed })?;
        pending.result = Some(result);
        pending.wait(until).await
    }

    /// Reads the states of buckets on a worker's connection, and changes nothing. Waits at most for the store's timeout.
    ///
    /// # Errors
    /// Returns the reason why the states could not be read.
    pub async fn read(&self, worker: Worker, keys: &[BucketKey], route: Route) -> Result<ReadStates, StoreError> {
        let connection = self.usable_connection(worker)?;
        let permit = self.breaker.acquire(self.clock.now());
        if permit == Permit::Refused {
            return Err(StoreError::BreakerOpen);
        }
        // Only a call shows whether the store decides, so a read is never the probe.
        self.breaker.release(permit);
        connection.read(keys, route).await
    }

    /// Decides a plan in this process, with this gateway's share of each limit.
    pub fn take_fallback(&self, worker: Worker, plan: &Plan) -> TakeReply {
        self.fallback.take(plan, &self.slots(worker))
    }

    /// Ends all slots of this gateway, and waits until the store knows it.
    pub async fn end_all_slots(&self) {
        WorkerHolds::end_all(&self.holds).await;
    }

    /// Waits until the store knows what the requests of this gateway hold.
    pub async fn all_reported(&self) {
        WorkerHolds::all_reported(&self.holds).await;
    }

    /// Holds the slots that a plan asks for although the store has not granted them.
    pub fn hold(&self, worker: Worker, plan: &Plan) -> Reservation {
        self.slots(worker).hold_all(plan)
    }

    /// Returns the slots of all workers, for a request of this worker.
    fn slots(&self, Worker(worker): Worker) -> GatewaySlots<'_, impl Fn(&BucketKey) -> usize> {
        // Several workers may share a connection.
        let worker = worker.checked_rem(self.holds.len()).unwrap_or_default();
        GatewaySlots { workers: &self.holds, worker, part: |_: &BucketKey| 0, now: self.clock.now() }
    }

    pub fn announce(&self, configuration: &str) {
        configuration.clone_into(&mut self.this_gateway.lock().configuration);
    }

    /// Converts a time of this process's clock to a time of the store's clock.
    pub fn clock_at(&self, ours: Timestamp) -> Timestamp {
        self.store_clock.at(ours)
    }

    /// Removes what is cached about buckets.
    pub fn invalidate(&self) {
        self.deny_cache.invalidate();
    }
}
