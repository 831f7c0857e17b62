//! Keeps the slots of a request until the request ends, and counts these slots meanwhile.

use std::sync::Arc;

use metrics::Gauge;
use smallvec::SmallVec;

use crate::gateway::state::GatewayState;
use crate::gateway::state::snapshot::Snapshot;
use crate::gateway::telemetry::held_buckets::HeldBuckets;
use crate::gateway::telemetry::top_refused::LimitVersion;
use ledger::bucket_key::BucketKey;
use ledger::charge::{Plan, Settlement};
use ledger::cost::Cost;
use ledger::outcome::Verdict;
use rules::rule::Mode;
use stores::Reservation;

/// The slots that a request holds, in the store and in the counts of this process. Dropping this value gives the slots
/// back. So the request keeps this value until the request ends, in whatever way. Most requests hold no slots.
#[derive(Debug, Default)]
#[must_use = "dropping it gives the slots back"]
pub(crate) struct HeldSlots {
    /// Never read: its drop gives the slots back.
    _held: Option<Box<Held>>,
}

#[derive(Debug)]
struct Held {
    reservation: Reservation,
    counted: SmallVec<[(BucketKey, Gauge); 1]>,
    buckets: Arc<HeldBuckets>,
}

impl HeldSlots {
    /// Makes the guard of a request whose plan was settled in this way. `reservation` is empty if the request was refused.
    pub(super) fn new(
        gateway: &GatewayState,
        snapshot: &Snapshot,
        plan: &Plan,
        settlement: &Settlement,
        reservation: Reservation,
    ) -> HeldSlots {
        if !plan.holds() || !settlement.is_granted() {
            return HeldSlots::default();
        }
        let buckets = Arc::clone(&gateway.held_buckets);
        let mut held = Box::new(Held { reservation, counted: SmallVec::new(), buckets });
        for (index, charge, _) in plan.asks().filter(|(.., terms)| terms.amount > Cost::default()) {
            let is_refused = settlement.enforced.get(index).is_none_or(|outcome| outcome.verdict == Verdict::Deny);
            if let Some((limit, metrics)) = snapshot.limit(charge.limit)
                && limit.mode == Mode::Enforce
                && !is_refused
            {
                let limit_version = LimitVersion { configuration: snapshot.number, limit: charge.limit };
                held.buckets.add(charge.key, limit_version);
                metrics.in_flight.increment(1.0);
                held.counted.push((charge.key, metrics.in_flight.clone()));
            }
        }
        HeldSlots { _held: Some(held) }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        std::mem::take(&mut self.reservation).release();
        for (key, gauge) in &self.counted {
            self.buckets.remove(*key);
            gauge.decrement(1.0);
        }
    }
}
