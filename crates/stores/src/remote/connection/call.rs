//! Makes one call: sends the batch, watches the deadlines of its requests, and distributes the answers.

use std::convert::Infallible;
use std::time::Duration;

use smallvec::SmallVec;

use super::lanes::Session;
use super::round_trip::TooLong;
use super::{Connection, timed_holds};
use crate::breaker::CallResult;
use crate::error::{Fault, StoreError};
use crate::events::{CallReport, Event};
use crate::remote::call_timer::CallTimer;
use crate::remote::deny_cache::SendStamp;
use crate::remote::holds::HoldResult;
use crate::remote::queue::{Attempt, PendingTake, ReplySender, Route};
use crate::remote::transport::{BucketAfterCall, CallPart, CallReply, PartReply, Reply, Transport};
use crate::reply::{Source, TakeReply};
use crate::reservation::Reservation;
use crate::span_links::SpanLinks;
use base::time;
use base::time::{Micros, Timestamp, timeout};

/// How long to wait for a reply that no request needs any more.
const OVERDUE_TIMEOUT: Duration = Duration::from_secs(1);

/// What each plan of a part holds, in the order of the plans.
pub(super) type HeldByPlans = Option<std::vec::IntoIter<HoldResult>>;

/// The time during which a call was under way.
#[derive(Clone, Copy)]
struct Period {
    started: Timestamp,
    ended: Timestamp,
    /// The stamp of the call for the deny cache.
    sent: SendStamp,
}

impl<T: Transport> Connection<T> {
    /// Makes one call with the requests in `batch`, and answers them. Leaves the requests in `batch` that must be sent
    /// again.
    ///
    /// # Errors
    ///
    /// When the connection must be closed.
    pub(super) async fn call(
        &self,
        batch: &mut Vec<PendingTake>,
        session: &Session,
        link: &mut T::Link,
    ) -> Result<(), Fault> {
        if T::CALLS.parted {
            batch.sort_by_key(|waiting| self.transport.part(&waiting.plan));
        }
        let started = self.clock.now();
        let sent = self.shared.deny_cache.stamp(started);
        session.note_sent(started);
        let requests = batch.len();
        let has_asks = batch.iter().any(|waiting| waiting.holds);
        let timed = batch.first().and_then(|first| Some((first.timed.as_deref().cloned()?, first.route)));
        let is_timed = timed.is_some();
        let routes: SmallVec<[Route; 8]> =
            batch.iter().filter(|_| T::CALLS.parted).map(|waiting| waiting.route).collect();
        let (plans, unanswered): (Vec<_>, Vec<_>) =
            batch.iter_mut().map(|PendingTake { plan, answer, since, .. }| (&**plan, (*since, answer))).unzip();
        let parts = match timed {
            Some((reports, route)) => self.timed_parts(&plans, reports, route),
            None => self.parts(&plans, &routes, has_asks, started),
        };
        if parts.is_empty() {
            return Ok(());
        }
        let timer = CallTimer::new(started, self.timeout);
        let mut outcome = tokio::select! {
            biased;
            outcome = self.exchange(&parts, link, started) => outcome,
            never = self.watch(&timer, started, unanswered) => match never {},
        };
        let ended = self.clock.now();
        let held = match is_timed {
            true => timed_holds::conclude(&parts, &mut outcome),
            false => self.conclude_reports(&parts, &outcome, ended),
        };
        drop(parts);
        let took = ended.since(started);
        let result = if is_answered(&outcome) { CallResult::Success } else { CallResult::Failure };
        self.publish(timer.check(&self.shared.breaker, ended));
        self.publish(timer.end(&self.shared.breaker, result, ended));
        if let Some(TooLong { fastest, needed }) = outcome.as_ref().ok().and_then(|_| session.round_trip.observe(took))
        {
            self.events.send(Event::RoundTripTooLong { fastest, needed, node: None });
        }
        let (healed, fault) = match &outcome {
            Ok(_) if took > self.timeout => {
                (healed(&outcome), Some(Fault::new(StoreError::Timeout, "the reply came after the timeout")))
            }
            Ok(parts) => {
                let fault = faults(parts).find(|fault| !fault.ends_connection()).cloned();
                (healed(&outcome), fault.or_else(|| out_of_memory(parts)))
            }
            // A fault that ends the connection is reported when the connection ends.
            Err(fault) => (0, (!fault.ends_connection()).then(|| fault.clone())),
        };
        let any_decided = outcome.iter().flatten().any(|part| part.reply.is_ok());
        let callers = batch.iter().filter_map(|waiting| waiting.caller.as_deref());
        let span_links = SpanLinks::of(callers, outcome.as_ref().err().map(|fault| fault.error));
        self.events.send(Event::CallEnded(CallReport { requests, any_decided, took, healed, fault, span_links }));
        match outcome {
            Ok(parts) => {
                let end = faults(&parts).find(|fault| fault.ends_connection()).cloned();
                self.hand_out(parts, batch, held, Period { started, ended, sent });
                end.map_or(Ok(()), Err)
            }
            Err(fault) => {
                // A call that a replica refuses has not run, so its requests may be sent again.
                let (again, failed): (Vec<_>, Vec<_>) = batch
                    .drain(..)
                    .partition(|waiting| fault.error == StoreError::Replica && waiting.attempt == Attempt::First);
                refuse(failed.into_iter(), fault.error);
                batch.extend(again.into_iter().map(|waiting| PendingTake { attempt: Attempt::Second, ..waiting }));
                if fault.ends_connection() { Err(fault) } else { Ok(()) }
            }
        }
    }

