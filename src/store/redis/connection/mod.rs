//! Keeps one connection up and sends the queued requests: normally one call at a time, and everything that arrived meanwhile
//! in the next. When more is queued than one call may carry, a second call is made without waiting for the first.
//!
//! A connection is down until it has been tested; while it is down no request waits for it. It is driven on its worker's own
//! thread, so that no answer wakes another thread.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use tokio::sync::{Mutex as FairMutex, Notify, Semaphore, mpsc};

use super::codec::{BucketAfterCall, Call, Reply, is_same_take};
use super::deny_cache::DenyCache;
use super::fault_injection::Hooks;
use super::handshake::{Connected, connect, load};
use super::heartbeat::Heartbeat;
use super::queue::{PendingTake, Queue, ReplySender};
use super::script;
use super::settings::Settings;
use crate::base::time;
use crate::base::time::{Clock, Micros, Timestamp, timeout};
use crate::store::breaker::{Breaker, CallResult, Change};
use crate::store::call_timer::CallTimer;
use crate::store::error::{Fault, StoreError};
use crate::store::events::{CallReport, Event, EventSink, RunningGateway};
use crate::store::fallback::FallbackShare;
use crate::store::reply::{Source, TakeReply};
use crate::store::span_links::SpanLinks;
use crate::store::worker::Worker;

/// The maximum length of the queue. The last requests of a longer one would not be answered in time anyway.
const QUEUE: usize = 4096;
/// The maximum number of charges in one call, with equal requests counted once: a script blocks the server's other clients.
const CHARGES: usize = 128;
/// The maximum number of requests in one call: they are answered together.
const REQUESTS: usize = 512;
/// How long to wait for an overdue reply, although no request needs it any more, before the connection is closed.
const PATIENCE: Duration = Duration::from_secs(1);
/// When to look at the queue again after the other call held it.
const SOON: Micros = Micros(1_000);
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// What all connections of a store share.
#[derive(Clone, Debug)]
pub struct Shared {
    pub deny_cache: Arc<DenyCache>,
    pub breaker: Arc<Breaker>,
    pub fallback: Arc<FallbackShare>,
    pub this_gateway: Arc<Mutex<RunningGateway>>,
    pub hooks: Hooks,
}

/// When a call is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// As soon as the previous one is answered and a request is queued.
    Next,
    /// At the same time as that one, when more requests are queued than fit into one call.
    Overflow,
}

/// State that the calls on one connection share.
struct Session<'q> {
    queue: FairMutex<&'q mut Queue>,
    /// Whether any call was answered.
    answered: AtomicBool,
}

#[derive(Debug)]
pub struct Connection {
    worker: Worker,
    settings: Settings,
    script: String,
    clock: Clock,
    events: EventSink,
    shared: Shared,
    /// Only the first connection of a gateway sends heartbeats.
    heartbeat: Option<Heartbeat>,
    /// Why it cannot be used; `None` while it is up.
    down: Mutex<Option<StoreError>>,
    queue: mpsc::Sender<PendingTake>,
    /// Notified when the queue is long enough for a second call.
    overflow: Notify,
    /// Taken by [`Connection::run`].
    waiting: Mutex<Option<Queue>>,
}

impl Connection {
    pub fn new(worker: Worker, settings: Settings, clock: Clock, events: EventSink, shared: Shared) -> Connection {
        let (queue, waiting) = mpsc::channel(QUEUE);
        let heartbeat = Heartbeat::new(
            &settings.prefix,
            Arc::clone(&shared.this_gateway),
            Arc::clone(&shared.fallback),
            events.clone(),
        );
        Connection {
            worker,
            settings,
            script: shared.hooks.script(script::take()),
            clock,
            events,
            shared,
            heartbeat: (worker == Worker(0)).then_some(heartbeat),
            down: Mutex::new(Some(StoreError::Unreachable)),
            queue,
            overflow: Notify::new(),
            waiting: Mutex::new(Some(Queue::new(waiting))),
        }
    }

    /// # Errors
    ///
    /// Why the connection is down, if it is.
    pub fn usable(&self) -> Result<(), StoreError> {
        self.down.lock().map_or(Ok(()), Err)
    }

    /// Queues a request. Only for a usable connection.
    ///
    /// # Errors
    ///
    /// When the queue is full, or the connection went down just now.
    pub fn ask(&self, waiting: PendingTake) -> Result<(), StoreError> {
        self.queue.try_send(waiting).map_err(|_| StoreError::Backlog)?;
        if self.queue.max_capacity() - self.queue.capacity() >= CHARGES {
            self.overflow.notify_one();
        }
        // If the connection went down just now, the queue may have been drained before this request was added.
        self.usable()
    }

