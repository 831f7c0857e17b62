//! Asks buckets whether settled costs have reached a threshold, so that its line does not wait for the next request.

use std::sync::Arc;
use std::time::Duration;

use super::recording::{StoreMoment, add_told};
use crate::gateway::state::GatewayState;
use crate::gateway::telemetry::records::ThresholdQuestion;
use base::time::{Micros, Timestamp};
use ledger::charge::{Charge, ChargePurpose, Plan};
use ledger::cost::Cost;
use stores::Source;

/// The interval at which buckets are asked.
const EVERY: Duration = Duration::from_secs(1);
/// How long a request has time to tell in place of the question.
const WAIT: Micros = Micros(1_000_000);
/// How long a bucket is asked again whose store gives no answer.
const PATIENCE: Micros = Micros(10_000_000);

/// Asks the buckets whose costs have settled, until the process ends.
pub(crate) async fn run(gateway: &Arc<GatewayState>) {
    let mut round = tokio::time::interval(EVERY);
    loop {
        round.tick().await;
        let settled = Timestamp(gateway.clock.now().0.saturating_sub(WAIT.0));
        ask(gateway, settled).await;
    }
}

/// Asks all buckets whose costs have settled, and waits for the answers. To be called before the process ends, after the last
/// request.
pub(crate) async fn ask_all(gateway: &Arc<GatewayState>) {
    ask(gateway, gateway.clock.now()).await;
}

/// Asks the buckets whose costs were settled at this time or before, and waits for the answers.
async fn ask(gateway: &Arc<GatewayState>, settled: Timestamp) {
    let waiting = &gateway.records.settled_thresholds;
    let _round = waiting.round.lock().await;
    let now = gateway.clock.now();
    let mut asked = Vec::new();
    for question in waiting.take(settled) {
        let ThresholdQuestion { worker, charge, settled, .. } = &question;
        if !gateway.records.subjects.has_told_since(*worker, &charge.key, *settled) {
            let gateway = Arc::clone(gateway);
            asked.push(tokio::spawn(async move { ask_bucket(&gateway, question, now).await }));
        }
    }
    for answer in asked {
        // A panic in the task is logged.
        let _ = answer.await;
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
    let taken = match gateway.store.writes_newest_format() {
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
