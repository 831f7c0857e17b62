//! Requests that wait for an answer: in a link's queue, or in a call that is under way.

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use crate::base::time::{Micros, Timestamp};
use crate::limit::charge::Plan;
use crate::store::caller::Caller;
use crate::store::error::StoreError;
use crate::store::reply::TakeReply;

/// Who has waited for longer may have gone, and is looked after.
const LONG: Micros = Micros(1_000);

/// None for one whose caller had gone before it was sent.
pub type Answered = Result<Option<TakeReply>, StoreError>;

/// A request on its way.
#[derive(Debug)]
pub struct PendingTake {
    /// On the heap: it is handed on a few times.
    pub plan: Box<Plan>,
    pub answer: ReplySender,
    pub caller: Option<Arc<dyn Caller>>,
    pub since: Timestamp,
}

/// Whom to tell. What is said first counts.
#[derive(Debug)]
pub struct ReplySender(Option<oneshot::Sender<Answered>>);

/// What no call has taken yet, in the order in which it came.
#[derive(Debug)]
pub struct Queue {
    receiver: mpsc::Receiver<PendingTake>,
    /// Has been looked at.
    first: Option<PendingTake>,
}

impl PendingTake {
    /// Itself, unless nobody waits for the answer any more, or has waited for as long as anybody may. A client's connection
    /// is looked at only when it has had time to go.
    pub fn still_there(mut self, now: Timestamp, most: Micros) -> Option<PendingTake> {
        if self.answer.is_closed() {
            return None;
        }
        if now.since(self.since) >= most {
            self.answer.send(Err(StoreError::Timeout));
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
    pub fn new() -> (ReplySender, oneshot::Receiver<Answered>) {
        let (sender, receiver) = oneshot::channel();
        (ReplySender(Some(sender)), receiver)
    }

    pub fn send(&mut self, answered: Answered) {
        if let Some(sender) = self.0.take() {
            // Who has gone meanwhile has been charged: the call was on its way.
            let _ = sender.send(answered);
        }
    }

    fn is_closed(&self) -> bool {
        self.0.as_ref().is_none_or(oneshot::Sender::is_closed)
    }
}

impl Queue {
    pub fn new(receiver: mpsc::Receiver<PendingTake>) -> Queue {
        Queue { receiver, first: None }
    }

    pub fn len(&self) -> usize {
        self.receiver.len() + usize::from(self.first.is_some())
    }

    /// None when nobody can come any more.
    pub async fn next(&mut self) -> Option<PendingTake> {
        match self.first.take() {
            Some(first) => Some(first),
            None => self.receiver.recv().await,
        }
    }

    /// None when nobody is there.
    pub fn try_next(&mut self) -> Option<PendingTake> {
        self.first.take().or_else(|| self.receiver.try_recv().ok())
    }

    /// Takes the first out if it has waited for as long as that; if it has not, says since when it waits.
    pub fn overdue(&mut self, now: Timestamp, most: Micros) -> Result<PendingTake, Option<Timestamp>> {
        let first = self.try_next().ok_or(None)?;
        if now.since(first.since) >= most {
            return Ok(first);
        }
        let since = first.since;
        self.first = Some(first);
        Err(Some(since))
    }
}
