//! Makes one call: sends the batch, watches the deadlines of its requests and of the queue, and hands out the answers.

use std::convert::Infallible;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use tokio::sync::Mutex as FairMutex;

use super::Connection;
use crate::base::time;
use crate::base::time::{Micros, Timestamp, timeout};
use crate::store::breaker::CallResult;
use crate::store::remote::call_timer::CallTimer;
use crate::store::error::{Fault, StoreError};
use crate::store::events::{CallReport, Event};
use crate::store::redis::codec::{BucketAfterCall, Call, Reply};
use crate::store::redis::handshake::load;
use crate::store::remote::queue::{Attempt, PendingTake, Queue, ReplySender};
use crate::store::reply::{Source, TakeReply};
use crate::store::span_links::SpanLinks;

/// How long to wait for an overdue reply, although no request needs it any more, before the connection is closed.
const PATIENCE: Duration = Duration::from_secs(1);
/// When to look at the queue again after the other call held it.
const SOON: Micros = Micros(1_000);

impl Connection {
    /// Makes one call, from the queued requests to their answers. Leaves in `batch` the requests that are to be asked once
    /// more: the server's time is outside of the periods that this call named.
    ///
    /// # Errors
    ///
    /// Only an error that ends the connection.
    pub(super) async fn call(
        &self,
        batch: &mut Vec<PendingTake>,
        queue: &FairMutex<&mut Queue>,
        connection: &mut MultiplexedConnection,
        sha: &mut String,
    ) -> Result<(), Fault> {
        let started = self.clock.now();
        let sent = self.shared.deny_cache.stamp(started);
        let requests = batch.len();
        let (plans, unanswered): (Vec<_>, Vec<_>) =
            batch.iter_mut().map(|PendingTake { plan, answer, since, .. }| (&**plan, (*since, answer))).unzip();
        let call = Call::new(plans);
        let timer = CallTimer::new(started, self.settings.timeout);
        let outcome = tokio::select! {
            biased;
            outcome = self.exchange(&call, connection, sha) => outcome,
            never = self.watch(&timer, started, unanswered, queue) => match never {},
        };
        let ended = self.clock.now();
        let took = ended.since(started);
        let result = if outcome.is_ok() { CallResult::Success } else { CallResult::Failure };
        self.publish(timer.check(&self.shared.breaker, ended));
        self.publish(timer.end(&self.shared.breaker, result, ended));
        let (healed, fault) = match &outcome {
            Ok(reply) if took > self.settings.timeout => {
                (reply.healed, Some(Fault::new(StoreError::Timeout, "the reply came after the timeout")))
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
                self.shared.store_clock.observe(now, started, ended);
                let known = self.shared.hooks.known_since(sent, || self.shared.deny_cache.stamp(self.clock.now()));
                for BucketAfterCall { key, state, short, reset_after } in left {
                    if let Some(since) = known.filter(|_| short) {
                        self.shared.deny_cache.remember(key, state.clone(), now, since);
                    }
                    self.shared.fallback.observe(key, state, now, reset_after, started);
                }
                let mut again = Vec::new();
                for (mut waiting, settlement) in batch.drain(..).zip(settlements) {
                    match (settlement, waiting.attempt) {
                        (Some(settlement), _) => {
                            let reply = TakeReply { now, settlement, evicted: 0, source: Source::Store };
                            waiting.answer.send(Ok(Some(reply)));
                        }
                        (None, Attempt::First) => again.push(PendingTake { attempt: Attempt::Second, ..waiting }),
                        (None, Attempt::Second) => waiting.answer.send(Err(StoreError::OutsidePeriod)),
                    }
                }
                batch.append(&mut again);
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
        mut unanswered: Vec<(Timestamp, &mut ReplySender)>,
        queue: &FairMutex<&mut Queue>,
    ) -> Infallible {
        let most = self.settings.timeout;
        // A request that arrives later than now is not overdue before `most` has passed.
        let left = |oldest: Option<Timestamp>, now: Timestamp| {
            oldest.map_or(most, |since| Micros(most.0.saturating_sub(now.since(since).0)))
        };
        let mut pause = left(unanswered.iter().map(|(since, _)| *since).min(), now);
        loop {
            time::sleep_precisely(pause.min(timer.next_check(now)).into()).await;
            now = self.clock.now();
            self.publish(timer.check(&self.shared.breaker, now));
            unanswered.retain_mut(|(since, answer)| {
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
            pause = left(unanswered.iter().map(|(since, _)| *since).min().or(first), now);
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
            let ours = self.clock.now();
            let near = self.shared.hooks.near(self.shared.store_clock.at(ours), ours);
            let moment = || self.shared.hooks.moment(&self.clock);
            let command = |sha: &str| call.command(sha, &self.settings.prefix, near, moment());
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
}

/// Whether the connection stays up after this error: it is the server's state, which a new connection would find unchanged.
fn outlived(error: StoreError) -> bool {
    matches!(error, StoreError::OutOfMemory | StoreError::Busy | StoreError::Refused)
}