    /// Records what the reports of a call have shown. Returns for each part what its plans hold. `None` for a part
    /// without reports or an answer.
    fn conclude_reports(
        &self,
        parts: &[CallPart<'_>],
        outcome: &Result<CallReply, Fault>,
        now: Timestamp,
    ) -> SmallVec<[HeldByPlans; 1]> {
        let conclude = |(number, part): (usize, &CallPart<'_>)| {
            let (reports, holds) = (part.reports.as_ref()?, self.holds.part(part.index)?);
            let reply = outcome.as_ref().map(|replies| replies.get(number).map(|part| &part.reply));
            let may_have_run = match reply {
                // A server without free memory has stored nothing.
                Ok(Some(Ok(reply))) if !reply.out_of_memory => {
                    return Some(holds.answered(reports, part.plans, reply, now).into_iter());
                }
                Ok(Some(Ok(_))) => false,
                Ok(None) => true,
                Ok(Some(Err(fault))) | Err(fault) => !fault.proves_no_effect(),
            };
            holds.failed(reports, may_have_run, now);
            None
        };
        parts.iter().enumerate().map(conclude).collect()
    }

    /// Answers the requests of a batch, and caches the levels in the replies. Leaves in `batch` the requests that must
    /// be sent again. `held` is what the requests of each part hold.
    fn hand_out(
        &self,
        parts: CallReply,
        batch: &mut Vec<PendingTake>,
        held: SmallVec<[HeldByPlans; 1]>,
        Period { started, ended, sent }: Period,
    ) {
        let mut again = Vec::new();
        let mut waiting = batch.drain(..);
        for (PartReply { plans, reply }, mut held) in parts.into_iter().zip(held) {
            let waiting = waiting.by_ref().take(plans);
            let Reply { now, settlements, left, out_of_memory, .. } = match reply {
                Ok(reply) => reply,
                Err(fault) => {
                    refuse(waiting, fault.error);
                    continue;
                }
            };
            let decided = self.shared.store_clock.observe(now, started, ended);
            let known = self.shared.hooks.known_since(sent, || self.shared.deny_cache.stamp(self.clock.now()));
            for BucketAfterCall { key, state, short, reset_after, ban } in left {
                self.shared.fallback.observe_ban(key, ban, now, decided);
                let Some(state) = state else { continue };
                if let Some(since) = known.filter(|_| short) {
                    self.shared.deny_cache.remember(key, state.clone(), now, since);
                }
                self.shared.fallback.observe(key, state, now, reset_after, decided);
            }
            for (mut waiting, settlement) in waiting.zip(settlements) {
                let held = held.as_mut().and_then(Iterator::next).unwrap_or_else(|| Ok(Reservation::default()));
                let Ok(reservation) = held else {
                    waiting.answer.send(Err(StoreError::OldReport));
                    continue;
                };
                match (settlement, waiting.attempt) {
                    (Some(settlement), _) => {
                        let reply = TakeReply { now, settlement, evicted: 0, source: Source::Store, reservation };
                        waiting.answer.send(Ok(Some(reply)));
                    }
                    (None, _) if out_of_memory => waiting.answer.send(Err(StoreError::OutOfMemory)),
                    (None, Attempt::First) => again.push(PendingTake { attempt: Attempt::Second, ..waiting }),
                    (None, Attempt::Second) => waiting.answer.send(Err(StoreError::OutsidePeriod)),
                }
            }
        }
        // No request is left here, because every plan has a reply.
        refuse(waiting, StoreError::UnexpectedReply);
        batch.append(&mut again);
    }

    /// Answers the requests of a call when their deadlines pass. The call was sent at `now`. One timer serves all
    /// requests.
    async fn watch(
        &self,
        timer: &CallTimer,
        mut now: Timestamp,
        mut unanswered: Vec<(Timestamp, &mut ReplySender)>,
    ) -> Infallible {
        let most = self.timeout;
        loop {
            let oldest = unanswered.iter().map(|(since, _)| *since).min();
            let left = oldest.map_or(most, |since| Micros(most.0.saturating_sub(now.since(since).0)));
            time::sleep_precisely(left.min(timer.next_check(now)).into()).await;
            now = self.clock.now();
            self.publish(timer.check(&self.shared.breaker, now));
            unanswered.retain_mut(|(since, answer)| {
                let late = now.since(*since) >= most;
                if late {
                    answer.send(Err(StoreError::Timeout));
                }
                !late
            });
        }
    }

    async fn exchange(
        &self,
        parts: &[CallPart<'_>],
        link: &mut T::Link,
        started: Timestamp,
    ) -> Result<CallReply, Fault> {
        let longest = Duration::from(self.timeout) + OVERDUE_TIMEOUT;
        let near = self.shared.store_clock.at(started);
        let Ok(reply) = timeout(longest, self.transport.take(link, parts, near)).await else {
            self.transport.give_up(link);
            return Err(Fault::new(StoreError::Timeout, format!("no answer within {longest:?}")));
        };
        reply
    }
}

/// Returns the faults of the parts that failed. A redirection is not a failure.
fn faults(parts: &CallReply) -> impl Iterator<Item = &Fault> {
    parts.iter().filter_map(|part| part.reply.as_ref().err()).filter(|fault| !fault.error.is_redirection())
}

/// Whether the server has decided any part of a call, or has shown otherwise that it works.
fn is_answered(outcome: &Result<CallReply, Fault>) -> bool {
    let answers = |fault: &Fault| fault.error.is_answer() || fault.error.is_refusal();
    match outcome {
        Ok(parts) => parts.is_empty() || faults(parts).filter(|fault| !answers(fault)).count() < parts.len(),
        Err(fault) => fault.error.is_refusal(),
    }
}

/// Returns the fault of a call if the server could not write one of its parts, because the server has no room left.
fn out_of_memory(parts: &CallReply) -> Option<Fault> {
    let is_full = |part: &PartReply| part.reply.as_ref().is_ok_and(|reply| reply.out_of_memory);
    let detail = "nothing can be granted: the server has no room to write";
    parts.iter().any(is_full).then(|| Fault::new(StoreError::OutOfMemory, detail))
}

/// Returns the number of healed buckets in all parts of a call.
fn healed(outcome: &Result<CallReply, Fault>) -> u64 {
    let parts = outcome.iter().flatten();
    parts.map(|part| part.reply.as_ref().map_or(0, |reply| reply.healed)).sum()
}

fn refuse(waiting: impl Iterator<Item = PendingTake>, error: StoreError) {
    for mut waiting in waiting {
        waiting.answer.send(Err(error));
    }
}
