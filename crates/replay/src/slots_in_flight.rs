//! Keeps the slots that the requests of a log hold, from the decision about each request to the end of its response.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use super::bucket::BucketId;
use base::time::Timestamp;
use ledger::algorithm::{Algorithm, State};
use ledger::cost::Cost;
use ledger::holds::{LIFE, Owner, Report, SettledSums};

/// The owner of all slots of a simulation.
const SIMULATION: Owner = Owner(1);

/// The slots that are held at one time of the log.
#[derive(Debug, Default)]
pub(crate) struct SlotsInFlight {
    held: HashMap<BucketId, Cost>,
    ends: BinaryHeap<Reverse<(Timestamp, BucketId, Cost)>>,
}

impl SlotsInFlight {
    /// Gives back the slots of all requests that have ended at this time.
    pub(crate) fn advance(&mut self, now: Timestamp) {
        while let Some(Reverse((end, bucket, amount))) = self.ends.peek().copied()
            && end <= now
        {
            self.ends.pop();
            if let Some(held) = self.held.get_mut(&bucket) {
                *held = held.less(amount);
                if *held == Cost::default() {
                    self.held.remove(&bucket);
                }
            }
        }
    }

    /// Returns the state of a bucket, in which one owner has reported what all requests hold. `None` for an
    /// algorithm without holds.
    pub(crate) fn state(&self, bucket: BucketId, algorithm: &Algorithm, now: Timestamp) -> Option<State> {
        let held = self.held.get(&bucket).copied().unwrap_or_default();
        let report = Report { owner: SIMULATION, sequence: 1, held, settled: SettledSums::default(), life: LIFE };
        algorithm.accept(None, report, now).map(|entry| entry.state)
    }

    /// Holds slots of a bucket until `end`.
    pub(crate) fn hold(&mut self, bucket: BucketId, amount: Cost, end: Timestamp) {
        let held = self.held.entry(bucket).or_default();
        *held = held.plus(amount);
        self.ends.push(Reverse((end, bucket, amount)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ledger::algorithm::concurrency::Concurrency;
    use ledger::bucket_key::BucketKey;

    #[test]
    fn slots_are_held_until_their_requests_end() {
        let (bucket, other) = (BucketId::Picked(BucketKey([1; 16])), BucketId::Picked(BucketKey([2; 16])));
        let limit = Algorithm::Concurrency(Concurrency::new(5).unwrap());
        let mut slots = SlotsInFlight::default();
        for (amount, end) in [(1, 30), (2, 20), (1, 40)] {
            slots.hold(bucket, Cost::from_tokens(amount), Timestamp(end));
        }
        let held = |slots: &SlotsInFlight, bucket, now| {
            let state = slots.state(bucket, &limit, now);
            limit.spent(state.as_deref(), now).whole()
        };
        assert_eq!((held(&slots, bucket, Timestamp(19)), held(&slots, other, Timestamp(19))), (4, 0));
        for (now, left) in [(20, 2), (29, 2), (35, 1), (40, 0)] {
            slots.advance(Timestamp(now));
            assert_eq!(held(&slots, bucket, Timestamp(now)), left, "{now}");
        }
        assert!(slots.held.is_empty());
    }
}
