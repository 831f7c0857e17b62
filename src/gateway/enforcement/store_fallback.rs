//! Decides about a request when the store did not answer, by the setting `on_store_failure` of each limit of the plan.
//!
//! A ban that the store has reported refuses the request, whatever the settings. Otherwise, if one limit has `deny`, the
//! request is refused and nothing is charged. Limits with `local` are charged to buckets in this process, all or none.
//! Such a bucket has this gateway's share of the limit. Limits with `allow` let the request pass, and so do limits of
//! which only a ban can refuse it. Limits in shadow mode are skipped. If buckets are on several servers, the charges
//! that some servers have granted are kept, unless the request is refused.

use smallvec::SmallVec;

use crate::gateway::state::GatewayState;
use crate::gateway::state::snapshot::Snapshot;
use base::time::Micros;
use decision::refusal::Refusal;
use decision::store_failure_refusal;
use ledger::charge::{Charge, Plan, Settlement};
use ledger::holds::TimedHold;
use ledger::outcome::{Outcome, Verdict};
use rules::rule::OnStoreFailure;
use stores::{Source, TakeFailure, TakeReply, Worker};

/// Decides about a request for which the store gave no answer, and counts the decision. Each limit's `on_store_failure`
/// applies. A timed hold is refused, because only the store can keep it.
///
/// # Errors
/// Returns the refusal of a limit that denies requests while the store is unavailable.
pub(super) fn fall_back(
    gateway: &GatewayState,
    snapshot: &Snapshot,
    (worker, hold): (Worker, Option<TimedHold>),
    plan: &Plan,
    TakeFailure { error, partial }: TakeFailure,
) -> Result<TakeReply, Refusal> {
    let rules = &snapshot.config.rules;
    let unanswered = partial.as_ref().map_or(plan, |partial| partial.unanswered());
    let banned = gateway.store.refuse_banned(unanswered);
    let jitter = snapshot.config.retry_after_jitter;
    let refusal = match (&banned, hold) {
        (Some(_), _) => None,
        (None, Some(_)) => plan.charges().next().map(|charge| store_failure_refusal::unread(charge, jitter)),
        (None, None) => store_failure_refusal::refusal(rules, unanswered, jitter),
    };
    let is_refused = banned.is_some() || refusal.is_some();
    for charge in unanswered.enforced.iter().filter(|charge| !charge.only_asks_for_ban()) {
        let Some((limit, metrics)) = snapshot.limit(charge.limit) else { continue };
        // If one limit or a ban refuses the request, every limit counts a denial.
        let action = if is_refused { OnStoreFailure::Deny } else { limit.on_store_failure };
        metrics.count_fallback(action, error);
        if refusal.is_some() && limit.on_store_failure == OnStoreFailure::Deny {
            metrics.unavailable.increment(1);
        }
    }
    let is_local = |charge: &Charge| {
        rules.limit(charge.limit).is_some_and(|limit| limit.on_store_failure == OnStoreFailure::Local)
    };
    if let Some(refusal) = refusal {
        for (_, metrics) in plan.enforced.iter().filter_map(|charge| snapshot.limit(charge.limit)) {
            metrics.requests.increment(1);
        }
        // Dropping `partial` gives back what was charged.
        return Err(refusal);
    }
    let rest = banned.unwrap_or_else(|| take_locally(gateway, worker, unanswered, is_local));
    Ok(match partial {
        Some(partial) => partial.settle(plan, rest),
        None => rest,
    })
}

/// Charges the limits with `local`. The levels of the other limits are unknown. A request that passes holds slots of
/// the other limits too. The store learns of these slots when it answers again. Checks of bans take nothing.
fn take_locally(gateway: &GatewayState, worker: Worker, plan: &Plan, is_local: impl Fn(&Charge) -> bool) -> TakeReply {
    let is_local = |charge: &Charge| !charge.only_asks_for_ban() && is_local(charge);
    let taking = plan.enforced.iter().filter(|charge| !charge.only_asks_for_ban());
    let (enforced, allowed): (SmallVec<[_; 2]>, SmallVec<[_; 2]>) = taking.cloned().partition(is_local);
    let allowed = Plan { enforced: allowed, shadow: SmallVec::new() };
    if enforced.is_empty() {
        let enforced = plan.enforced.iter().map(|_| Outcome::UNASKED).collect();
        let settlement = Settlement { verdict: Verdict::Allow, delay: Micros(0), enforced, shadow: SmallVec::new() };
        let (now, reservation) = (gateway.clock.now(), gateway.store.hold(worker, &allowed));
        return TakeReply { now, settlement, evicted: 0, source: Source::Fallback, reservation };
    }
    let mut taken = gateway.store.take_fallback(worker, &Plan { enforced, shadow: SmallVec::new() });
    if taken.settlement.is_granted() {
        taken.reservation.join(gateway.store.hold(worker, &allowed));
    }
    let mut outcomes = std::mem::take(&mut taken.settlement.enforced).into_iter();
    let outcome = |charge| if is_local(charge) { outcomes.next() } else { None };
    taken.settlement.enforced = plan.enforced.iter().map(outcome).map(|one| one.unwrap_or(Outcome::UNASKED)).collect();
    taken
}
