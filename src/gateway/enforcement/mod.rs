//! Enforces the rules on one request: authenticates it, plans its charges and asks the store for them.
//!
//! `decision` interprets the results of the stages, and `decision::order_of_answers` documents their order. This module
//! does the I/O between the stages, and counts the results.

pub(crate) mod authenticate;
mod bans;
mod counting;
pub(super) mod descriptors;
mod held_slots;
mod leases;
pub(super) mod left_holds;
pub(super) mod open_decision;
mod recording;
pub(super) mod request_record;
pub(super) mod running_holds;
pub(super) mod settled_thresholds;
mod store_fallback;
mod subject;
pub(super) mod timed_settlement;
pub(super) mod unsettled_costs;
pub(super) mod usage;

use std::sync::Arc;

use super::response::problem::{Cause, ProblemResponse};
use super::response::ratelimit_fields::RateLimitFields;
use super::state::GatewayState;
use super::state::destinations::Destination;
use super::state::snapshot::Snapshot;
use super::telemetry::labels::DecisionResult;
use super::telemetry::metrics::DoorDecisions;
use base::time::{Micros, Timestamp};
use decision::model_requests::ModelContext;
use decision::order_of_answers::RulesDecision;
use decision::payment::Payment;
use decision::refusal::Refusal;
use decision::speaking_limit;
pub(super) use held_slots::HeldSlots;
use leases::WaitingRequest;
use ledger::charge::{Charge, Plan, Settlement};
use ledger::holds::TimedHold;
use ledger::outcome::Verdict;
use open_decision::OpenDecision;
use recording::ChargedRequests;
use request::grpc_timeout;
use request::identity::Identity;
use request::request::Request;
use rules::ambiguity::Ambiguity;
use rules::denier::DenierId;
use rules::rule_set::Ruling;
use store_fallback::fall_back;
use stores::{Caller, Source, TakeReply, Worker};
use subject::Subject;
use usage::UsageDecision;

/// The decision about a request. Values that few requests have are on the heap, so that a decision is small to move.
#[derive(Debug)]
pub(super) enum Decision {
    /// The request goes to the upstream. The response gets these rate-limit fields; `None` if there are no such fields.
    Pass(Option<Box<RateLimitFields>>),
    /// The request goes to the upstream after a delay.
    Delay(Box<DelayedPass>),
    Refuse(Box<RefusalResponse>),
    /// The request is a preflight from an origin that the configuration allows. The gateway answers it, and charges nothing.
    Preflight,
    /// The request is one to the path of `usage`. The gateway answers it, and charges no limit of a rule.
    Usage(UsageDecision),
    /// The client has disconnected before the decision, and nothing was charged.
    Gone,
}

/// A request that is forwarded after a delay.
#[derive(Debug)]
pub(super) struct DelayedPass {
    /// The time to wait before the request is forwarded.
    pub delay: Micros,
    /// The rate-limit fields for the response.
    pub fields: Box<RateLimitFields>,
}

/// A refusal with the rate-limit fields of its response.
#[derive(Debug)]
pub(super) struct RefusalResponse {
    pub refusal: Refusal,
    fields: Option<RateLimitFields>,
    /// The rule or policy whose `deny` refused the request. `None` if the request was refused for another reason.
    pub denied_by: Option<DenierId>,
}

impl RefusalResponse {
    /// Makes a refusal without rate-limit fields, for a request that was refused before any limit was checked.
    pub(super) fn of(refusal: Refusal) -> RefusalResponse {
        RefusalResponse { refusal, fields: None, denied_by: None }
    }

    pub(super) fn problem(&self) -> ProblemResponse<'_> {
        ProblemResponse::of(Cause::Refusal(&self.refusal), self.fields.as_ref())
    }
}

/// The values on which a decision depends, in addition to the request: for example the time of arrival.
#[derive(Debug)]
pub(super) struct Arrival {
    pub worker: Worker,
    /// The time at which the whole request head had been read.
    pub at: Timestamp,
    pub caller: Option<Arc<dyn Caller>>,
    pub direction: Direction,
    pub purpose: RequestPurpose,
    pub patience: Patience,
    /// The hold of a service that settles later what it has cost. `None` for a request, which holds what it takes until its end.
    pub hold: Option<TimedHold>,
}

/// How long a request may wait: for its decision, and for the delays of limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Patience {
    /// The request waits for the store until the store's timeout, and limits may delay it.
    Unbounded,
    /// Another proxy holds the request and waits for the answer. Limits must not delay the request: it passes at once, or is
    /// refused.
    AtOnce {
        /// The longest wait for the store. If `None`, the store's timeout applies.
        answer_within: Option<Micros>,
    },
}

