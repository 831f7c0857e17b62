//! Collects requests into calls: requests that are queued during a call travel together in the next call.
//!
//! A further call is sent meanwhile if more is queued than one call may carry. It is also sent if the queued requests
//! would otherwise miss their deadlines.

use std::convert::Infallible;
use std::sync::atomic::Ordering;

use super::Connection;
use super::lanes::Session;
use crate::error::Fault;
use crate::remote::queue::{PendingTake, Queue};
use crate::remote::transport::Transport;
use base::time;
use base::time::{Micros, Timestamp};

/// A long queue causes a further call only while at most this many calls are under way.
const MOST_FOR_OVERFLOW: usize = 1;

impl<T: Transport> Connection<T> {
    /// Makes the calls of this lane, one for each batch. Returns the fault that ends the connection.
    pub(super) async fn calls(&self, lane: usize, session: &Session, mut link: T::Link) -> Fault {
        let mut batch = Vec::new();
        loop {
            session.take(lane, &mut batch).await;
            loop {
                if let Err(fault) = self.call(&mut batch, session, &mut link).await {
                    session.returned.lock().append(&mut batch);
                    return fault;
                }
                session.answered.store(true, Ordering::Relaxed);
                if batch.is_empty() {
                    break;
                }
                // The requests that the call has left out are sent again at once.
                let (now, mut unsent) = (self.clock.now(), 0);
                batch = std::mem::take(&mut batch)
                    .into_iter()
                    .filter_map(|waiting| waiting.still_there(now, self.timeout, &mut unsent))
                    .collect();
                self.report_unsent(unsent);
                if batch.is_empty() {
                    break;
                }
            }
            session.end(lane);
        }
    }

    /// Hands batches of queued requests to the lanes. Answers requests whose deadline passes while they are queued.
    pub(super) async fn feed(&self, session: &Session, queue: &mut Queue) -> Infallible {
        let mut batch = Vec::with_capacity(T::CALLS.charges);
        let (mut ended, mut was_timed) = (0, false);
        loop {
            self.turn(session, queue, &mut ended).await;
            let has_reports = tokio::select! {
                biased;
                () = queue.arrival() => false,
                () = self.reports() => true,
            };
            // Other ready tasks on this thread run first, so that their requests join this call.
            tokio::task::yield_now().await;
            self.fill(&mut batch, queue, session.under_way() > 0, was_timed);
            was_timed = batch.first().map_or(was_timed, |first| first.timed.is_some());
            if !batch.is_empty() {
                batch = self.shared.hooks.gather(batch);
            }
            if !batch.is_empty() || has_reports {
                session.hand(&mut batch).await;
            }
        }
    }

    /// Waits until a call may be sent. `ended` is the number of ended calls when `release` was last called.
    async fn turn(&self, session: &Session, queue: &mut Queue, ended: &mut u64) {
        loop {
            let under_way = session.under_way();
            // A call has ended, so the requests that waited for it can be sent.
            if session.ended() != *ended {
                *ended = session.ended();
                queue.release();
            }
            if under_way == 0 {
                return;
            }
            let (now, gap) = (self.clock.now(), session.round_trip.gap());
            let room = under_way < T::CALLS.at_once && !queue.only_has_kept_back();
            let passed = now.since(session.last_sent());
            if room && passed >= gap || self.is_overflowing(under_way, queue.len()) {
                return;
            }
            // A request that arrives later is not overdue within `timeout`.
            let deadline = self.answer_overdue(queue, now);
            let left =
                deadline.map_or(self.timeout, |oldest| Micros(self.timeout.0.saturating_sub(now.since(oldest).0)));
            let further = if room { session.last_sent().plus(gap) } else { Timestamp(u64::MAX) };
            self.further_from.store(further.0, Ordering::Relaxed);
            tokio::select! {
                biased;
                () = session.changes(under_way) => {}
                () = self.further.notified() => {}
                () = pause(further.since(now).min(left), room && session.round_trip.is_long()) => {}
            }
            self.further_from.store(u64::MAX, Ordering::Relaxed);
        }
    }

    /// Whether a further call may be sent because of a long queue.
    fn is_overflowing(&self, under_way: usize, queued: usize) -> bool {
        T::CALLS.at_once > MOST_FOR_OVERFLOW && under_way <= MOST_FOR_OVERFLOW && queued >= T::CALLS.charges
    }

    /// Moves queued requests into the batch, as many as one call may carry. Requests of disconnected clients are left
    /// out. A request for slots is kept back while a call under way asks for slots of the same bucket. A timed hold has an owner of
    /// its own, so its call has no other request. Calls of timed holds and of other requests alternate (`was_timed` tells which the last
    /// one was), so that neither waits for many of the other.
    fn fill(&self, batch: &mut Vec<PendingTake>, queue: &mut Queue, is_under_way: bool, was_timed: bool) {
        let (now, mut unsent) = (self.clock.now(), 0);
        if !was_timed {
            batch.extend(self.next_timed(queue, now, &mut unsent));
        }
        if batch.is_empty() {
            self.fill_with_untimed(batch, queue, is_under_way, &mut unsent);
        }
        if batch.is_empty() {
            batch.extend(self.next_timed(queue, now, &mut unsent));
        }
        self.report_unsent(unsent);
    }

    /// Removes the first timed hold from the queue.
    fn next_timed(&self, queue: &mut Queue, now: Timestamp, unsent: &mut usize) -> Option<PendingTake> {
        while let Some(waiting) = queue.try_next_timed() {
            let waiting = waiting.still_there(now, self.timeout, unsent);
            if waiting.is_some() {
                return waiting;
            }
        }
        None
    }

    fn fill_with_untimed(
        &self,
        batch: &mut Vec<PendingTake>,
        queue: &mut Queue,
        is_under_way: bool,
        unsent: &mut usize,
    ) {
        let now = self.clock.now();
        let (mut charges, most) = (0, self.shared.hooks.requests(T::CALLS.requests));
        while batch.len() < most
            && charges < T::CALLS.charges
            && let Some(waiting) = queue.try_next()
        {
            let Some(waiting) = waiting.still_there(now, self.timeout, unsent) else { continue };
            if waiting.holds && is_under_way && self.is_asked_already(&waiting.plan) {
                queue.keep_back(waiting);
                continue;
            }
            if !batch.last().is_some_and(|last| last.plan.is_same_take(&waiting.plan)) {
                charges += waiting.plan.charges().count();
            }
            batch.push(waiting);
        }
    }
}

/// Waits for this time. A precise timer costs more than an imprecise one.
async fn pause(span: Micros, precisely: bool) {
    if precisely {
        time::sleep_precisely(span.into()).await;
    } else {
        time::sleep(span.into()).await;
    }
}
