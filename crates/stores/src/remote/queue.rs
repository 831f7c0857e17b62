//! Holds the requests that wait for an answer.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use crate::caller::Caller;
use crate::error::StoreError;
use crate::reply::TakeReply;
use base::time::{Micros, Timestamp};
use ledger::charge::Plan;
use ledger::holds::Call;

/// A request that has been queued for longer is checked for a disconnected client.
const LONG: Micros = Micros(1_000);

/// The answer to a request. `None` if the client disconnected before the request was sent.
pub(crate) type TakeResult = Result<Option<TakeReply>, StoreError>;

/// A request that waits for its answer.
#[derive(Debug)]
pub(crate) struct PendingTake {
    /// The plan, on the heap, because the request is moved several times.
    pub plan: Box<Plan>,
    pub answer: ReplySender,
    pub caller: Option<Arc<dyn Caller>>,
    pub since: Timestamp,
    pub attempt: Attempt,
    /// Whether a granted request holds slots.
    pub holds: bool,
    pub route: Route,
    /// The reports of the request's timed hold, in place of those of the worker. Then the request is a call of its own.
    pub timed: Option<Box<Call>>,
}

/// The reason why a request is sent to its server. Always [`Route::Owner`] without a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// The server has the request's part of the store.
    Owner,
    /// The part is moving to this server, and its owner no longer has the request's buckets.
    Next,
}

/// Whether a request is sent for the first or the second time. Only a request that was not charged is sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attempt {
    First,
    Second,
}

/// Sends the answer to a request. Only the first answer counts.
#[derive(Debug)]
pub(crate) struct ReplySender(Option<oneshot::Sender<TakeResult>>);

/// The requests that are not part of a call yet, in the order of arrival.
#[derive(Debug)]
pub(super) struct Queue {
    receiver: mpsc::Receiver<PendingTake>,
    /// Requests that were received and put back, in the order of arrival.
    put_back: VecDeque<PendingTake>,
    /// Requests that wait for the end of a call that asks for slots of the same bucket.
    kept_back: VecDeque<PendingTake>,
    /// Timed holds that were received, in the order of arrival. They are apart, so that other requests do not wait behind them.
    timed: VecDeque<PendingTake>,
}

impl PendingTake {
    /// Returns the request, if its answer is still needed and its deadline has not passed. `unsent` counts the
    /// requests whose deadline has passed. The client's connection is checked only after a long wait.
    pub(crate) fn still_there(mut self, now: Timestamp, most: Micros, unsent: &mut usize) -> Option<PendingTake> {
        if self.answer.is_closed() {
            return None;
        }
        if now.since(self.since) >= most {
            *unsent += 1;
            self.answer.send(Err(StoreError::Unsent));
            return None;
        }
        if now.since(self.since) > LONG && self.caller.as_ref().is_some_and(|caller| caller.has_left()) {
            self.answer.send(Ok(None));
            return None;
        }
        Some(self)
    }
}

impl ReplySender {
    pub(crate) fn new() -> (ReplySender, oneshot::Receiver<TakeResult>) {
        let (sender, receiver) = oneshot::channel();
        (ReplySender(Some(sender)), receiver)
    }

    pub(crate) fn send(&mut self, result: TakeResult) {
        if let Some(sender) = self.0.take() {
            // The request has been charged even if its client has disconnected.
            let _ = sender.send(result);
        }
    }

    /// Says that the request was not sent. Returns whether the answer was still needed.
    fn give_up(&mut self) -> bool {
        let is_needed = !self.is_closed();
        self.send(Err(StoreError::Unsent));
        is_needed
    }

    fn is_closed(&self) -> bool {
        self.0.as_ref().is_none_or(oneshot::Sender::is_closed)
    }
}

impl Queue {
    pub(super) fn new(receiver: mpsc::Receiver<PendingTake>) -> Queue {
        Queue { receiver, put_back: VecDeque::new(), kept_back: VecDeque::new(), timed: VecDeque::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.receiver.len() + self.put_back.len() + self.timed.len()
    }

    /// Keeps a request back until [`Queue::release`].
    pub(super) fn keep_back(&mut self, request: PendingTake) {
        self.kept_back.push_back(request);
    }

    /// Puts all requests of `kept_back` at the front of the queue.
    pub(super) fn release(&mut self) {
        while let Some(request) = self.kept_back.pop_back() {
            self.put_back.push_front(request);
        }
    }

    /// Whether the queue has requests, and all of them are kept back.
    pub(super) fn only_has_kept_back(&self) -> bool {
        !self.kept_back.is_empty() && self.put_back.is_empty() && self.timed.is_empty() && self.receiver.is_empty()
    }

    /// Waits until the queue has a request.
    pub(super) async fn arrival(&mut self) {
        if self.put_back.is_empty() && self.timed.is_empty() {
            match self.receiver.recv().await {
                Some(first) => self.put_back.push_back(first),
                // The sender lives as long as the connection.
                None => std::future::pending().await,
            }
        }
    }

    /// Removes and returns the first request that is not a timed hold. `None` if the queue has no such request.
    pub(crate) fn try_next(&mut self) -> Option<PendingTake> {
        loop {
            let next = self.put_back.pop_front().or_else(|| self.receiver.try_recv().ok())?;
            if next.timed.is_none() {
                return Some(next);
            }
            self.timed.push_back(next);
        }
    }

    /// Removes and returns the first of the timed holds that [`Queue::try_next`] has found before other requests.
    pub(crate) fn try_next_timed(&mut self) -> Option<PendingTake> {
        self.timed.pop_front()
    }

    /// Removes the first request if it has waited for `most`.
    ///
    /// # Errors
    /// Returns the time since which the first request has waited, if it has waited for less than `most`. `None` if the
    /// queue is empty.
    fn overdue(&mut self, now: Timestamp, most: Micros) -> Result<PendingTake, Option<Timestamp>> {
        let first = self.try_next().ok_or(None)?;
        if now.since(first.since) >= most {
            return Ok(first);
        }
        let since = first.since;
        self.put_back.push_front(first);
        Err(Some(since))
    }

    /// Puts the requests of a call that did not run back into the queue, before all others.
    pub(crate) fn put_back(&mut self, requests: Vec<PendingTake>) {
        self.release();
        for request in requests.into_iter().rev() {
            match request.timed {
                Some(_) => self.timed.push_front(request),
                None => self.put_back.push_front(request),
            }
        }
    }

    /// Answers the requests that have waited for `most`. Returns how many of these answers were still needed, and the
    /// time since which the first remaining request waits.
    pub(crate) fn answer_overdue(&mut self, now: Timestamp, most: Micros) -> (usize, Option<Timestamp>) {
        let mut unsent = 0;
        let first = loop {
            match self.overdue(now, most) {
                Ok(mut late) => unsent += usize::from(late.answer.give_up()),
                Err(first) => break first,
            }
        };
        let mut since = first;
        for apart in [&mut self.kept_back, &mut self.timed] {
            while let Some(first) = apart.front_mut() {
                if now.since(first.since) < most {
                    since = since.into_iter().chain([first.since]).min();
                    break;
                }
                unsent += usize::from(first.answer.give_up());
                apart.pop_front();
            }
        }
        (unsent, since)
    }
}
