//! Decides one request: who asks, what the rules say, whether the store has it; and turns that into an answer or a way
//! through.

pub mod authenticate;
mod store_fallback;

use std::sync::Arc;

use super::proxy::request_record::{Paid, RequestRecord};
use super::response::problem::{Problem, ProblemResponse, Reason};
use super::response::ratelimit_fields::RateFields;
use super::state::GatewayState;
use super::state::snapshot::Snapshot;
use super::telemetry::labels::DecisionResult;
use super::telemetry::metrics::LimitMetrics;
use crate::base::time::{Micros, Timestamp};
use crate::config::Jitter;
use crate::limit::ambiguity::Ambiguity;
use crate::limit::charge::{Charge, Plan, Settlement};
use crate::limit::cost::Cost;
use crate::limit::outcome::{Outcome, Verdict};
use crate::limit::request::Request;
use crate::limit::rule::{Expose, Mode, RefusalStatus};
use crate::limit::rule_set::Answer;
use crate::store::{Caller, Source, TakeReply, Worker};
use authenticate::{Identity, Refused};
use store_fallback::fall_back;

/// What becomes of a request. What few have is on the heap: it is handed on by every one.
#[derive(Debug)]
pub enum Decision {
    /// It goes to the upstream; the answer gets these fields, if any.
    Pass(Option<Box<RateFields>>),
    Refuse(Box<Refusal>),
    /// Its client has gone, and nothing was spent.
    Gone,
}

/// How a request came in.
#[derive(Debug)]
pub struct Arrival {
    pub lane: Worker,
    /// When it was there to be decided.
    pub at: Timestamp,
    pub caller: Option<Arc<dyn Caller>>,
}

/// A refusal, as it will be told.
#[derive(Debug)]
pub struct Refusal {
    pub status: u16,
    pub reason: Reason,
    pub retry_after: Option<u64>,
    pub fields: Option<RateFields>,
    /// The names of the exposed limits that refused; none when no limit did.
    pub violated: Option<Vec<String>>,
}

impl Refusal {
    /// One that no limit has a part in.
    fn of(Refused { status, reason, wait, spread }: Refused, jitter: Jitter) -> Decision {
        let spread = spread.map_or(0, |key| key.spread());
        let retry_after = wait.map(|wait| retry_after(spread, wait, jitter));
        Decision::Refuse(Box::new(Refusal { status, reason, retry_after, fields: None, violated: None }))
    }

    pub fn reply(&self) -> ProblemResponse<'_> {
        let names = || self.violated.iter().flatten().map(String::as_str).collect();
        let problem = match (&self.violated, self.status) {
            (None, _) => Problem::Blank,
            (Some(_), 503) => Problem::ReducedCapacity { violated: names() },
            (Some(_), _) => Problem::QuotaExceeded { violated: names() },
        };
        ProblemResponse {
            status: self.status,
            reason: Some(self.reason),
            problem,
            retry_after: self.retry_after,
            fields: self.fields.as_ref(),
        }
    }
}

/// Decides, and counts what was decided. What the access log is to say of it goes into `record`.
pub async fn decide(
    gateway: &GatewayState,
    snapshot: &Snapshot,
    request: &Request<'_>,
    arrival: Arrival,
    mut record: Option<&mut RequestRecord>,
) -> Decision {
    let (fate, decision) = match identify(gateway, snapshot, request).await {
        Ok(identity) => {
            let shown = identity.show(request);
            let decided = charge(gateway, snapshot, &shown, arrival, record.as_deref_mut()).await;
            if let Some(record) = record {
                record.identity = identity;
            }
            decided
        }
        Err(refused) => (DecisionResult::Refused, Refusal::of(refused, snapshot.config.retry_after_jitter)),
    };
    gateway.metrics.count_decision(fate);
    decision
}

