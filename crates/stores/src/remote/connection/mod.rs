//! Keeps one connection open and sends the queued requests. Normally one call is under way at a time. A further call is
//! sent if the queue does not fit into one call, or if the call under way takes long.
//!
//! A connection counts as down until it has been tested, and no request waits for a connection that is down. Acts of leases wait while a
//! connection that has ended is made again.

mod act;
mod batch;
mod call;
mod call_parts;
mod lanes;
mod read;
mod reconnect;
mod round_trip;
pub(super) mod timed_holds;

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::{Mutex as FairMutex, Notify, mpsc, watch};

use super::deny_cache::DenyCache;
use super::fault_injection::Hooks;
use super::heartbeat::{ConnectedWorkers, Heartbeat};
use super::holds::{ConnectionNumber, WorkerHolds};
use super::queue::{PendingTake, Queue};
use super::settings::Settings;
use super::transport::Transport;
use crate::breaker::{Breaker, Change};
use crate::error::{Fault, StoreError};
use crate::events::{Event, EventSink, RunningGateway};
use crate::fallback::FallbackShare;
use crate::store_clock::StoreClock;
use crate::worker::Worker;
use base::host_name::host_name;
use base::time::{Clock, Micros, Timestamp};

/// The maximum length of the queue. The last requests of a longer queue would be answered too late.
const QUEUE: usize = 4096;

/// The state that all connections of a store share.
#[derive(Clone, Debug)]
pub struct StoreState {
    pub deny_cache: Arc<DenyCache>,
    pub breaker: Arc<Breaker>,
    pub fallback: Arc<FallbackShare>,
    pub store_clock: Arc<StoreClock>,
    pub this_gateway: Arc<Mutex<RunningGateway>>,
    /// The random name of this gateway in heartbeats.
    pub gateway_name: [u8; 8],
    /// Whether connections send no heartbeats, so that this gateway does not count among those that share the store.
    pub is_silent: Arc<AtomicBool>,
    /// When the server last answered acts, or a question of a connection without heartbeats, as a [`Timestamp`]. 0 if it never did.
    pub heard: Arc<AtomicU64>,
    pub hooks: Hooks,
}

impl StoreState {
    pub fn new(settings: &Settings, clock: &Clock, hooks: Hooks) -> StoreState {
        let store_clock = Arc::new(StoreClock::default());
        StoreState {
            deny_cache: Arc::new(DenyCache::new()),
            breaker: Arc::new(Breaker::new(settings.breaker)),
            fallback: Arc::new(FallbackShare::new(settings.gateways, clock.clone(), Arc::clone(&store_clock))),
            store_clock,
            this_gateway: Arc::new(Mutex::new(RunningGateway { host: host_name(), configuration: String::new() })),
            // The standard library gives a `RandomState` random keys.
            gateway_name: RandomState::new().hash_one(0).to_le_bytes(),
            is_silent: Arc::default(),
            heard: Arc::default(),
            hooks,
        }
    }
}

/// A connection that is up.
#[derive(Clone, Debug)]
pub(super) struct OpenLink<L> {
    link: L,
    /// Gets a fault after which the connection must be closed.
    failed: mpsc::Sender<Fault>,
}

/// The connection, for what is not queued.
#[derive(Clone, Debug)]
enum LinkState<L> {
    Up(OpenLink<L>),
    /// The connection is made, for the first time or since it has ended.
    Connecting,
    /// The last attempt to make it has failed.
    Away(StoreError),
}

#[derive(Debug)]
pub(crate) struct Connection<T: Transport> {
    worker: Worker,
    transport: Arc<T>,
    /// The longest time that a request waits for a decision.
    timeout: Micros,
    clock: Clock,
    events: EventSink,
    shared: StoreState,
    /// The heartbeats, which only the first connected worker sends.
    heartbeat: Heartbeat,
    /// The reason why the connection is down. `None` while the connection is up.
    down: Mutex<Option<StoreError>>,
    /// The moment at which the connection was last made, as a [`Timestamp`].
    connected_at: AtomicU64,
    /// When acts, or a question of a connection without heartbeats, were last answered on this connection.
    heard: AtomicU64,
    queue: mpsc::Sender<PendingTake>,
    /// Notified when a request arrives and a further call may be sent.
    further: Notify,
    /// The moment, as a [`Timestamp`], from which every new request may cause a further call.
    further_from: AtomicU64,
    /// The connection, for reads and acts besides the calls.
    link: watch::Sender<LinkState<T::Link>>,
    /// Held during a read, because the replies to several reads could be too long together.
    reading: FairMutex<()>,
    /// The slots that the requests of this worker hold, on all nodes of a cluster.
    pub(super) holds: Arc<WorkerHolds>,
    /// The number of the connection that was made last.
    number: Mutex<ConnectionNumber>,
    /// The queue. [`Connection::run`] takes it.
    waiting: Mutex<Option<Queue>>,
}

