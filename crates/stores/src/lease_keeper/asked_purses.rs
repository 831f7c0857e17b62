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
    /// The purses whose round has not begun and that requests have found empty, in the order in which they were asked for.
    empty: VecDeque<BucketKey>,
    /// Those that are low, in the same order: requests pay from them already.
    low: VecDeque<BucketKey>,
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
    is_low: bool,
}

impl AskedPurse {
    /// Whether nobody waits for it any more.
    fn is_left(&self) -> bool {
        !self.is_low && self.waiting.iter().all(|(_, waiting)| waiting.is_closed())
    }
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
        self.queue(purse, cost, true, now.plus(TOGETHER))
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
            Some(asked) => {
                // A low purse that has run empty also has its place among the low ones. Only the first of its two places counts.
                if asked.is_low && asked.waiting.is_empty() {
                    self.empty.push_back(purse.key);
                }
                self.call_at(now)
            }
            None => self.queue(purse, cost, false, now),
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

    fn queue(&mut self, purse: PurseBucket, cost: Cost, is_low: bool, at: Timestamp) -> bool {
        let asked = AskedPurse { purse, cost, waiting: Vec::new(), is_queued: true, is_low };
        self.purses.insert(purse.key, asked);
        let queue = if is_low { &mut self.low } else { &mut self.empty };
        queue.push_back(purse.key);
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

    /// Begins a round of at most `most` of the purses that are queued, if it is time. Half of it are low ones, which many new keys do not
    /// keep out. Of those that are empty the newest come first: many others have waited for so long that their requests would leave before
    /// the answer. But a quarter of the round are the oldest, for which new requests may wait as well.
    pub(super) fn begin(&mut self, now: Timestamp, most: usize) -> Vec<PurseDemand> {
        if self.next_call.is_none_or(|next| now < next) {
            return Vec::new();
        }
        let mut begun = Vec::new();
        let of_low = most.saturating_sub(self.empty.len()).max(most.div_ceil(2));
        while begun.len() < of_low
            && let Some(key) = self.low.pop_front()
        {
            begun.extend(self.demand(key));
        }
        let of_oldest = most.min(begun.len() + most.div_ceil(4));
        while begun.len() < of_oldest
            && let Some(key) = self.empty.pop_front()
        {
            begun.extend(self.demand(key));
        }
        while begun.len() < most
            && let Some(key) = self.empty.pop_back()
        {
            begun.extend(self.demand(key));
        }
        // What was asked for first is left first.
        while let Some(key) = self.empty.front().copied()
            && self.purses.get(&key).is_none_or(|asked| !asked.is_queued || asked.is_left())
        {
            self.empty.pop_front();
            self.demand(key);
        }
        if self.low.is_empty() && self.empty.is_empty() {
            self.next_call = None;
        }
        begun
    }

    /// Takes a purse from the queue. `None` if it was answered meanwhile, or if nobody waits for it.
    fn demand(&mut self, key: BucketKey) -> Option<PurseDemand> {
        let asked = self.purses.get_mut(&key).filter(|asked| asked.is_queued)?;
        if asked.is_left() {
            self.purses.remove(&key);
            return None;
        }
        asked.is_queued = false;
        Some(PurseDemand { purse: asked.purse, cost: asked.cost })
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

#[cfg(test)]
mod tests {
    use super::super::schedule::test_purse;
    use super::*;

    const NOW: Timestamp = Timestamp(1_000_000);

    fn wait(asked: &mut AskedPurses, key: u8) -> oneshot::Receiver<AskAnswer> {
        let (sender, answer) = oneshot::channel();
        asked.add_waiting(test_purse(key), Cost::ONE, sender, NOW);
        answer
    }

    fn begin(asked: &mut AskedPurses, most: usize) -> Vec<u8> {
        asked.begin(NOW.plus(TOGETHER), most).iter().map(|demand| demand.purse.key.0[0]).collect()
    }

    #[test]
    fn many_new_keys_do_not_keep_out_low_purses_and_the_newest_are_asked_first() {
        let mut asked = AskedPurses::default();
        let _waiting: Vec<_> = (1..=20).map(|key| wait(&mut asked, key)).collect();
        for key in 30..36 {
            asked.add_low(test_purse(key), Cost::ONE, NOW);
        }
        assert_eq!(begin(&mut asked, 8), [30, 31, 32, 33, 1, 2, 20, 19]);
        assert_eq!(begin(&mut asked, 8), [34, 35, 3, 4, 18, 17, 16, 15]);
        assert_eq!(begin(&mut asked, 20), [5, 6, 7, 8, 9, 14, 13, 12, 11, 10]);
        assert_eq!((begin(&mut asked, 8), asked.next_call()), (vec![], None));
    }

    #[test]
    fn a_low_purse_that_runs_empty_is_asked_for_as_one_that_is_empty_and_once() {
        let mut asked = AskedPurses::default();
        for key in 1..=20 {
            asked.add_low(test_purse(key), Cost::ONE, NOW);
        }
        let _waiting = [wait(&mut asked, 19), wait(&mut asked, 19)];
        assert_eq!(asked.empty.len(), 1);
        assert_eq!(begin(&mut asked, 8), [1, 2, 3, 4, 5, 6, 7, 19]);
        assert_eq!(begin(&mut asked, 20), [8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 20]);
        assert_eq!((begin(&mut asked, 8), asked.next_call()), (vec![], None));
    }

    #[test]
    fn purses_whose_requests_have_left_are_not_asked_for_and_take_no_memory() {
        let mut asked = AskedPurses::default();
        drop((1..=100).map(|key| wait(&mut asked, key)).collect::<Vec<_>>());
        let stays = wait(&mut asked, 101);
        assert_eq!(begin(&mut asked, 8), [101]);
        assert_eq!((asked.purses.len(), asked.empty.len(), asked.next_call()), (1, 0, None));
        drop(stays);
    }

    #[test]
    fn a_purse_that_was_answered_while_it_was_queued_is_asked_for_once() {
        let mut asked = AskedPurses::default();
        let _first = wait(&mut asked, 1);
        // By a word of an earlier round.
        asked.end(&test_purse(1).key, AskAnswer::Answered);
        let _second = wait(&mut asked, 1);
        assert_eq!(begin(&mut asked, 8), [1]);
        assert!(begin(&mut asked, 8).is_empty());
    }
}