impl Patience {
    fn answer_within(self) -> Option<Micros> {
        match self {
            Patience::Unbounded => None,
            Patience::AtOnce { answer_within } => answer_within,
        }
    }
}

/// Whether the client may request this host on its connection. A TLS connection may be valid for some hosts only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Right,
    /// The client must not request this host on its TLS connection.
    Misdirected,
}

/// Whether a request is an ordinary one or a preflight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestPurpose {
    Ordinary,
    /// A preflight from an origin that the configuration allows. The gateway itself answers the preflight.
    Preflight,
    /// A preflight about which another proxy asks. The gateway does not answer the preflight, but decides about it as about an
    /// ordinary request. Credentials are not required, because browsers send none with a preflight.
    PreflightElsewhere,
}

/// Whether the plan of charges and its result are returned with the decision, for the access log and traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PaymentRecord {
    Keep,
    Discard,
}

/// The decision about one request, with the findings that led to it.
#[derive(Debug)]
pub(super) struct DecisionFindings {
    pub decision: Decision,
    pub identity: Identity,
    /// The destination of the request, with the metrics of its route. A refused request has a destination too, so that it can
    /// be counted.
    pub destination: Arc<Destination>,
    /// The plan of charges and its result. `None` if no limit was checked, or if the caller passed [`PaymentRecord::Discard`].
    pub payment: Option<Box<Payment>>,
    pub held: HeldSlots,
}

/// Decides about a request that this gateway proxies, and counts the decision.
///
/// # Errors
/// If the rules need values from the body of the request. [`OpenDecision::resume`] then continues the decision.
pub(super) async fn decide(
    gateway: &GatewayState,
    snapshot: &Snapshot,
    request: &Request<'_>,
    arrival: Arrival,
    record: PaymentRecord,
) -> Result<DecisionFindings, Box<OpenDecision>> {
    let mut subject = Subject::new(snapshot, request.door);
    let enforced = match subject.before_rules(gateway, snapshot, request, &arrival).await {
        Ok(()) => {
            let described = subject.describe(request);
            let at = gateway.clock.date(arrival.at);
            match snapshot.config.rules.plan_or_needs(&described, at, Some(&snapshot.learned_costs)) {
                Ok(ruling) => subject.enforce(gateway, snapshot, ruling, &described, arrival, record).await,
                Err(needed) => return Err(OpenDecision::new(subject, arrival, record, needed)),
            }
        }
        Err(enforced) => enforced,
    };
    Ok(subject.end(gateway, enforced))
}

/// Decides about a request for another proxy, and counts the decision in `decisions`, the counters for the kind of call.
pub(super) async fn decide_for_edge(
    gateway: &GatewayState,
    snapshot: &Snapshot,
    request: &Request<'_>,
    arrival: Arrival,
    record: PaymentRecord,
    decisions: &DoorDecisions,
) -> DecisionFindings {
    let mut subject = Subject::new(snapshot, request.door);
    let enforced = match subject.before_rules(gateway, snapshot, request, &arrival).await {
        Ok(()) => {
            let request = subject.describe(request);
            let ruling = snapshot.config.rules.plan(&request, gateway.clock.date(arrival.at));
            subject.enforce(gateway, snapshot, ruling, &request, arrival, record).await
        }
        Err(enforced) => enforced,
    };
    decisions.count(enforced.result);
    subject.findings(enforced)
}

/// The result of the rules, and of the charges to buckets.
struct Enforcement {
    result: DecisionResult,
    decision: Decision,
    payment: Option<Box<Payment>>,
    held: HeldSlots,
}

impl Enforcement {
    fn of(result: DecisionResult, decision: Decision) -> Enforcement {
        Enforcement { result, decision, payment: None, held: HeldSlots::default() }
    }

    fn passed(result: DecisionResult) -> Enforcement {
        Enforcement::of(result, Decision::Pass(None))
    }

    fn refused(refusal: Refusal, fields: Option<RateLimitFields>) -> Enforcement {
        let decision = Decision::Refuse(Box::new(RefusalResponse { refusal, fields, denied_by: None }));
        Enforcement::of(DecisionResult::Refused, decision)
    }

    fn with_payment(self, record: PaymentRecord, payment: impl FnOnce() -> Payment) -> Enforcement {
        match record {
            PaymentRecord::Keep => Enforcement { payment: Some(Box::new(payment())), ..self },
            PaymentRecord::Discard => self,
        }
    }
}

