//! Collects requests into calls: requests that are queued during a call travel together in the next call.
//!
//! Normally the next call is sent when no call is under way. A further call is sent meanwhile in two cases: more is
//! queued than one call may carry, or the last call was sent so long ago that requests that wait for the reply would
//! miss their deadlines, because the server is distant or slow.

use std::convert::Infallible;
use std::sync::atomic::Ordering;

use super::Connection;
use super::lanes::Session;
use crate::error::Fault;
use crate::remote::queue::{PendingTake, Queue};
use crate::remote::transport::Transport;
use base::time;
use base::time::{Micros, Timestamp};

/// If a long queue is the only reason for a further call, the call is sent only while at most this many calls are under
/// way.
const MOST_FOR_OVERFLOW: usize = 1;

impl<T: Transport> Connection<T> {
    /// Makes a call for each batch that is handed to this lane. A lane makes one call after the other. Returns the
    /// fault that ends the connection.
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
                // Requests that the call has left out are sent once more, at once.
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

    /// Hands batches of queued requests to the lanes as soon as the next call may be sent. Answers requests whose
    /// deadline passes while they are queued.
    pub(super) async fn feed(&self, session: &Session, queue: &mut Queue) -> Infallible {
        let mut batch = Vec::with_capacity(T::CALLS.charges);
        let mut ended = 0;
        loop {
            self.turn(session, queue, &mut ended).await;
            let has_reports = tokio::select! {
                biased;
                () = queue.arrival() => false,
                () = self.reports() => true,
            };
            // Other tasks on this thread that are ready run first, so that their requests join this call. Without such
            // tasks this takes no time.
            tokio::task::yield_now().await;
            self.fill(&mut batch, queue, session.under_way() > 0);
            if !batch.is_empty() {
                batch = self.shared.hooks.gather(batch);
            }
            if !batch.is_empty() || has_reports {
                session.hand(&mut batch).await;
            }
        }
    }

    /// Waits until a call may be sent. `ended` is the number of calls that had ended when kept-back requests were last
    /// put back into the queue.
    async fn turn(&self, session: &Session, queue: &mut Queue, ended: &mut u64) {
        loop {
            let under_way = session.under_way();
            // A call has ended, so the requests that were kept back because of it can be sent.
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
            // If the queue is empty, the wait may take `timeout`: a request that arrives after `now` is not overdue
            // within that time.
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

    /// Whether more is queued than one call may carry, and a further call may be sent for this reason.
    fn is_overflowing(&self, under_way: usize, queued: usize) -> bool {
        T::CALLS.at_once > MOST_FOR_OVERFLOW && under_way <= MOST_FOR_OVERFLOW && queued >= T::CALLS.charges
    }

    /// Moves queued requests into the batch, as many as one call may carry. Requests whose clients have disconnected
    /// are left out. A request is kept back if it asks for slots of a bucket for which a call under way asks too,
    /// because the reports of the next call would say that all these slots are held, even the slots that are refused.
    fn fill(&self, batch: &mut Vec<PendingTake>, queue: &mut Queue, is_under_way: bool) {
        let (now, mut unsent) = (self.clock.now(), 0);
        let (mut charges, most) = (0, self.shared.hooks.requests(T::CALLS.requests));
        while batch.len() < most
            && charges < T::CALLS.charges
            && let Some(waiting) = queue.try_next()
        {
            let Some(waiting) = waiting.still_there(now, self.timeout, &mut unsent) else { continue };
            if waiting.holds && is_under_way && self.is_asked_already(&waiting.plan) {
                queue.keep_back(waiting);
                continue;
            }
            if !batch.last().is_some_and(|last| last.plan.is_same_take(&waiting.plan)) {
                charges += waiting.plan.charges().count();
            }
            batch.push(waiting);
        }
        self.report_unsent(unsent);
    }
}

/// Waits for this time. A precise timer makes the kernel set an alarm whenever the thread becomes idle. An imprecise
/// timer is enough where most calls are answered before the timer fires. A request that arrives when a further call may
/// be sent ends the wait anyway.
async fn pause(span: Micros, precisely: bool) {
    if precisely {
        time::sleep_precisely(span.into()).await;
    } else {
        time::sleep(span.into()).await;
    }
}
