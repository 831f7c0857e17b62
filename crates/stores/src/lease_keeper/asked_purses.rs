//! Holds the purses for which requests have asked, until their words are answered.

use std::collections::{HashMap, VecDeque};

use tokio::sync::oneshot;

use super::{AskAnswer, PurseBucket, TOGETHER};
use base::time::Timestamp;
use ledger::bucket_key::BucketKey;
use ledger::cost::Cost;

/// The purses for which requests have asked. Each is there once, however many requests wait for it.
#[derive(Debug, Default)]
pub(super) struct AskedPurses {
    purses: HashMap<BucketKey, AskedPurse>,
    /// The purses whose round has not begun, in the order in which they were asked for.
    queued: VecDeque<BucketKey>,
    /// When the next round begins. `None` if no purse is queued.
    next_call: Option<Timestamp>,
}

#[derive(Debug)]
struct AskedPurse {
    purse: PurseBucket,
    /// The largest cost of a request that the purse must pay.
    cost: Cost,
    /// The requests that wait, with their costs.
    waiting: Vec<(Cost, oneshot::Sender<AskAnswer>)>,
    is_queued: bool,
}

/// A purse whose round begins.
#[derive(Clone, Copy, Debug)]
pub(super) struct PurseDemand {
    pub purse: PurseBucket,
    pub cost: Cost,
}

impl AskedPurses {
    /// Adds a purse that is low. Returns whether the task must be woken.
    pub(super) fn add_low(&mut self, purse: PurseBucket, cost: Cost, now: Timestamp) -> bool {
        if self.purses.contains_key(&purse.key) {
            return false;
        }
        self.queue(purse, cost, now.plus(TOGETHER))
    }

    /// Adds a request that waits for a purse. Returns whether the task must be woken.
    pub(super) fn add_waiting(
        &mut self,
        purse: PurseBucket,
        cost: Cost,
        sender: oneshot::Sender<AskAnswer>,
        now: Timestamp,
    ) -> bool {
        let wake = match self.purses.get(&purse.key) {
            Some(asked) if !asked.is_queued => false,
            Some(_) => self.call_at(now),
            None => self.queue(purse, cost, now),
        };
        if let Some(asked) = self.purses.get_mut(&purse.key) {
            asked.cost = asked.cost.max(cost);
            // Home may be slow, and the requests of clients that have left are dropped. The memory never grows for them.
            if asked.waiting.len() == asked.waiting.capacity() {
                asked.waiting.retain(|(_, waiting)| !waiting.is_closed());
            }
            asked.waiting.push((cost, sender));
        }
        wake
    }

    fn queue(&mut self, purse: PurseBucket, cost: Cost, at: Timestamp) -> bool {
        let asked = AskedPurse { purse, cost, waiting: Vec::new(), is_queued: true };
        self.purses.insert(purse.key, asked);
        self.queued.push_back(purse.key);
        self.call_at(at)
    }

    fn call_at(&mut self, at: Timestamp) -> bool {
        let is_earlier = self.next_call.is_none_or(|next| at < next);
        if is_earlier {
            self.next_call = Some(at);
        }
        is_earlier
    }

    /// Returns when the next round begins.
    pub(super) fn next_call(&self) -> Option<Timestamp> {
        self.next_call
    }

    /// Begins a round of at most `most` of the purses that are queued, if it is time.
    pub(super) fn begin(&mut self, now: Timestamp, most: usize) -> Vec<PurseDemand> {
        if self.next_call.is_none_or(|next| now < next) {
            return Vec::new();
        }
        let begun = self.queued.drain(..most.min(self.queued.len())).filter_map(|key| {
            let asked = self.purses.get_mut(&key)?;
            asked.is_queued = false;
            Some(PurseDemand { purse: asked.purse, cost: asked.cost })
        });
        let begun = begun.collect();
        if self.queued.is_empty() {
            self.next_call = None;
        }
        begun
    }

    /// Forgets all purses. Requests that wait get no answer.
    pub(super) fn clear(&mut self) {
        *self = AskedPurses::default();
    }

    /// Returns the sum of the costs that wait for a purse.
    pub(super) fn wanted(&self, key: &BucketKey) -> Cost {
        let waiting = self.purses.get(key).into_iter().flat_map(|asked| &asked.waiting);
        let costs = waiting.filter(|(_, waiting)| !waiting.is_closed()).map(|(cost, _)| *cost);
        costs.fold(Cost::default(), Cost::plus)
    }

    /// Ends the round of a purse: every request that waits for it gets this answer.
    pub(super) fn end(&mut self, key: &BucketKey, answer: AskAnswer) {
        let Some(asked) = self.purses.remove(key) else { return };
        for (_, waiting) in asked.waiting {
            // A request that waits no longer has dropped its receiver.
            let _ = waiting.send(answer);
        }
    }
}
