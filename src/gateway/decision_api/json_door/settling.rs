//! Answers `/settle`: a service says what its take has cost, and gives back what it holds.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::json;

use super::hold_id::{HeldBucket, HeldTake};
use super::settle_call::{SettleCall, SettledCosts};
use super::take_answer::with_body;
use super::take_call::InvalidCall;
use super::{check_head, invalid, new_record};
use crate::gateway::decision_api::SharedParts;
use crate::gateway::decision_api::call::Call;
use crate::gateway::enforcement::timed_settlement::{self, SettledHold};
use crate::gateway::response::allowed;
use crate::gateway::response::own_response::OwnResponse;
use crate::gateway::server::http1::BodyError;
use crate::gateway::server::http1::exchange_io::ClientFault;
use crate::gateway::state::snapshot::Snapshot;
use decision::refusal::Refusal;
use decision::store_failure_refusal;
use ledger::charge::LimitId;
use ledger::cost::Cost;
use ledger::holds::TimedHoldCost;
use rules::rule_set::{CompiledLimit, RuleSet};
use stores::TimedSettlement;

/// What a service reads whose hold is not there.
const ENDED: &str = "`hold_id` must be of a take whose `hold_for` has not passed";

/// Answers a call of `/settle`. `body` is its body, or the reason why the body could not be read.
///
/// # Errors
/// If the service has disconnected.
pub(in crate::gateway::decision_api) async fn answer(
    call: &mut Call<'_>,
    snapshot: &Arc<Snapshot>,
    body: Result<Bytes, BodyError>,
) -> Result<OwnResponse, ClientFault> {
    let body = check_head(&call.head).and_then(|()| body.map_err(|error| Refusal::bad_request(error.status())));
    let settle = match body.map(|body| SettleCall::read(&body)) {
        Ok(Ok(settle)) => settle,
        Ok(Err(InvalidCall(fault))) => return Ok(invalid(call, snapshot, &Refusal::bad_request(400), Some(&fault))),
        Err(refusal) => return Ok(invalid(call, snapshot, &refusal, None)),
    };
    let metrics = &call.api.shared.settles;
    let held = snapshot.hold_key.as_ref().and_then(|key| HeldTake::of_id(&settle.hold_id, key));
    let Some(HeldTake { owner, subject, buckets }) = held else {
        metrics.ended.increment(1);
        return Ok(invalid(call, snapshot, &Refusal::bad_request(404), Some(ENDED)));
    };
    let rules = &snapshot.config.rules;
    let limits: Vec<_> = buckets.iter().filter_map(|bucket| Some((*bucket, limit_of(rules, bucket)?))).collect();
    // A name may be that of a limit which is no longer in the file.
    let unknown = if limits.len() == buckets.len() { unknown_name(&limits, settle.cost.as_ref()) } else { None };
    let cost = |(bucket, (id, limit)): &(HeldBucket, (LimitId, &CompiledLimit))| {
        let variant = usize::try_from(bucket.variant).ok().and_then(|variant| limit.variants.get(variant));
        let algorithm = *variant.or_else(|| limit.variants.first())?;
        let cost = cost(limit, settle.cost.as_ref(), bucket.reserved);
        Some(cost.map(|cost| (*id, TimedHoldCost { bucket: bucket.key, limit: algorithm, cost })))
    };
    let costs = unknown.map_or_else(|| limits.iter().filter_map(cost).collect::<Result<Vec<_>, _>>(), Err);
    let costs = match costs {
        Ok(costs) => costs,
        Err(fault) => return Ok(invalid(call, snapshot, &Refusal::bad_request(400), Some(&fault))),
    };
    // The part of a limit that is no longer in the file ends by itself.
    let is_gone = costs.is_empty() && !buckets.is_empty();
    let (gateway, worker) = (Arc::clone(&call.api.gateway), call.api.worker);
    let SharedParts { unanswered_settlements: unanswered, running_holds, .. } = &*call.api.shared;
    let settled =
        SettledHold { owner, costs, subject, unanswered: Arc::clone(unanswered), running: Arc::clone(running_holds) };
    // What is settled must be counted, so it does not end with its caller.
    let settling = tokio::spawn(timed_settlement::settle(gateway, Arc::clone(snapshot), worker, settled));
    let result = if is_gone { Ok(TimedSettlement::Ended) } else { settling.await.map_err(|_| ClientFault::Gone)? };
    match result {
        Ok(settled @ (TimedSettlement::Settled | TimedSettlement::SettledBefore)) => {
            let is_first = settled == TimedSettlement::Settled;
            (if is_first { &metrics.settled } else { &metrics.repeated }).increment(1);
            let mut response = allowed::response(None, &call.request_id);
            response.fields.add("Cache-Control", b"no-store");
            if call.record.is_none() && call.is_recorded(snapshot) {
                call.record = Some(Box::new(new_record(call, snapshot)));
            }
            call.answered = true;
            Ok(with_body(response, &json!({"settled": true})))
        }
        Ok(TimedSettlement::Ended) => {
            metrics.ended.increment(1);
            Ok(invalid(call, snapshot, &Refusal::bad_request(404), Some(ENDED)))
        }
        Err(_) => {
            metrics.failed.increment(1);
            let jitter = snapshot.config.retry_after_jitter;
            let refusal = match buckets.first() {
                Some(bucket) => store_failure_refusal::of_bucket(&bucket.key, jitter),
                None => Refusal::store_unavailable(1),
            };
            Ok(invalid(call, snapshot, &refusal, None))
        }
    }
}

/// Returns the limit of a bucket. `None` if it is no longer in the file.
fn limit_of<'r>(rules: &'r RuleSet, bucket: &HeldBucket) -> Option<(LimitId, &'r CompiledLimit)> {
    let limits = (0..).map(LimitId).zip(rules.limits());
    limits.into_iter().find(|(_, limit)| limit.tag(0) == bucket.tag)
}

/// Returns what is wrong with the names of limits in a call. `None` if each is that of a limit of which something is held.
fn unknown_name(limits: &[(HeldBucket, (LimitId, &CompiledLimit))], costs: Option<&SettledCosts>) -> Option<String> {
    let is_known = |name: &str| limits.iter().any(|(_, (_, limit))| limit.name == name);
    let name = costs?.names().find(|name| !is_known(name))?;
    let name: String = name.chars().take(100).collect();
    Some(format!("`cost` must name limits of which the take holds something, has {name:?}"))
}

/// Returns the cost at a limit, in its unit. A call that does not say it costs the limit's `default_cost`, or else what was reserved.
///
/// # Errors
/// Returns what is wrong with the cost, if it has more decimals than the limit counts.
fn cost(limit: &CompiledLimit, costs: Option<&SettledCosts>, reserved: Cost) -> Result<Cost, String> {
    let Some(price) = limit.settled_price() else { return Ok(Cost::default()) };
    match costs.and_then(|costs| costs.of(&limit.name)) {
        Some(amount) => amount
            .cost(limit.unit())
            .ok_or_else(|| format!("`cost` must have at most three decimals at the limit {:?}", limit.name)),
        None => Ok(price.default_cost.unwrap_or(reserved)),
    }
}