impl<T: Transport> Connection<T> {
    pub(crate) fn new(
        holds: Arc<WorkerHolds>,
        transport: Arc<T>,
        timeout: Micros,
        clock: Clock,
        events: EventSink,
        shared: StoreState,
        connected: Arc<ConnectedWorkers>,
    ) -> Connection<T> {
        let worker = holds.worker;
        let (queue, waiting) = mpsc::channel(QUEUE);
        let heartbeat = Heartbeat::new(
            worker,
            connected,
            shared.gateway_name,
            Arc::clone(&shared.this_gateway),
            Arc::clone(&shared.fallback),
            events.clone(),
        );
        Connection {
            worker,
            transport,
            timeout,
            clock,
            events,
            shared,
            heartbeat,
            down: Mutex::new(Some(StoreError::Unreachable)),
            connected_at: AtomicU64::new(0),
            heard: AtomicU64::new(0),
            queue,
            further: Notify::new(),
            further_from: AtomicU64::new(u64::MAX),
            link: watch::Sender::new(LinkState::Connecting),
            reading: FairMutex::default(),
            holds,
            number: Mutex::default(),
            waiting: Mutex::new(Some(Queue::new(waiting))),
        }
    }

    /// Whether requests can be sent on the connection.
    ///
    /// # Errors
    ///
    /// Returns the reason why the connection is not up.
    pub(crate) fn usable(&self) -> Result<(), StoreError> {
        self.down.lock().map_or(Ok(()), Err)
    }

    /// Returns the time at which the connection was last made.
    pub(crate) fn connected_at(&self) -> Timestamp {
        Timestamp(self.connected_at.load(Ordering::Relaxed))
    }

    /// Whether an attempt to make the connection has failed since it ended.
    pub(crate) fn is_away(&self) -> bool {
        matches!(*self.link.borrow(), LinkState::Away(_))
    }

    /// Waits until the connection is up, or an attempt to make it has failed, and returns it.
    ///
    /// # Errors
    ///
    /// Returns the reason why there is no connection.
    pub(super) async fn link(&self) -> Result<OpenLink<T::Link>, StoreError> {
        let mut link = self.link.subscribe();
        // The sender lives as long as this value.
        match link.wait_for(|link| !matches!(link, LinkState::Connecting)).await.as_deref() {
            Ok(LinkState::Up(open)) => Ok(open.clone()),
            Ok(LinkState::Away(error)) => Err(*error),
            Ok(LinkState::Connecting) | Err(_) => Err(StoreError::Closed),
        }
    }

    /// Adds a request to the queue of a usable connection.
    ///
    /// # Errors
    ///
    /// When the queue is full, or the connection has gone down.
    pub(crate) fn ask(&self, waiting: PendingTake) -> Result<(), StoreError> {
        let since = waiting.since;
        self.queue.try_send(waiting).map_err(|_| StoreError::Backlog)?;
        // One notification is enough: the task then checks the queue itself.
        let is_long = self.queue.max_capacity() - self.queue.capacity() == T::CALLS.charges;
        if is_long || since.0 >= self.further_from.load(Ordering::Relaxed) {
            self.further.notify_one();
        }
        // If the connection went down just now, nobody answers this request.
        self.usable()
    }

    /// Answers the queued requests whose deadline has passed. Returns the time since which the first remaining request
    /// waits.
    fn answer_overdue(&self, queue: &mut Queue, now: Timestamp) -> Option<Timestamp> {
        let (unsent, first) = queue.answer_overdue(now, self.timeout);
        self.report_unsent(unsent);
        first
    }

    fn report_unsent(&self, requests: usize) {
        if requests > 0 {
            self.events.send(Event::Unsent { requests, node: None });
        }
    }

    fn publish(&self, change: Change) {
        match change {
            Change::Opened => self.events.send(Event::BreakerOpened),
            Change::Closed => self.events.send(Event::BreakerClosed),
            Change::None => {}
        }
    }
}
