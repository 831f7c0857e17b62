//! Decides about the descriptors of one call. `rules::descriptors_plan` finds their limits and makes one plan of all costs.

use super::recording::ChargedRequests;
use super::{Arrival, Decision, HeldSlots, PaymentRecord, enforce};
use crate::gateway::state::GatewayState;
use crate::gateway::state::snapshot::Snapshot;
use crate::gateway::telemetry::metrics::DoorDecisions;
use decision::model_requests::ModelContext;
use decision::payment::Payment;
use request::model_request::ModelBody;
use request::request::Request;
use rules::descriptors_plan::{CallRuling, DescriptorPart, Hits};
use smallvec::SmallVec;

/// The decision about a call of the rate limit service, with the ruling for each descriptor of the call.
#[derive(Debug)]
pub(crate) struct CallFindings {
    pub decision: Decision,
    pub parts: Vec<DescriptorPart>,
    /// The plan of charges and its result. `None` if no limit was checked.
    pub payment: Option<Box<Payment>>,
    /// What the call holds. Empty but for a timed hold.
    pub held: HeldSlots,
}

/// Decides about the descriptors of a call, and counts the decision. No client is authenticated, because there is no request.
pub(crate) async fn decide_descriptors<'r>(
    gateway: &GatewayState,
    snapshot: &Snapshot,
    descriptors: impl IntoIterator<Item = (Request<'r>, Hits)>,
    arrival: Arrival,
    decisions: &DoorDecisions,
) -> CallFindings {
    let descriptors: SmallVec<[(Request<'r>, Hits); 2]> = descriptors.into_iter().collect();
    let asked = descriptors.iter().copied();
    let CallRuling { ruling, parts } = snapshot.config.rules.plan_call(asked, gateway.clock.date(arrival.at));
    let model = ModelContext { llm: &snapshot.config.llm, body: &ModelBody::Other, request: None, prices: None };
    let requests = ChargedRequests::Descriptors { descriptors: &descriptors, parts: &parts };
    let enforced = enforce(gateway, snapshot, ruling, requests, arrival, PaymentRecord::Keep, model).await;
    decisions.count(enforced.result);
    CallFindings { decision: enforced.decision, parts, payment: enforced.payment, held: enforced.held }
}