/// What comes before any rule: whether the request can be read in one way, then who asks.
async fn identify(gateway: &GatewayState, snapshot: &Snapshot, request: &Request<'_>) -> Result<Identity, Refused> {
    snapshot.config.rules.read(request).map_err(|unclear| match unclear {
        Ambiguity::Ambiguous => Refused::new(400, Reason::AmbiguousRequest),
        Ambiguity::Path => Refused::new(400, Reason::BadRequest),
    })?;
    authenticate::judge(snapshot, &gateway.metrics, request).await
}

/// Asks the rules, and the store for what they want to be paid.
async fn charge(
    gateway: &GatewayState,
    snapshot: &Snapshot,
    request: &Request<'_>,
    arrival: Arrival,
    record: Option<&mut RequestRecord>,
) -> (DecisionResult, Decision) {
    let ruling = snapshot.config.rules.plan(request, gateway.clock.date(arrival.at));
    for policy in &ruling.unmatched {
        if let Some(counter) = usize::try_from(policy.0).ok().and_then(|place| snapshot.unmatched.get(place)) {
            counter.increment(1);
        }
    }
    match ruling.answer {
        Answer::Denied => (
            DecisionResult::Refused,
            Refusal::of(Refused::new(403, Reason::Denied), snapshot.config.retry_after_jitter),
        ),
        Answer::Exempt => (DecisionResult::Exempt, Decision::Pass(None)),
        Answer::TooLarge(plan) => {
            let decision = too_large(snapshot, &plan);
            if let Some(record) = record {
                record.paid = Paid::TooLarge(plan);
            }
            (DecisionResult::Refused, decision)
        }
        Answer::Charge(plan) if plan.is_empty() => (DecisionResult::Unlimited, Decision::Pass(None)),
        Answer::Charge(plan) => {
            let taken = match gateway.store.take(arrival.lane, &plan, arrival.caller).await {
                Ok(Some(taken)) => {
                    gateway.metrics.evicted.increment(taken.evicted);
                    Ok(taken)
                }
                Ok(None) => return (DecisionResult::Refused, Decision::Gone),
                Err(error) => fall_back(gateway, snapshot, &plan, error),
            };
            let source = taken.as_ref().map_or(Source::Fallback, |taken| taken.source);
            let (decided, paid) = match taken {
                Ok(taken) => {
                    if !taken.settlement.is_granted() {
                        let refused = &gateway.top_refused;
                        refused.count(arrival.lane, arrival.at, snapshot.number, &plan, &taken.settlement);
                    }
                    let decided = settled(snapshot, &plan, &taken);
                    (decided, Paid::Settled(plan, taken.settlement, source))
                }
                Err(refusal) => ((DecisionResult::Refused, Decision::Refuse(refusal)), Paid::Unavailable(plan)),
            };
            if let Some(record) = record {
                record.paid = paid;
            }
            gateway.metrics.latency(source).record(gateway.clock.now().since(arrival.at).seconds());
            decided
        }
    }
}

fn settled(snapshot: &Snapshot, plan: &Plan, taken: &TakeReply) -> (DecisionResult, Decision) {
    count(snapshot, plan, taken);
    let settlement = &taken.settlement;
    let fields = RateFields::new(&snapshot.config.headers, &snapshot.shown, plan, Some(settlement));
    match settlement.verdict {
        Verdict::Allow if plan.enforced.is_empty() => (DecisionResult::Unlimited, Decision::Pass(None)),
        Verdict::Allow => (DecisionResult::Allowed, Decision::Pass(Some(Box::new(fields)))),
        Verdict::Deny | Verdict::Never | Verdict::Unasked => {
            let refusal = refusal(snapshot, plan, settlement, fields);
            (DecisionResult::Refused, Decision::Refuse(Box::new(refusal)))
        }
    }
}