/// Refuses a request whose body can be read in more than one way.
fn refused_as_ambiguous() -> Enforcement {
    Enforcement::refused(Refusal::ambiguous(Ambiguity::Ambiguous), None)
}

/// Enforces a ruling of the rules, and runs all later stages. `model` is what is known of a request to a language model.
async fn enforce(
    gateway: &GatewayState,
    snapshot: &Snapshot,
    ruling: Ruling,
    requests: ChargedRequests<'_>,
    arrival: Arrival,
    record: PaymentRecord,
    model: ModelContext<'_>,
) -> Enforcement {
    match plan_to_charge(gateway, snapshot, ruling, requests, &arrival, record) {
        Ok(mut plan) => {
            if let (Some(request), Patience::Unbounded) = (requests.one(), arrival.patience) {
                limit_delay(&mut plan, request, || gateway.clock.now().since(arrival.at));
            }
            charge(gateway, snapshot, plan, arrival, record, (requests, model)).await
        }
        Err(enforced) => enforced,
    }
}

/// Counts the ruling, and returns the plan that the store has to decide.
///
/// # Errors
/// Returns the result if there is nothing for the store to decide.
fn plan_to_charge(
    gateway: &GatewayState,
    snapshot: &Snapshot,
    ruling: Ruling,
    requests: ChargedRequests<'_>,
    arrival: &Arrival,
    record: PaymentRecord,
) -> Result<Plan, Enforcement> {
    counting::count_unmatched(snapshot, &ruling.unmatched);
    counting::count_denials(snapshot, &ruling.shadow_denials);
    counting::count_claims(snapshot, &ruling.claims);
    counting::count_not_at_door(snapshot, &ruling.not_at_door);
    match RulesDecision::from(ruling.answer) {
        RulesDecision::Denied { refusal, by } => {
            counting::count_denials(snapshot, &[by]);
            let response = RefusalResponse { refusal, fields: None, denied_by: Some(by) };
            let decision = Decision::Refuse(Box::new(response));
            Err(Enforcement::of(DecisionResult::Refused, decision))
        }
        RulesDecision::TooLarge { refusal, plan } => {
            counting::count_too_large(snapshot, &plan);
            recording::record_too_large(gateway, snapshot, arrival.worker, &plan, requests);
            let now = gateway.clock.date(arrival.at);
            let refusal = refusal.with_fits(&snapshot.config.rules, &plan);
            let enforced = Enforcement::refused(refusal, Some(fields(snapshot, &plan, None, now)));
            Err(enforced.with_payment(record, || Payment::TooLarge(plan)))
        }
        RulesDecision::Exempt => Err(Enforcement::passed(DecisionResult::Exempt)),
        RulesDecision::Unlimited => Err(Enforcement::passed(DecisionResult::Unlimited)),
        RulesDecision::Charge(mut plan) => {
            if let Patience::AtOnce { .. } = arrival.patience {
                plan.limit_delay(Micros(0));
            }
            Ok(plan)
        }
    }
}

/// Limits the delay of a request to the time that its client waits. A request that needs a longer delay is refused. `passed`
/// is the time since the head arrived.
fn limit_delay(plan: &mut Plan, request: &Request<'_>, passed: impl FnOnce() -> Micros) {
    if plan.enforced.iter().any(|charge| charge.algorithm.delays())
        && let Some(most) = grpc_timeout::longest_delay(request.head, passed())
    {
        plan.limit_delay(most);
    }
}

