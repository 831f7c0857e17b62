//! Defines what a granted request holds: slots of buckets, which are given back when the request ends.

use std::fmt;
use std::sync::Arc;

use ledger::algorithm::Algorithm;
use ledger::bucket_key::BucketKey;
use ledger::charge::{Charge, Plan, Settlement};
use ledger::cost::Cost;
use ledger::holds::{self, Ending, ReservationOwner, SlotId, SlotTerms};
use ledger::outcome::Verdict;

/// Counts the slots that requests hold: a connection to a store, or a store in this process.
pub(crate) trait SlotKeeper: ReservationOwner + fmt::Debug + Send + Sync {}

/// The slots that a granted request holds until it ends. Empty if all its limits are rates.
///
/// Dropping it gives all slots back, however the request ends. Dropping never waits: the store learns of it in the
/// next call, which is made soon.
///
/// A slot with a `max_hold` may have ended before the drop.
#[derive(Debug, Default)]
#[must_use = "dropping it gives back what the request holds"]
pub struct Reservation {
    /// One part for each keeper of slots.
    parts: Vec<holds::Reservation<Arc<dyn SlotKeeper>>>,
}

impl Reservation {
    pub(crate) fn of(keeper: Arc<dyn SlotKeeper>, slots: impl IntoIterator<Item = (BucketKey, SlotId)>) -> Reservation {
        let part = holds::Reservation::new(keeper, slots);
        Reservation { parts: if part.is_empty() { Vec::new() } else { vec![part] } }
    }

    /// Returns whether there is nothing to give back.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Adds the slots of another reservation.
    pub fn join(&mut self, mut other: Reservation) {
        self.parts.append(&mut other.parts);
    }

    /// Ends what the request holds of this bucket now, after it has spent `cost` of it. The store charges the cost,
    /// even if it is more than what was held.
    pub fn settle(&mut self, bucket: &BucketKey, cost: Cost) {
        self.end(bucket, Ending::Settled(cost));
    }

    /// Ends what the request holds of this bucket now. What was spent of the bucket until now is forgotten, and then the
    /// request has spent `cost`.
    pub fn reset(&mut self, bucket: &BucketKey, cost: Cost) {
        self.end(bucket, Ending::Reset(cost));
    }

    fn end(&mut self, bucket: &BucketKey, ending: Ending) {
        for part in &mut self.parts {
            if part.end(bucket, ending) {
                return;
            }
        }
    }

    /// Gives all slots back now.
    pub fn release(self) {
        drop(self);
    }
}

/// Returns the charges of a plan that have a slot once they are granted. A budget's charge always has a slot, because
/// the cost is settled when the slot ends.
pub(crate) fn held_asks(plan: &Plan) -> impl Iterator<Item = (usize, &Charge, SlotTerms)> {
    plan.asks().filter(|(index, charge, terms)| {
        let is_budget = matches!(charge.algorithm, Algorithm::Budget(_));
        terms.amount > Cost::default() || is_budget && !plan.is_only_checked(*index)
    })
}

/// Returns the slots that a settled plan has been granted.
pub fn granted_asks<'p>(plan: &'p Plan, settlement: &'p Settlement) -> impl Iterator<Item = (&'p Charge, SlotTerms)> {
    let outcomes = || settlement.enforced.iter().chain(&settlement.shadow);
    let is_granted = move |index: usize| {
        settlement.is_granted() && outcomes().nth(index).is_some_and(|outcome| outcome.verdict == Verdict::Allow)
    };
    held_asks(plan).filter(move |(index, ..)| is_granted(*index)).map(|(_, charge, terms)| (charge, terms))
}
