//! Keeps one connection up, and sends what waits for it: one call at a time, everything that came meanwhile in the next.
//!
//! A link is down until a connection has been shown to work; while it is down nobody waits. It is driven on its lane's
//! own thread, so that no request's answer wakes another thread.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::timeout;

use super::super::breaker::{Breaker, Change};
use super::super::{Called, Event, Fault, Lane, Report, Source, StoreError, Taken};
use super::Settings;
use super::batch::{Call, Reply};
use super::connect::{Connected, connect, load, send};
use super::envelope::Envelope;
use super::script;
use crate::limit::charge::Plan;
use crate::time::Clock;

/// The most that wait for one link. Beyond it the last would not be answered in time anyway.
const QUEUE: usize = 4096;
/// The most requests, and charges, of one call: a script holds up everybody else who asks that server.
const REQUESTS: usize = 64;
const CHARGES: usize = 128;
/// How long an overdue answer is waited for, although nobody wants it any more, before the connection is given up.
const PATIENCE: Duration = Duration::from_secs(1);
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// A request on its way.
#[derive(Debug)]
pub struct Waiting {
    pub plan: Plan,
    pub answer: oneshot::Sender<Result<Taken, StoreError>>,
}

#[derive(Debug)]
pub struct Link {
    lane: Lane,
    settings: Settings,
    script: String,
    clock: Clock,
    report: Report,
    envelope: Arc<Envelope>,
    breaker: Arc<Breaker>,
    /// Why it cannot be asked.
    down: Mutex<Option<StoreError>>,
    queue: mpsc::Sender<Waiting>,
    /// For whoever drives the link.
    waiting: Mutex<Option<mpsc::Receiver<Waiting>>>,
}

impl Link {
    /// `shared` is what all links have in common.
    pub fn new(
        lane: Lane,
        settings: Settings,
        clock: Clock,
        report: Report,
        (envelope, breaker): (Arc<Envelope>, Arc<Breaker>),
    ) -> Link {
        let (queue, waiting) = mpsc::channel(QUEUE);
        Link {
            lane,
            settings,
            script: script::take(),
            clock,
            report,
            envelope,
            breaker,
            down: Mutex::new(Some(StoreError::Unreachable)),
            queue,
            waiting: Mutex::new(Some(waiting)),
        }
    }

    /// Why it cannot be asked, if it cannot.
    pub fn usable(&self) -> Result<(), StoreError> {
        self.down.lock().map_or(Ok(()), Err)
    }

    /// Puts a request in the queue, unless it would wait there in vain.
    pub fn ask(&self, waiting: Waiting) -> Result<(), StoreError> {
        match *self.down.lock() {
            Some(error) => Err(error),
            None => self.queue.try_send(waiting).map_err(|_| StoreError::Backlog),
        }
    }