/// Asks the store to charge a plan.
async fn charge(
    gateway: &GatewayState,
    snapshot: &Snapshot,
    mut plan: Plan,
    Arrival { worker, at, caller, patience, hold, .. }: Arrival,
    record: PaymentRecord,
    (requests, model): (ChargedRequests<'_>, ModelContext<'_>),
) -> Enforcement {
    if gateway.lifecycle.is_leaving() {
        return Enforcement::of(DecisionResult::Refused, Decision::Gone);
    }
    let record_latency =
        |source| gateway.metrics.decisions.latency(source).record(gateway.clock.now().since(at).seconds());
    // The next process has a copy of the buckets in memory, and tells what it finds there.
    let tells =
        gateway.store.writes_newest_format() && (gateway.store.is_shared() || !gateway.lifecycle.is_handed_over());
    if let Some(records) = snapshot.records.as_ref().filter(|_| tells) {
        records.tell_thresholds(&mut plan);
    }
    let mut hold = hold.filter(|_| plan.holds());
    let leases = gateway.leases.as_ref().filter(|_| leases::has_purse(&plan));
    let waiting = leases.map(|_| WaitingRequest { worker, caller: caller.clone(), patience, at, hold });
    let answer = match (hold, patience) {
        (Some(hold), patience) => {
            let most = patience.answer_within();
            Box::pin(gateway.store.take_timed(worker, &plan, caller, most, hold.within(&plan))).await
        }
        // This case is rare. Its future is on the heap, so that it does not enlarge the task of every request.
        (None, Patience::AtOnce { answer_within: Some(most) }) => {
            Box::pin(gateway.store.take_within(most, worker, &plan, caller)).await
        }
        (None, Patience::Unbounded | Patience::AtOnce { answer_within: None }) => {
            gateway.store.take(worker, &plan, caller).await
        }
    };
    if let Some(leases) = leases {
        leases.keeper.is_used(&plan);
    }
    let answer = match (leases, waiting, answer) {
        (Some(leases), Some(mut waiting), Ok(Some(taken))) if leases::is_due(&plan, &taken.settlement) => {
            let record_told = |taken: &TakeReply| recording::record_told(gateway, snapshot, &plan, taken, requests);
            let settling = leases::settle(gateway, snapshot, leases, &plan, taken, &mut waiting, record_told);
            let answer = Box::pin(settling).await;
            hold = waiting.hold;
            answer
        }
        (_, _, answer) => answer,
    };
    let taken = match answer {
        Ok(Some(taken)) => taken,
        Ok(None) => {
            return Enforcement::of(DecisionResult::Refused, Decision::Gone);
        }
        Err(failure) => match fall_back(gateway, snapshot, (worker, hold), &plan, failure) {
            Ok(taken) => taken,
            Err(refusal) => {
                let fields = fields(snapshot, &plan, None, gateway.clock.date(at));
                let enforced = Enforcement::refused(refusal, Some(fields));
                let enforced = enforced.with_payment(record, || Payment::StoreUnavailable(plan));
                record_latency(Source::Fallback);
                return enforced;
            }
        },
    };
    gateway.metrics.evicted.increment(taken.evicted);
    if !taken.settlement.is_granted() {
        gateway.top_refused.count(worker, at, snapshot.number, &plan, &taken.settlement);
    }
    counting::count_settlement(snapshot, &plan, &taken);
    bans::count_bans(snapshot, &plan, &taken.settlement, requests, || gateway.clock.now());
    let records = recording::record(gateway, snapshot, (worker, at), &plan, &taken, requests);
    let TakeReply { now, settlement, source, reservation, .. } = taken;
    let held = match hold {
        None => HeldSlots::new(gateway, snapshot, &plan, &settlement, reservation, model, records),
        Some(hold) => HeldSlots::of_timed_hold(gateway, snapshot, &plan, &settlement, &hold.within(&plan), records),
    };
    let enforced = Enforcement { held, ..settled(snapshot, &plan, &settlement, now) };
    let enforced = enforced.with_payment(record, || Payment::Settled { plan, settlement, source, now });
    record_latency(source);
    enforced
}

fn settled(snapshot: &Snapshot, plan: &Plan, settlement: &Settlement, now: Timestamp) -> Enforcement {
    let config = &snapshot.config;
    match settlement.verdict {
        Verdict::Allow if plan.enforced.iter().all(Charge::only_asks_for_ban) => {
            Enforcement::passed(DecisionResult::Unlimited)
        }
        Verdict::Allow => {
            let fields = Box::new(fields(snapshot, plan, Some(settlement), now));
            let decision = match settlement.delay {
                Micros(0) => Decision::Pass(Some(fields)),
                delay => Decision::Delay(Box::new(DelayedPass { delay, fields })),
            };
            Enforcement::of(DecisionResult::Allowed, decision)
        }
        Verdict::Deny | Verdict::Held | Verdict::Never | Verdict::Banned | Verdict::Unasked => {
            let refusal = speaking_limit::refusal(&config.rules, plan, settlement, now, config.retry_after_jitter);
            Enforcement::refused(refusal, Some(fields(snapshot, plan, Some(settlement), now)))
        }
    }
}

fn fields(snapshot: &Snapshot, plan: &Plan, settlement: Option<&Settlement>, now: Timestamp) -> RateLimitFields {
    RateLimitFields::new(&snapshot.config.headers, &snapshot.shown, plan, settlement, now)
}
