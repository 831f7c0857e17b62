//! Keeps one connection up, and sends what waits for it: one call at a time, everything that came meanwhile in the next.
//! Where that is more than a call may carry, a second one does not wait for the first.
//!
//! A link is down until a connection has been shown to work; while it is down nobody waits. It is driven on its worker's
//! own thread, so that no request's answer wakes another thread.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use tokio::sync::{Mutex as FairMutex, Notify, Semaphore, mpsc};

use super::codec::{BucketAfterCall, Call, Reply, is_same_take};
use super::connect::{Connected, connect, load};
use super::deny_cache::DenyCache;
use super::fault_injection::Hooks;
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

/// The most that wait for one link. Beyond it the last would not be answered in time anyway.
const QUEUE: usize = 4096;
/// The most charges of one call, with equal requests counted once: a script holds up everybody else who asks that server.
const CHARGES: usize = 128;
/// The most requests of one call: they are answered together.
const REQUESTS: usize = 512;
/// How long an overdue answer is waited for, although nobody wants it any more, before the connection is given up.
const PATIENCE: Duration = Duration::from_secs(1);
/// After which somebody else has taken from the queue.
const SOON: Micros = Micros(1_000);
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// What all links of a store have in common.
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
    /// As soon as the one before is answered, and somebody waits.
    Next,
    /// Beside that one, when so many wait that they would not fit into the next.
    Overflow,
}

/// What the calls on one connection share.
struct Session<'q> {
    queue: FairMutex<&'q mut Queue>,
    /// Whether any was answered.
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
    /// One link tells of the gateway, for all of them.
    heartbeat: Option<Heartbeat>,
    /// Why it cannot be asked.
    down: Mutex<Option<StoreError>>,
    queue: mpsc::Sender<PendingTake>,
    /// So many wait that a call is worth it although one is under way.
    overflow: Notify,
    /// For whoever drives the link.
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

    /// Why it cannot be asked, if it cannot.
    pub fn usable(&self) -> Result<(), StoreError> {
        self.down.lock().map_or(Ok(()), Err)
    }

    /// Puts a request in the queue, unless it would wait there in vain. Only for a link that is usable.
    pub fn ask(&self, waiting: PendingTake) -> Result<(), StoreError> {
        self.queue.try_send(waiting).map_err(|_| StoreError::Backlog)?;
        if self.queue.max_capacity() - self.queue.capacity() >= CHARGES {
            self.overflow.notify_one();
        }
        // If it went down just now, the queue may have been emptied before this came.
        self.usable()
    }

    /// Drives the link for ever; `tried` gets a permit when it has been tried once.
    pub async fn run(&self, tried: &Semaphore) {
        // TakeReply once: a second driver would find nothing to do.
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
            // One that lasted was good, also if nobody asked on it: whoever cut it is not to be waited for.
            if up && Duration::from(self.clock.now().since(since)) > LONGEST_PAUSE {
                pause = SHORTEST_PAUSE;
            }
            self.went_down(fault, &mut queue);
            // Spread out, so that gateways which lost their server together do not return together.
            tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    fn went_down(&self, fault: Fault, queue: &mut Queue) {
        *self.down.lock() = Some(fault.error);
        // What was not sent has not run, and need not wait until its deadline to be told.
        while let Some(mut waiting) = queue.try_next() {
            waiting.answer.send(Err(fault.error));
        }
        self.events.send(Event::Down { worker: self.worker, fault });
    }

    /// Answers until the connection is of no use any more.
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
        // In this order: what is answered first writes, and then the driver carries it out in the same turn.
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

    /// Makes one call after the other, when it is its turn.
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

    /// One call, from the requests that wait to their answers. An error is one that ends the link.
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
            // What ends the link is told when it ends.
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

    /// Tells those who have waited for as long as anybody may: of a call that was made at `now`, and in the queue behind it.
    /// Nobody else waits for long. A timer for all of them, as one for each costs half a microsecond.
    async fn watch(
        &self,
        timer: &CallTimer,
        mut now: Timestamp,
        mut asked: Vec<(Timestamp, &mut ReplySender)>,
        queue: &FairMutex<&mut Queue>,
    ) -> Infallible {
        let most = self.settings.timeout;
        // Who comes later than now is not late before `most` has passed.
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
            // Another call may be taking from it.
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
                // It did not run: the server was restarted behind a proxy, or its scripts were flushed.
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

    /// Waits for a request, and takes with it what else is there. Who has gone already is not asked for.
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
            // The sender lives as long as the link.
            let Some(first) = queue.next().await else { return std::future::pending().await };
            // Everybody else on this thread who can go on does so first: what they ask for travels along. No time passes
            // where there is nobody.
            tokio::task::yield_now().await;
            let now = self.clock.now();
            let mut more = add(batch, first, now);
            while more && let Some(waiting) = queue.try_next() {
                more = add(batch, waiting, now);
            }
        }
    }
}

/// Whether a link goes on after this: it is the server's own state, and another connection would find it the same.
fn outlived(error: StoreError) -> bool {
    matches!(error, StoreError::OutOfMemory | StoreError::Busy | StoreError::Refused)
}
