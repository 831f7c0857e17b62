//! Asks buckets whether settled costs have reached a threshold, so that its line does not wait for the next request.

use std::sync::Arc;

use super::recording::{StoreMoment, add_told};
use crate::gateway::state::GatewayState;
use crate::gateway::telemetry::records::ThresholdQuestion;
use base::time::{Micros, Timestamp};
use ledger::charge::{Charge, ChargePurpose, Plan};
use ledger::cost::Cost;
use stores::Source;

/// How long a bucket is asked again whose store gives no answer.
const PATIENCE: Micros = Micros(10_000_000);

/// Asks the buckets that have waited long enough.
pub(crate) fn ask(gateway: &Arc<GatewayState>) {
    let now = gateway.clock.now();
    for question in gateway.records.settled_thresholds.take_due(now) {
        // A request that came later has told in its place.
        let known = gateway.records.subjects.subject(&question.charge.key);
        if known.is_none_or(|known| known.charged <= question.settled) {
            let gateway = Arc::clone(gateway);
            tokio::spawn(async move { ask_bucket(&gateway, question, now).await });
        }
    }
}

/// Charges nothing to a bucket, and writes the lines about the thresholds that it tells.
async fn ask_bucket(gateway: &GatewayState, question: ThresholdQuestion, now: Timestamp) {
    let is_elsewhere = !gateway.store.is_shared() && gateway.lifecycle.is_handed_over();
    if is_elsewhere || gateway.lifecycle.is_leaving() {
        return;
    }
    let ThresholdQuestion { worker, charge, writer, key, .. } = &question;
    // The question begins no ban, although it may be refused.
    let algorithm = charge.algorithm.beginning_no_ban().unwrap_or(charge.algorithm);
    let mut plan = Plan::default();
    plan.enforce(Charge { algorithm, cost: Cost::default(), purpose: ChargePurpose::Spend, ..charge.clone() });
    let taken = match gateway.store.writes_marks() {
        true => gateway.store.take(*worker, &plan, None).await.ok().flatten(),
        false => None,
    };
    match taken {
        Some(taken) if taken.source == Source::Store => {
            let Some(outcome) = taken.settlement.enforced.first() else { return };
            let period = StoreMoment::of(gateway, &taken, &algorithm).period(&algorithm, outcome);
            add_told(writer, &key.clone().in_period(period), &algorithm, outcome);
        }
        // A bucket that was short a moment ago is not asked, and none before a heartbeat shows that no older gateway runs.
        _ if now.since(question.settled) < PATIENCE => gateway.records.settled_thresholds.add(question),
        _ => {}
    }
}