/// The limit with the longest wait speaks for all that refused.
fn refusal(snapshot: &Snapshot, plan: &Plan, settlement: &Settlement, fields: RateFields) -> Refusal {
    let refused = || plan.enforced.iter().zip(&settlement.enforced).filter(|(_, outcome)| outcome.verdict.is_refusal());
    let worst = refused().reduce(|worst, next| if next.1.retry_after > worst.1.retry_after { next } else { worst });
    let limit = |charge: &Charge| snapshot.limit(charge.limit).map(|(limit, _)| limit);
    // As the caller's fault, unless all that refused are shared capacity.
    let shared = |charge: &Charge| limit(charge).is_some_and(|limit| limit.refusal == RefusalStatus::ReducedCapacity);
    let violated = refused().filter_map(|(charge, _)| limit(charge));
    let violated = violated.filter(|limit| limit.expose == Expose::Yes).map(|limit| limit.name.clone()).collect();
    Refusal {
        status: if refused().all(|(charge, _)| shared(charge)) { 503 } else { 429 },
        reason: worst.map_or(Reason::Denied, |(charge, _)| Reason::exceeded(&charge.algorithm)),
        retry_after: worst.map(|(charge, outcome)| {
            retry_after(charge.key.spread(), outcome.retry_after, snapshot.config.retry_after_jitter)
        }),
        fields: Some(fields),
        violated: Some(violated),
    }
}

/// In seconds: the wait and, on top, a share of it that is fixed for the bucket, so that the same client is told the same
/// everywhere, and different ones do not return together.
pub fn retry_after(spread: u32, wait: Micros, jitter: Jitter) -> u64 {
    let most = u128::from(wait.0) * u128::from(jitter.share) / 1_000_000;
    let extra = (most * u128::from(spread)) >> 32;
    let extra = Micros(u64::try_from(extra).unwrap_or(u64::MAX)).min(jitter.max);
    wait.plus(extra).ceil_seconds()
}

/// The store is not asked; the limits that can never meet the cost have refused.
fn too_large(snapshot: &Snapshot, plan: &Plan) -> Decision {
    for charge in &plan.enforced {
        let Some((_, metrics)) = snapshot.limit(charge.limit) else { continue };
        metrics.requests.increment(1);
        if charge.cost > charge.algorithm.ceiling() {
            metrics.too_large.increment(1);
        }
    }
    let fields = Some(RateFields::new(&snapshot.config.headers, &snapshot.shown, plan, None));
    let reason = Reason::CostTooLarge;
    Decision::Refuse(Box::new(Refusal { status: 429, reason, retry_after: None, fields, violated: None }))
}

fn count(snapshot: &Snapshot, plan: &Plan, taken: &TakeReply) {
    let TakeReply { settlement, source, .. } = taken;
    let granted = settlement.is_granted();
    for (charge, outcome) in plan.enforced.iter().zip(&settlement.enforced) {
        let Some((limit, metrics)) = snapshot.limit(charge.limit) else { continue };
        count_one(metrics, outcome, granted);
        let tenth = Cost::from_thousandths(charge.algorithm.ceiling().thousandths() / 10);
        let near = granted && *source == Source::Store && outcome.remaining < tenth;
        if near && limit.mode == Mode::Enforce {
            metrics.near_limit.increment(1);
        }
    }
    for (charge, outcome) in plan.shadow.iter().zip(&settlement.shadow) {
        if let Some((_, metrics)) = snapshot.limit(charge.limit) {
            count_one(metrics, outcome, true);
        }
    }
}

/// `granted` is whether the charge's group was: one that could have paid is not charged beside one that refused.
fn count_one(metrics: &LimitMetrics, outcome: &Outcome, granted: bool) {
    metrics.requests.increment(1);
    match outcome.verdict {
        Verdict::Allow if granted => metrics.allowed.increment(1),
        Verdict::Allow | Verdict::Unasked => {}
        Verdict::Deny => metrics.exceeded.increment(1),
        Verdict::Never => metrics.too_large.increment(1),
    }
}