    /// Drives the connection, forever; `tried` gets a permit after the first attempt.
    pub async fn run(&self, tried: &Semaphore) {
        // A second driver would have nothing to do.
        let Some(mut queue) = self.waiting.lock().take() else { return };
        let mut pause = SHORTEST_PAUSE;
        let mut first = true;
        loop {
            let connected = connect(&self.settings, &self.script).await;
            let up = connected.is_ok();
            *self.down.lock() = connected.as_ref().err().map(|fault| fault.error);
            if up {
                self.shared.deny_cache.invalidate();
                self.publish(self.shared.breaker.reset());
                self.events.send(Event::Up(self.worker));
            }
            if std::mem::take(&mut first) {
                tried.add_permits(1);
            }
            let since = self.clock.now();
            let fault = match connected {
                Ok(connected) => self.serve(connected, &mut queue, &mut pause).await,
                Err(fault) => fault,
            };
            // A connection that lasted was good even if it was not used, so there is no reason to back off.
            if up && Duration::from(self.clock.now().since(since)) > LONGEST_PAUSE {
                pause = SHORTEST_PAUSE;
            }
            self.went_down(fault, &mut queue);
            // Jittered, so that gateways that lost their server together do not reconnect at the same time.
            tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    fn went_down(&self, fault: Fault, queue: &mut Queue) {
        *self.down.lock() = Some(fault.error);
        // A request that was not sent has not run, and need not wait for its deadline.
        while let Some(mut waiting) = queue.try_next() {
            waiting.answer.send(Err(fault.error));
        }
        self.events.send(Event::Down { worker: self.worker, fault });
    }

    /// Makes calls until the connection is no longer usable.
    async fn serve(&self, connected: Connected, queue: &mut Queue, pause: &mut Duration) -> Fault {
        let Connected { connection, mut driver, sha } = connected;
        let heartbeat = async {
            if let Some(heartbeat) = &self.heartbeat {
                heartbeat.keep(connection.clone()).await;
            }
            std::future::pending::<Fault>().await
        };
        let session = Session { queue: FairMutex::new(queue), answered: AtomicBool::new(false) };
        let calls = |turn| self.calls(turn, &session, connection.clone(), sha.clone());
        // In this order: calls write first, and the driver then sends it in the same poll.
        let fault = tokio::select! {
            biased;
            fault = calls(Turn::Next) => fault,
            fault = calls(Turn::Overflow) => fault,
            fault = heartbeat => fault,
            () = &mut driver => Fault::new(StoreError::Closed, "the connection was closed"),
        };
        if session.answered.into_inner() {
            *pause = SHORTEST_PAUSE;
        }
        fault
    }

    /// Makes one call after another, each when its turn comes.
    async fn calls(
        &self,
        turn: Turn,
        session: &Session<'_>,
        mut connection: MultiplexedConnection,
        mut sha: String,
    ) -> Fault {
        let mut batch = Vec::with_capacity(CHARGES);
        loop {
            if turn == Turn::Overflow {
                self.overflow.notified().await;
            }
            {
                let mut queue = session.queue.lock().await;
                if turn == Turn::Overflow && queue.len() < CHARGES {
                    continue;
                }
                self.fill(&mut batch, &mut queue).await;
            }
            batch = self.shared.hooks.gather(batch);
            if let Err(fault) = self.call(&mut batch, &session.queue, &mut connection, &mut sha).await {
                return fault;
            }
            session.answered.store(true, Ordering::Relaxed);
        }
    }

    /// Makes one call, from the queued requests to their answers.
    ///
    /// # Errors
    ///
    /// Only an error that ends the connection.
    async fn call(
        &self,
        batch: &mut Vec<PendingTake>,
        queue: &FairMutex<&mut Queue>,
        connection: &mut MultiplexedConnection,
        sha: &mut String,
    ) -> Result<(), Fault> {
        let started = self.clock.now();
        let sent = self.shared.deny_cache.stamp(started);
        let requests = batch.len();
        let (plans, asked): (Vec<_>, Vec<_>) =
            batch.iter_mut().map(|PendingTake { plan, answer, since, .. }| (&**plan, (*since, answer))).unzip();
        let call = Call::new(plans);
        let timer = CallTimer::new(started, self.settings.timeout);
        let outcome = tokio::select! {
            biased;
            outcome = self.exchange(&call, connection, sha) => outcome,
            never = self.watch(&timer, started, asked, queue) => match never {},
        };
        let ended = self.clock.now();
        let took = ended.since(started);
        let result = if outcome.is_ok() { CallResult::Success } else { CallResult::Failure };
        self.publish(timer.check(&self.shared.breaker, ended));
        self.publish(timer.end(&self.shared.breaker, result, ended));
        let (healed, fault) = match &outcome {
            Ok(reply) if took > self.settings.timeout => {
                (reply.healed, Some(Fault::new(StoreError::Timeout, "the answer came when nobody waited for it")))
            }
            Ok(reply) => (reply.healed, None),
            // An error that ends the connection is reported when it ends.
            Err(fault) => (0, outlived(fault.error).then(|| fault.clone())),
        };
        let callers = batch.iter().filter_map(|waiting| waiting.caller.as_deref());
        let span_links = SpanLinks::of(callers, outcome.as_ref().err().map(|fault| fault.error));
        self.events.send(Event::CallEnded(CallReport { requests, took, healed, fault, span_links }));
        match outcome {
            Ok(Reply { now, settlements, left, .. }) => {
                let known = self.shared.hooks.known_since(sent, || self.shared.deny_cache.stamp(self.clock.now()));
                for BucketAfterCall { key, state, short, reset_after } in left {
                    if let Some(since) = known.filter(|_| short) {
                        self.shared.deny_cache.remember(key, state.clone(), now, since);
                    }
                    self.shared.fallback.observe(key, state, now, reset_after, started);
                }
                for (mut waiting, settlement) in batch.drain(..).zip(settlements) {
                    waiting.answer.send(Ok(Some(TakeReply { now, settlement, evicted: 0, source: Source::Store })));
                }
                Ok(())
            }
            Err(fault) => {
                for mut waiting in batch.drain(..) {
                    waiting.answer.send(Err(fault.error));
                }
                if outlived(fault.error) { Ok(()) } else { Err(fault) }
            }
        }
    }

    /// Answers the requests whose deadline has passed: those of a call made at `now`, and those queued after it. One timer
    /// serves all of them, because one for each costs half a microsecond.
    async fn watch(
        &self,
        timer: &CallTimer,
        mut now: Timestamp,
        mut asked: Vec<(Timestamp, &mut ReplySender)>,
        queue: &FairMutex<&mut Queue>,
    ) -> Infallible {
        let most = self.settings.timeout;
        // A request that arrives later than now is not overdue before `most` has passed.
        let left = |oldest: Option<Timestamp>, now: Timestamp| {
            oldest.map_or(most, |since| Micros(most.0.saturating_sub(now.since(since).0)))
        };
        let mut pause = left(asked.iter().map(|(since, _)| *since).min(), now);
        loop {
            time::sleep_precisely(pause.min(timer.next_check(now)).into()).await;
            now = self.clock.now();
            self.publish(timer.check(&self.shared.breaker, now));
            asked.retain_mut(|(since, answer)| {
                let late = now.since(*since) >= most;
                if late {
                    answer.send(Err(StoreError::Timeout));
                }
                !late
            });
            // The other call may be taking from the queue.
            let Ok(mut queue) = queue.try_lock() else {
                pause = SOON;
                continue;
            };
            let first = loop {
                match queue.overdue(now, most) {
                    Ok(mut late) => late.answer.send(Err(StoreError::Timeout)),
                    Err(first) => break first,
                }
            };
            pause = left(asked.iter().map(|(since, _)| *since).min().or(first), now);
        }
    }

    fn publish(&self, change: Change) {
        match change {
            Change::Opened => self.events.send(Event::BreakerOpened),
            Change::Closed => self.events.send(Event::BreakerClosed),
            Change::None => {}
        }
    }

    async fn exchange(
        &self,
        call: &Call<'_>,
        connection: &mut MultiplexedConnection,
        sha: &mut String,
    ) -> Result<Reply, Fault> {
        let patience = Duration::from(self.settings.timeout) + PATIENCE;
        let overdue = |_| Fault::new(StoreError::Timeout, format!("no answer within {patience:?}"));
        let exchange = async {
            let command = |sha: &str| call.command(sha, &self.settings.prefix, self.shared.hooks.moment(&self.clock));
            let reply = match self.shared.hooks.send(connection, &command(sha)).await {
                // The script did not run: the server was restarted behind a proxy, or its scripts were flushed.
                Err(error) if error.code() == Some("NOSCRIPT") => {
                    *sha = load(connection, &self.script).await?;
                    self.shared.hooks.send(connection, &command(sha)).await
                }
                reply => reply,
            };
            call.settle(&reply?).map_err(|error| Fault::new(error, "the script was answered with something else"))
        };
        timeout(patience, exchange).await.map_err(overdue)?
    }

    /// Waits for a request, and takes with it what else is queued. Requests whose clients have disconnected are left out.
    async fn fill(&self, batch: &mut Vec<PendingTake>, queue: &mut Queue) {
        let (mut charges, most) = (0, self.shared.hooks.requests(REQUESTS));
        let mut add = |batch: &mut Vec<PendingTake>, waiting: PendingTake, now: Timestamp| {
            if let Some(waiting) = waiting.still_there(now, self.settings.timeout) {
                if !batch.last().is_some_and(|last| is_same_take(&last.plan, &waiting.plan)) {
                    charges += waiting.plan.charges().count();
                }
                batch.push(waiting);
            }
            batch.len() < most && charges < CHARGES
        };
        while batch.is_empty() {
            // The sender lives as long as the connection.
            let Some(first) = queue.next().await else { return std::future::pending().await };
            // Every other task on this thread that is ready runs first, so that its request joins this call. Without such a
            // task no time passes.
            tokio::task::yield_now().await;
            let now = self.clock.now();
            let mut more = add(batch, first, now);
            while more && let Some(waiting) = queue.try_next() {
                more = add(batch, waiting, now);
            }
        }
    }
}

/// Whether the connection stays up after this error: it is the server's state, which a new connection would find unchanged.
fn outlived(error: StoreError) -> bool {
    matches!(error, StoreError::OutOfMemory | StoreError::Busy | StoreError::Refused)
}
