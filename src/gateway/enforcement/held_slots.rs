//! Keeps what a request holds until the request ends, and counts it meanwhile.

use metrics::Gauge;
use smallvec::SmallVec;

use crate::gateway::state::snapshot::Snapshot;
use ledger::charge::{Plan, Settlement};
use ledger::cost::Cost;
use ledger::outcome::Verdict;
use stores::Reservation;

/// The slots that a request holds, in the store and in `rate_limiter_in_flight`. Dropping it gives them back, so the request keeps
/// it until it ends, however that happens. Empty for most requests.
#[derive(Debug, Default)]
#[must_use = "dropping it gives the slots back"]
pub(crate) struct HeldSlots {
    counted: SmallVec<[Gauge; 1]>,
    reservation: Reservation,
}

impl HeldSlots {
    /// Makes the guard of a request whose plan was settled in this way. `reservation` is empty if the request was refused.
    pub(super) fn new(
        snapshot: &Snapshot,
        plan: &Plan,
        settlement: &Settlement,
        reservation: Reservation,
    ) -> HeldSlots {
        let mut held = HeldSlots { counted: SmallVec::new(), reservation };
        if !plan.holds() || !settlement.is_granted() {
            return held;
        }
        let outcomes = || settlement.enforced.iter().chain(&settlement.shadow);
        for (index, charge, terms) in plan.asks() {
            let is_refused = outcomes().nth(index).is_none_or(|outcome| outcome.verdict == Verdict::Deny);
            if let Some((_, metrics)) = snapshot.limit(charge.limit)
                && terms.amount > Cost::default()
                && !is_refused
            {
                metrics.in_flight.increment(1.0);
                held.counted.push(metrics.in_flight.clone());
            }
        }
        held
    }
}

impl Drop for HeldSlots {
    fn drop(&mut self) {
        std::mem::take(&mut self.reservation).release();
        self.counted.iter().for_each(|gauge| gauge.decrement(1.0));
    }
}
