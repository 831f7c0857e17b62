//! Answers requests to the path of `usage`: reads what the limits of a client have left, and charges none of them.

use http::Method;

use super::{Decision, Enforcement, RefusalResponse};
use crate::gateway::response::ratelimit_fields::RateLimitFields;
use crate::gateway::state::GatewayState;
use crate::gateway::state::snapshot::Snapshot;
use crate::gateway::telemetry::labels::DecisionResult;
use base::time::{Micros, Timestamp};
use bytes::Bytes;
use decision::limit_usage::{LimitUsage, UsageReport, outcome};
use decision::model_requests::take_part;
use decision::order_of_answers::{check_reading, choose_route};
use decision::refusal::Refusal;
use decision::retry_after::retry_after;
use decision::store_failure_refusal;
use ledger::bucket_key::BucketKey;
use ledger::bucket_level::BucketLevel;
use ledger::charge::{Plan, Settlement};
use ledger::outcome::Verdict;
use request::asked_request::asked_request;
use request::request::Request;
use rules::rule::Expose;
use rules::rule_set::Answer;
use smallvec::SmallVec;
use stores::Worker;

/// The answer to a request to the path of `usage`.
#[derive(Debug)]
pub(in crate::gateway) enum UsageDecision {
    Answer(Box<UsageAnswer>),
    Refuse(Box<RefusalResponse>),
}

/// The limits of the request that the client asks about, and what they have left.
#[derive(Debug)]
pub(in crate::gateway) struct UsageAnswer {
    /// The JSON of a [`UsageReport`].
    pub body: Bytes,
    /// The rate-limit fields. `None` if no limit is shown.
    pub fields: Option<Box<RateLimitFields>>,
}

/// Answers a request to the path of `usage`. `request` has its identity.
pub(super) async fn answer(
    gateway: &GatewayState,
    snapshot: &Snapshot,
    request: &Request<'_>,
    worker: Worker,
) -> Enforcement {
    match report(gateway, snapshot, request, worker).await {
        Ok(answer) => {
            let decision = Decision::Usage(UsageDecision::Answer(Box::new(answer)));
            Enforcement::of(DecisionResult::Unlimited, decision)
        }
        Err(refusal) => {
            let decision = Decision::Usage(UsageDecision::Refuse(Box::new(RefusalResponse::of(refusal))));
            Enforcement::of(DecisionResult::Refused, decision)
        }
    }
}

async fn report(
    gateway: &GatewayState,
    snapshot: &Snapshot,
    request: &Request<'_>,
    worker: Worker,
) -> Result<UsageAnswer, Refusal> {
    let config = &snapshot.config;
    if !matches!(request.head.method, Method::GET | Method::HEAD) {
        return Err(Refusal::usage_method());
    }
    if let Some(Err(exceeded)) = snapshot.usage_limit.as_ref().map(|limit| limit.take(request.client)) {
        let seconds = retry_after(exceeded.spread, exceeded.wait, config.retry_after_jitter);
        return Err(Refusal::too_much_asked(seconds));
    }
    let asked = asked_request(request.head).map_err(|_| Refusal::bad_request(400))?;
    let asked = Request { head: &asked, body: None, ..*request };
    check_reading(&config.rules, &asked)?;
    let now = gateway.clock.date(gateway.clock.now());
    let plan = shown_plan(snapshot, &asked, now);
    let keys: Vec<BucketKey> = plan.enforced.iter().map(|charge| charge.key).collect();
    let Some(first) = plan.enforced.first() else {
        return Ok(UsageAnswer { body: body(&UsageReport { limits: Vec::new() }), fields: None });
    };
    let unread = |_| {
        gateway.metrics.usage_unread.increment(1);
        store_failure_refusal::unread(first, config.retry_after_jitter)
    };
    let (at, states) = gateway.store.read(worker, &keys).await.map_err(unread)?;
    let (mut limits, mut enforced) = (Vec::with_capacity(states.len()), SmallVec::new());
    for (charge, state) in plan.enforced.iter().zip(&states) {
        let now = at.of(&charge.algorithm);
        let level = BucketLevel::of(&charge.algorithm, state.as_deref(), charge.cost, now);
        limits.extend(
            config.rules.limit(charge.limit).map(|limit| LimitUsage::new(limit, &charge.algorithm, &level, at)),
        );
        enforced.push(outcome(&level, now));
    }
    let settlement = Settlement { verdict: Verdict::Allow, delay: Micros(0), enforced, shadow: SmallVec::new() };
    let fields = RateLimitFields::new(&config.headers, &snapshot.shown, &plan, Some(&settlement), at.date);
    Ok(UsageAnswer { body: body(&UsageReport { limits }), fields: Some(Box::new(fields)) })
}

/// Returns the charges of the asked request to limits that clients may see. Empty if the request would be denied or exempt.
fn shown_plan(snapshot: &Snapshot, asked: &Request<'_>, now: Timestamp) -> Plan {
    let config = &snapshot.config;
    // Of several upstreams with weights, the first is taken.
    let destination = choose_route(&config.routes, asked, |_| 0).ok();
    let destination = destination.and_then(|choice| snapshot.destinations.of(choice));
    let destination = destination.unwrap_or_else(|| snapshot.destinations.unrouted());
    let asked = asked.with_destination(destination.route.route(), destination.upstream_name());
    let ruling = config.rules.plan_without_body(&asked, now);
    let llm = destination.llm(config);
    let taken = take_part(ruling.answer, &config.rules, &asked, llm, config.prices.as_ref());
    let mut plan = match taken {
        Ok((Answer::Charge(plan) | Answer::TooLarge(plan), _)) => plan,
        Ok((Answer::Denied(_) | Answer::Exempt, _)) => Plan::default(),
        // The limits on models refuse such a request. The others would be charged if they did not.
        Err(unpriced) => {
            let refuses = unpriced.limits;
            let mut plan = unpriced.plan;
            plan.enforced.retain(|charge| !refuses.contains(&charge.limit));
            plan
        }
    };
    let is_shown = |limit| config.rules.limit(limit).is_some_and(|limit| limit.expose == Expose::Yes);
    plan.enforced.retain(|charge| is_shown(charge.limit));
    plan.shadow.clear();
    plan
}

fn body(report: &UsageReport<'_>) -> Bytes {
    // Such a value can always be written.
    serde_json::to_vec(report).unwrap_or_default().into()
}
