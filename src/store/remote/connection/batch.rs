//! Batches requests into calls: what is queued while a call is under way travels together in the next one.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::sync::Mutex as FairMutex;

use super::Connection;
use crate::base::time::Timestamp;
use crate::store::error::Fault;
use crate::store::remote::queue::{PendingTake, Queue};
use crate::store::remote::transport::Transport;

/// When a call is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// As soon as the previous one is answered and a request is queued.
    Next,
    /// At the same time as that one, when more requests are queued than fit into one call.
    Overflow,
}

/// State that the calls on one connection share.
pub struct Session<'q> {
    pub queue: FairMutex<&'q mut Queue>,
    /// Whether any call was answered.
    pub answered: AtomicBool,
    /// What is to be asked on the next connection: the call that ended this one did not run.
    pub returned: Mutex<Vec<PendingTake>>,
}

impl<T: Transport> Connection<T> {
    /// Makes one call after another, each when its turn comes.
    pub(super) async fn calls(&self, turn: Turn, session: &Session<'_>, mut link: T::Link) -> Fault {
        let mut batch = Vec::with_capacity(T::CALLS.charges);
        loop {
            if turn == Turn::Overflow {
                self.overflow.notified().await;
            }
            {
                let mut queue = session.queue.lock().await;
                if turn == Turn::Overflow && queue.len() < T::CALLS.charges {
                    continue;
                }
                self.fill(&mut batch, &mut queue).await;
            }
            batch = self.shared.hooks.gather(batch);
            loop {
                if let Err(fault) = self.call(&mut batch, &session.queue, &mut link).await {
                    *session.returned.lock() = batch;
                    return fault;
                }
                session.answered.store(true, Ordering::Relaxed);
                if batch.is_empty() {
                    break;
                }
                // What a call left out is asked once more, at once.
                let now = self.clock.now();
                let still_there = |waiting: PendingTake| waiting.still_there(now, self.timeout);
                batch = batch.into_iter().filter_map(still_there).collect();
                if batch.is_empty() {
                    break;
                }
            }
        }
    }

    /// Waits for a request, and takes with it what else is queued. Requests whose clients have disconnected are left out.
    async fn fill(&self, batch: &mut Vec<PendingTake>, queue: &mut Queue) {
        let (mut charges, most) = (0, self.shared.hooks.requests(T::CALLS.requests));
        let mut add = |batch: &mut Vec<PendingTake>, waiting: PendingTake, now: Timestamp| {
            if let Some(waiting) = waiting.still_there(now, self.timeout) {
                if !batch.last().is_some_and(|last| last.plan.is_same_take(&waiting.plan)) {
                    charges += waiting.plan.charges().count();
                }
                batch.push(waiting);
            }
            batch.len() < most && charges < T::CALLS.charges
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
