//! Keeps and counts what a request holds, until the request ends.

use std::sync::Arc;

use metrics::Gauge;
use smallvec::SmallVec;

use super::recording::{UnsettledRecord, UnsettledRecords};
use super::unsettled_costs::UnsettledCosts;
use crate::gateway::state::GatewayState;
use crate::gateway::state::snapshot::Snapshot;
use crate::gateway::telemetry::held_buckets::HeldBuckets;
use crate::gateway::telemetry::top_refused::LimitVersion;
use base::time::Micros;
use decision::model_requests::ModelContext;
use ledger::algorithm::Algorithm;
use ledger::bucket_key::BucketKey;
use ledger::charge::{Plan, Settlement};
use ledger::cost::Cost;
use ledger::holds::{Owner, TimedHold};
use rules::rule::Mode;
use stores::{Reservation, granted_asks};

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
    /// What a timed hold reserves. `None` for a request.
    timed: Option<TimedReserves>,
    counted: SmallVec<[Counted; 1]>,
    buckets: Arc<HeldBuckets>,
}

/// What a timed hold reserves of recorded budgets.
#[derive(Debug)]
pub(super) struct TimedReserves {
    pub owner: Owner,
    /// How long the hold lasts from its take.
    pub life: Micros,
    pub reserves: Vec<UnsettledReserve>,
}

/// What a timed hold reserves of one budget. If nobody settles in time, it is spent.
#[derive(Debug)]
pub(super) struct UnsettledReserve {
    pub bucket: BucketKey,
    pub algorithm: Algorithm,
    pub reserved: Cost,
    pub record: UnsettledRecord,
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
        let costs = UnsettledCosts::of(&gateway.metrics, snapshot, plan, settlement, model, records).map(Arc::new);
        let mut held = Box::new(Held::counting(gateway, snapshot, plan, settlement));
        (held.reservation, held.costs) = (reservation, costs);
        HeldSlots { held: Some(held) }
    }

    /// Notes what a timed hold with this plan and settlement holds. Dropping the value changes nothing in the store. `records` are
    /// the records of its unsettled costs.
    pub(super) fn of_timed_hold(
        gateway: &GatewayState,
        snapshot: &Snapshot,
        plan: &Plan,
        settlement: &Settlement,
        hold: &TimedHold,
        records: UnsettledRecords,
    ) -> HeldSlots {
        if !settlement.is_granted() {
            return HeldSlots::default();
        }
        let reserved = granted_asks(plan, settlement).filter_map(|(charge, terms)| {
            let index = records.iter().position(|(limit, _)| *limit == charge.limit)?;
            Some((index, charge.key, charge.algorithm, terms.amount))
        });
        let reserved: Vec<_> = reserved.filter(|(.., amount)| *amount > Cost::default()).collect();
        let mut records: Vec<Option<UnsettledRecord>> = records.into_iter().map(|(_, record)| Some(record)).collect();
        let reserves = reserved.into_iter().filter_map(|(index, bucket, algorithm, reserved)| {
            Some(UnsettledReserve { bucket, algorithm, reserved, record: records.get_mut(index)?.take()? })
        });
        let mut held = Box::new(Held::counting(gateway, snapshot, plan, settlement));
        held.timed = Some(TimedReserves { owner: hold.owner, life: hold.life, reserves: reserves.collect() });
        HeldSlots { held: Some(held) }
    }

    /// Takes what a timed hold reserves of recorded budgets. `None` for a request, and if nothing is held.
    pub(super) fn take_timed(&mut self) -> Option<TimedReserves> {
        self.held.as_mut()?.timed.take()
    }

    /// Returns the owner of what a timed hold has taken. `None` for a request, and if nothing is held.
    pub(crate) fn timed_owner(&self) -> Option<Owner> {
        Some(self.held.as_ref()?.timed.as_ref()?.owner)
    }

    /// Returns the costs that are known only when the request has ended. `None` for almost all requests.
    pub(crate) fn costs(&self) -> Option<&Arc<UnsettledCosts>> {
        self.held.as_ref()?.costs.as_ref()
    }
}

impl Held {
    /// Counts what is held under enforced limits in the metrics and in the list of held buckets.
    fn counting(gateway: &GatewayState, snapshot: &Snapshot, plan: &Plan, settlement: &Settlement) -> Held {
        let buckets = Arc::clone(&gateway.held_buckets);
        let (reservation, costs, timed) = (Reservation::default(), None, None);
        let mut held = Held { reservation, costs, timed, counted: SmallVec::new(), buckets };
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
        held
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
