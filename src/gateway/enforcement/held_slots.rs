//! Keeps and counts what a request holds, until the request ends.

use std::sync::Arc;

use metrics::Gauge;
use smallvec::SmallVec;

use super::recording::UnsettledRecords;
use super::unsettled_costs::UnsettledCosts;
use crate::gateway::state::GatewayState;
use crate::gateway::state::snapshot::Snapshot;
use crate::gateway::telemetry::held_buckets::HeldBuckets;
use crate::gateway::telemetry::top_refused::LimitVersion;
use decision::model_requests::ModelContext;
use ledger::bucket_key::BucketKey;
use ledger::charge::{Plan, Settlement};
use ledger::cost::Cost;
use rules::rule::Mode;
use stores::Reservation;

/// What a request holds of concurrency limits and budgets, in the store and in the counts of this process. The request
/// keeps this value until it ends. Dropping the value gives slots back, and settles the true costs at budgets. Most
/// requests hold nothing.
#[derive(Debug, Default)]
#[must_use = "dropping it gives the slots back"]
pub(crate) struct HeldSlots {
    held: Option<Box<Held>>,
}

#[derive(Debug)]
struct Held {
    reservation: Reservation,
    /// The costs at budgets. `None` if no budget charges the request.
    costs: Option<Arc<UnsettledCosts>>,
    counted: SmallVec<[Counted; 1]>,
    buckets: Arc<HeldBuckets>,
}

/// What a request holds of one bucket, in the counts of this process.
#[derive(Debug)]
struct Counted {
    key: BucketKey,
    gauge: Gauge,
    /// The number that was added to the gauge.
    level: f64,
    /// The amount that is held of a budget. 0 for slots.
    amount: Cost,
}

impl HeldSlots {
    /// Notes what a request with this plan and settlement holds. `reservation` is empty if the request was refused.
    /// `model` is what is known of a request to a language model. `records` are the records of its unsettled costs.
    pub(super) fn new(
        gateway: &GatewayState,
        snapshot: &Snapshot,
        plan: &Plan,
        settlement: &Settlement,
        reservation: Reservation,
        model: ModelContext<'_>,
        records: UnsettledRecords,
    ) -> HeldSlots {
        if !plan.holds() || !settlement.is_granted() {
            return HeldSlots::default();
        }
        let buckets = Arc::clone(&gateway.held_buckets);
        let costs = UnsettledCosts::of(&gateway.metrics, snapshot, plan, settlement, model, records).map(Arc::new);
        let mut held = Box::new(Held { reservation, costs, counted: SmallVec::new(), buckets });
        for (index, charge, _) in plan.asks().filter(|(.., terms)| terms.amount > Cost::default()) {
            let is_refused = settlement.enforced.get(index).is_none_or(|outcome| outcome.verdict.is_refusal());
            if let Some((limit, metrics)) = snapshot.limit(charge.limit)
                && limit.mode == Mode::Enforce
                && !is_refused
            {
                let limit_version = LimitVersion { configuration: snapshot.number, limit: charge.limit };
                let (gauge, level, amount) = match &metrics.budget {
                    Some(budget) => (budget.held.clone(), budget.unit.number(charge.cost), charge.cost),
                    None => (metrics.in_flight.clone(), 1.0, Cost::default()),
                };
                held.buckets.add(charge.key, amount, limit_version);
                gauge.increment(level);
                held.counted.push(Counted { key: charge.key, gauge, level, amount });
            }
        }
        HeldSlots { held: Some(held) }
    }

    /// Returns the costs that are known only when the request has ended. `None` for almost all requests.
    pub(crate) fn costs(&self) -> Option<&Arc<UnsettledCosts>> {
        self.held.as_ref()?.costs.as_ref()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut reservation = std::mem::take(&mut self.reservation);
        if let Some(costs) = &self.costs {
            costs.settle(&mut reservation);
        }
        reservation.release();
        for Counted { key, gauge, level, amount } in &self.counted {
            self.buckets.remove(*key, *amount);
            gauge.decrement(*level);
        }
    }
}
