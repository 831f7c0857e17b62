//! Batches requests into calls: what is queued while a call is under way travels together in the next one.

use std::sync::atomic::{AtomicBool, Ordering};

use redis::aio::MultiplexedConnection;
use tokio::sync::Mutex as FairMutex;

use super::Connection;
use crate::base::time::Timestamp;
use crate::store::error::Fault;
use crate::store::redis::codec::is_same_take;
use crate::store::remote::queue::{PendingTake, Queue};

/// The maximum number of charges in one call, with equal requests counted once: a script blocks the server's other clients.
pub const CHARGES: usize = 128;
/// The maximum number of requests in one call: they are answered together.
const REQUESTS: usize = 512;

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
}

impl Connection {
    /// Makes one call after another, each when its turn comes.
    pub(super) async fn calls(
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
            loop {
                if let Err(fault) = self.call(&mut batch, &session.queue, &mut connection, &mut sha).await {
                    return fault;
                }
                session.answered.store(true, Ordering::Relaxed);
                if batch.is_empty() {
                    break;
                }
                // What a call left out is asked once more, at once.
                let now = self.clock.now();
                let still_there = |waiting: PendingTake| waiting.still_there(now, self.settings.timeout);
                batch = batch.into_iter().filter_map(still_there).collect();
                if batch.is_empty() {
                    break;
                }
            }
        }
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
