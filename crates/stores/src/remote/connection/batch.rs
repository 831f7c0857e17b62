//! Batches requests into calls: requests that are queued while a call is under way travel together in the next one.
//!
//! The next call leaves when no other is under way. While one is, a further one leaves if more is queued than one call may
//! carry, or if the first was sent so long ago that requests waiting for its end would miss their deadline: the server is
//! distant or slow.

use std::convert::Infallible;
use std::sync::atomic::Ordering;

use super::Connection;
use super::lanes::Session;
use crate::error::Fault;
use crate::remote::queue::{PendingTake, Queue};
use crate::remote::transport::Transport;
use base::time;
use base::time::{Micros, Timestamp};

/// The number of calls that may already be under way when a further one leaves only because so much is queued.
const MOST_FOR_OVERFLOW: usize = 1;

impl<T: Transport> Connection<T> {
    /// Makes a call of each batch that is handed to this lane, one after the other. Returns the fault that ends the connection.
    pub(super) async fn calls(&self, lane: usize, session: &Session, mut link: T::Link) -> Fault {
        let mut batch = Vec::new();
        loop {
            session.take(lane, &mut batch).await;
            while !batch.is_empty() {
                if let Err(fault) = self.call(&mut batch, session, &mut link).await {
                    session.returned.lock().append(&mut batch);
                    return fault;
                }
                session.answered.store(true, Ordering::Relaxed);
                if batch.is_empty() {
                    break;
                }
                // What a call left out is asked once more, at once.
                let (now, mut unsent) = (self.clock.now(), 0);
                batch = std::mem::take(&mut batch)
                    .into_iter()
                    .filter_map(|waiting| waiting.still_there(now, self.timeout, &mut unsent))
                    .collect();
                self.report_unsent(unsent);
            }
            session.end(lane);
        }
    }

    /// Hands batches of queued requests to the lanes as soon as the next call may be sent. Answers requests whose deadline
    /// passes before that.
    pub(super) async fn feed(&self, session: &Session, queue: &mut Queue) -> Infallible {
        let mut batch = Vec::with_capacity(T::CALLS.charges);
        loop {
            self.turn(session, queue).await;
            queue.arrival().await;
            // Every other task on this thread that is ready runs first, so that its request joins this call. Without such a
            // task no time passes.
            tokio::task::yield_now().await;
            self.fill(&mut batch, queue);
            if !batch.is_empty() {
                batch = self.shared.hooks.gather(batch);
                session.hand(&mut batch).await;
            }
        }
    }

    /// Waits until a call may leave.
    async fn turn(&self, session: &Session, queue: &mut Queue) {
        loop {
            let under_way = session.under_way();
            if under_way == 0 {
                return;
            }
            let (now, gap, room) = (self.clock.now(), session.round_trip.gap(), under_way < T::CALLS.at_once);
            let passed = now.since(session.last_sent());
            if room && passed >= gap || self.is_overflowing(under_way, queue.len()) {
                return;
            }
            // A request that arrives later than now is not overdue before `timeout` has passed.
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

    /// Whether more is queued than one call may carry, and one more may leave for that.
    fn is_overflowing(&self, under_way: usize, queued: usize) -> bool {
        T::CALLS.at_once > MOST_FOR_OVERFLOW && under_way <= MOST_FOR_OVERFLOW && queued >= T::CALLS.charges
    }

    /// Moves queued requests into the batch, as many as one call may carry. Requests whose clients have disconnected are left
    /// out.
    fn fill(&self, batch: &mut Vec<PendingTake>, queue: &mut Queue) {
        let (now, mut unsent) = (self.clock.now(), 0);
        let (mut charges, most) = (0, self.shared.hooks.requests(T::CALLS.requests));
        while batch.len() < most
            && charges < T::CALLS.charges
            && let Some(waiting) = queue.try_next()
        {
            let Some(waiting) = waiting.still_there(now, self.timeout, &mut unsent) else { continue };
            if !batch.last().is_some_and(|last| last.plan.is_same_take(&waiting.plan)) {
                charges += waiting.plan.charges().count();
            }
            batch.push(waiting);
        }
        self.report_unsent(unsent);
    }
}

/// Waits for this time. A precise timer makes the kernel set an alarm whenever the thread becomes idle. Where most calls are
/// answered before a timer fires, an imprecise one is enough: a request that arrives after the next call may leave does not wait
/// for it.
async fn pause(span: Micros, precisely: bool) {
    if precisely {
        time::sleep_precisely(span.into()).await;
    } else {
        time::sleep(span.into()).await;
    }
}
