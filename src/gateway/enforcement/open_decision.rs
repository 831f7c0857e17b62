//! Holds a decision that waits for values from the body of its request, and resumes the decision with these values.

use std::sync::Arc;

use super::subject::Subject;
use super::{Arrival, DecisionFindings, PaymentRecord, refused_as_ambiguous};
use crate::gateway::state::GatewayState;
use crate::gateway::state::destinations::Destination;
use crate::gateway::state::snapshot::Snapshot;
use request::body_values::AmbiguousBody;
use request::identity::Identity;
use request::request::Request;
use rules::body_plan::NeededFromBody;

/// A decision that waits for values from the body of its request. The credentials are valid, and no rule denies the
/// request by its head.
#[derive(Debug)]
pub(in crate::gateway) struct OpenDecision {
    identity: Identity,
    destination: Arc<Destination>,
    arrival: Arrival,
    record: PaymentRecord,
    needed: NeededFromBody,
}

impl OpenDecision {
    pub(super) fn new(
        subject: Subject<'_>,
        arrival: Arrival,
        record: PaymentRecord,
        needed: NeededFromBody,
    ) -> Box<OpenDecision> {
        let destination = Arc::clone(subject.destination);
        Box::new(OpenDecision { identity: subject.identity, destination, arrival, record, needed })
    }

    /// Returns what must be read from the body.
    pub(in crate::gateway) fn needed(&self) -> &NeededFromBody {
        &self.needed
    }

    pub(in crate::gateway) fn destination(&self) -> &Destination {
        &self.destination
    }

    /// Decides about the request, now that the needed values are known. `read` says whether the body could be read.
    ///
    /// # Errors
    /// If the rules need more of the body.
    pub(in crate::gateway) async fn resume(
        self: Box<OpenDecision>,
        gateway: &GatewayState,
        snapshot: &Snapshot,
        request: &Request<'_>,
        read: Result<(), AmbiguousBody>,
    ) -> Result<DecisionFindings, Box<OpenDecision>> {
        let OpenDecision { identity, destination, arrival, record, .. } = *self;
        // The decision begins only now, so its time does not include the time in which the body was read.
        let arrival = Arrival { at: gateway.clock.now(), ..arrival };
        let subject = Subject { identity, destination: &destination };
        if read == Err(AmbiguousBody) {
            return Ok(subject.end(gateway, refused_as_ambiguous()));
        }
        let described = subject.describe(request);
        let at = gateway.clock.date(arrival.at);
        match snapshot.config.rules.plan_or_needs(&described, at, Some(&snapshot.learned_costs)) {
            Ok(ruling) => {
                let enforced = subject.enforce(gateway, snapshot, ruling, &described, arrival, record).await;
                Ok(subject.end(gateway, enforced))
            }
            Err(needed) => Err(OpenDecision::new(subject, arrival, record, needed)),
        }
    }
}