    /// Drives the link for ever; `tried` gets a permit when it has been tried once.
    pub async fn run(&self, tried: &Semaphore) {
        // Taken once: a second driver would find nothing to do.
        let Some(mut queue) = self.waiting.lock().take() else { return };
        let mut pause = SHORTEST_PAUSE;
        let mut first = true;
        loop {
            let connected = connect(&self.settings, &self.script).await;
            let up = connected.is_ok();
            *self.down.lock() = connected.as_ref().err().map(|fault| fault.error);
            if up {
                self.envelope.forget();
                if self.breaker.reset() == Change::Closed {
                    self.report.tell(Event::BreakerClosed);
                }
                self.report.tell(Event::Up(self.lane));
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

    fn went_down(&self, fault: Fault, queue: &mut mpsc::Receiver<Waiting>) {
        *self.down.lock() = Some(fault.error);
        // What was not sent has not run, and need not wait until its deadline to be told.
        while let Ok(waiting) = queue.try_recv() {
            let _ = waiting.answer.send(Err(fault.error));
        }
        self.report.tell(Event::Down { lane: self.lane, fault });
    }

    /// Answers until the connection is of no use any more.
    async fn serve(&self, connected: Connected, queue: &mut mpsc::Receiver<Waiting>, pause: &mut Duration) -> Fault {
        let Connected { mut connection, mut driver, mut sha } = connected;
        let answer = async {
            let mut batch = Vec::with_capacity(REQUESTS);
            loop {
                fill(&mut batch, queue).await;
                if let Err(fault) = self.call(&mut batch, &mut connection, &mut sha).await {
                    return fault;
                }
                *pause = SHORTEST_PAUSE;
            }
        };
        // In this order: what is answered first writes, and then the driver carries it out in the same turn.
        tokio::select! {
            biased;
            fault = answer => fault,
            () = &mut driver => Fault::new(StoreError::Closed, "the connection was closed"),
        }
    }

    /// One call, from the requests that wait to their answers. An error is one that ends the link.
    async fn call(
        &self,
        batch: &mut Vec<Waiting>,
        connection: &mut MultiplexedConnection,
        sha: &mut String,
    ) -> Result<(), Fault> {
        let started = self.clock.now();
        let sent = self.envelope.sending(started);
        let requests = batch.len();
        let outcome = self.exchange(&Call::new(batch.iter().map(|waiting| &waiting.plan)), connection, sha).await;
        let took = self.clock.now().since(started);
        let (healed, fault) = match &outcome {
            Ok(reply) if took > self.settings.timeout => {
                (reply.healed, Some(Fault::new(StoreError::Timeout, "the answer came when nobody waited for it")))
            }
            Ok(reply) => (reply.healed, None),
            // What ends the link is told when it ends.
            Err(fault) => (0, outlived(fault.error).then(|| fault.clone())),
        };
        self.report.tell(Event::Called(Called { requests, took, healed, fault }));
        match outcome {
            Ok(Reply { now, settlements, short, .. }) => {
                for (key, state) in short {
                    self.envelope.remember(key, state, now, sent);
                }
                for (waiting, settlement) in batch.drain(..).zip(settlements) {
                    // Who has gone meanwhile has been charged: the call was on its way.
                    let _ = waiting.answer.send(Ok(Taken { now, settlement, evicted: 0, source: Source::Store }));
                }
                Ok(())
            }
            Err(fault) => {
                for waiting in batch.drain(..) {
                    let _ = waiting.answer.send(Err(fault.error));
                }
                if outlived(fault.error) { Ok(()) } else { Err(fault) }
            }
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
            let command = |sha: &str| call.command(sha, &self.settings.prefix, self.clock.injected());
            let reply = match send(connection, &command(sha)).await {
                // It did not run: the server was restarted behind a proxy, or its scripts were flushed.
                Err(error) if error.code() == Some("NOSCRIPT") => {
                    *sha = load(connection, &self.script).await?;
                    send(connection, &command(sha)).await
                }
                reply => reply,
            };
            call.settle(&reply?).map_err(|error| Fault::new(error, "the script was answered with something else"))
        };
        timeout(patience, exchange).await.map_err(overdue)?
    }
}

/// Whether a link goes on after this: it is the server's own state, and another connection would find it the same.
fn outlived(error: StoreError) -> bool {
    matches!(error, StoreError::OutOfMemory | StoreError::Busy | StoreError::Refused)
}

/// Waits for a request, and takes with it what else is there. Who has gone already is not asked for.
async fn fill(batch: &mut Vec<Waiting>, queue: &mut mpsc::Receiver<Waiting>) {
    let mut charges = 0;
    let mut add = |batch: &mut Vec<Waiting>, waiting: Waiting| {
        if !waiting.answer.is_closed() {
            charges += waiting.plan.charges().count();
            batch.push(waiting);
        }
        batch.len() < REQUESTS && charges < CHARGES
    };
    while batch.is_empty() {
        // The sender lives as long as the link.
        let Some(waiting) = queue.recv().await else { return std::future::pending().await };
        let mut more = add(batch, waiting);
        // Everybody else on this thread who can go on does so first: what they ask for travels along. No time passes
        // where there is nobody.
        tokio::task::yield_now().await;
        while more && let Ok(waiting) = queue.try_recv() {
            more = add(batch, waiting);
        }
    }
}
