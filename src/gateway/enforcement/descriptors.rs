//! Decides about the descriptors of one call: their costs form one plan.

use super::{Arrival, Decision, PaymentRecord, charge, plan_to_charge};
use crate::gateway::state::GatewayState;
use crate::gateway::state::snapshot::Snapshot;
use crate::gateway::telemetry::metrics::DoorDecisions;
use decision::payment::Payment;
use request::request::Request;
use rules::call::{CallRuling, DescriptorPart, Hits};

/// The decision about a call, with the ruling for each descriptor.
#[derive(Debug)]
pub struct CallFindings {
    pub decision: Decision,
    pub parts: Vec<DescriptorPart>,
    /// The plan and its result; `None` if no limit was asked.
    pub payment: Option<Box<Payment>>,
}

/// Decides about a call, and counts the decision at its door. No client is authenticated, because there is no request.
pub async fn decide_descriptors<'r>(
    gateway: &GatewayState,
    snapshot: &Snapshot,
    descriptors: impl IntoIterator<Item = (Request<'r>, Hits)>,
    arrival: Arrival,
    decisions: &DoorDecisions,
) -> CallFindings {
    let CallRuling { ruling, parts } = snapshot.config.rules.plan_call(descriptors, gateway.clock.date(arrival.at));
    let record = PaymentRecord::Keep;
    let enforced = match plan_to_charge(gateway, snapshot, ruling, &arrival, record) {
        Ok(plan) => charge(gateway, snapshot, plan, arrival, record).await,
        Err(enforced) => enforced,
    };
    decisions.count(enforced.result);
    CallFindings { decision: enforced.decision, parts, payment: enforced.payment }
}
