//! Runs the stages before the rules, and holds what they have found about a request.

use std::sync::Arc;

use super::authenticate::Authenticator;
use super::recording::ChargedRequests;
use super::{
    Arrival, Decision, DecisionFindings, Direction, Enforcement, PaymentRecord, RequestPurpose, counting, enforce,
    usage,
};
use crate::gateway::state::GatewayState;
use crate::gateway::state::destinations::Destination;
use crate::gateway::state::snapshot::Snapshot;
use crate::gateway::telemetry::labels::DecisionResult;
use decision::model_requests::take_part;
use decision::order_of_answers::{Stage, check_body, check_reading, choose_route};
use decision::refusal::Refusal;
use request::door::Door;
use request::identity::Identity;
use request::request::Request;
use rules::rule_set::Ruling;

/// The results of the stages before the rules.
pub(super) struct Subject<'s> {
    pub(super) identity: Identity,
    pub(super) destination: &'s Arc<Destination>,
}

impl<'s> Subject<'s> {
    pub(super) fn new(snapshot: &'s Snapshot, door: Door) -> Subject<'s> {
        let destination = match door {
            Door::Proxy => snapshot.destinations.unrouted(),
            Door::Http | Door::ExtAuthz | Door::Rls | Door::Json => snapshot.destinations.decided(),
        };
        Subject { identity: Identity::default(), destination }
    }

    /// Runs the stages before the rules.
    ///
    /// # Errors
    /// If a stage answers the request. Returns the answer of the first such stage.
    pub(super) async fn before_rules(
        &mut self,
        gateway: &GatewayState,
        snapshot: &'s Snapshot,
        request: &Request<'_>,
        arrival: &Arrival,
    ) -> Result<(), Enforcement> {
        let config = &snapshot.config;
        let refused = |refusal| Enforcement::refused(refusal, None);
        for stage in Stage::before_rules(request.door) {
            match stage {
                Stage::Connection if arrival.direction == Direction::Misdirected => {
                    return Err(refused(Refusal::misdirected()));
                }
                Stage::Reading => check_reading(&config.rules, request).map_err(refused)?,
                Stage::Preflight if arrival.purpose == RequestPurpose::Preflight => {
                    let (result, decision) = (DecisionResult::Unlimited, Decision::Preflight);
                    return Err(Enforcement::of(result, decision));
                }
                Stage::Credentials if arrival.purpose == RequestPurpose::Ordinary => {
                    let authenticator = Authenticator {
                        tokens: snapshot.tokens.as_deref(),
                        api_keys: config.api_keys.as_deref(),
                        jitter: config.retry_after_jitter,
                    };
                    self.identity = authenticator.authenticate(request, &gateway.metrics).await.map_err(refused)?;
                }
                Stage::Usage => {
                    if config.usage.as_ref().is_some_and(|usage| usage.is_asked(request)) {
                        let request = request.with_identity(&self.identity);
                        // This case is rare. Its future is on the heap, so that it does not enlarge every task.
                        let answer = Box::pin(usage::answer(gateway, snapshot, &request, arrival.worker));
                        return Err(answer.await);
                    }
                }
                Stage::Route => {
                    let identified = request.with_identity(&self.identity);
                    let choice = choose_route(&config.routes, &identified, |total| fastrand::u64(..total));
                    let choice = choice.map_err(refused)?;
                    self.destination = snapshot.destinations.of(choice).unwrap_or(self.destination);
                    check_body(self.destination.forwarding.as_deref(), request).map_err(refused)?;
                }
                Stage::Connection | Stage::Preflight | Stage::Credentials => {}
            }
        }
        Ok(())
    }

    /// Enforces a ruling. `request` is in the form that the rules read, as [`Subject::describe`] returns it.
    pub(super) async fn enforce(
        &self,
        gateway: &GatewayState,
        snapshot: &Snapshot,
        mut ruling: Ruling,
        request: &Request<'_>,
        arrival: Arrival,
        record: PaymentRecord,
    ) -> Enforcement {
        let llm = self.destination.llm(&snapshot.config);
        let (rules, prices) = (&snapshot.config.rules, snapshot.config.prices.as_ref());
        match take_part(ruling.answer, rules, request, llm, prices) {
            Ok((answer, model)) => {
                ruling.answer = answer;
                let requests = ChargedRequests::One(request);
                enforce(gateway, snapshot, ruling, requests, arrival, record, model).await
            }
            Err(unpriced) => {
                counting::count_unpriced(snapshot, &unpriced);
                Enforcement::refused(unpriced.refusal, None)
            }
        }
    }

    /// Ends the decision about a request that this gateway proxies, and counts the decision.
    pub(super) fn end(self, gateway: &GatewayState, enforced: Enforcement) -> DecisionFindings {
        gateway.metrics.decisions.count(enforced.result);
        self.findings(enforced)
    }

    pub(super) fn findings(self, Enforcement { decision, payment, held, .. }: Enforcement) -> DecisionFindings {
        let destination = Arc::clone(self.destination);
        DecisionFindings { decision, identity: self.identity, destination, payment, held }
    }

    /// Returns the request in the form that the rules read.
    pub(super) fn describe<'r>(&'r self, request: &Request<'r>) -> Request<'r> {
        let request = request.with_identity(&self.identity);
        match request.door {
            Door::Proxy => request.with_destination(self.destination.route.route(), self.destination.upstream_name()),
            // At these doors the gateway does not forward the request, so it has no route here.
            Door::Http | Door::ExtAuthz | Door::Rls | Door::Json => request,
        }
    }
}
