//! Decides about a request for which the store gave no answer, by `on_store_failure` of each limit that was asked.
//!
//! One limit with `deny` is enough to refuse, and then nothing is charged. Those with `local` are charged to this
//! gateway's shares, all or none; those with `allow` let the request pass. A shadow is not asked.

use smallvec::SmallVec;

use crate::base::time::Micros;
use crate::decision::refusal::Refusal;
use crate::decision::store_failure;
use crate::gateway::state::GatewayState;
use crate::gateway::state::snapshot::Snapshot;
use crate::limit::charge::{Charge, Plan, Settlement};
use crate::limit::outcome::{Outcome, Verdict};
use crate::limit::rule::OnStoreFailure;
use crate::store::{Source, StoreError, TakeReply};

/// Decides with what this gateway alone knows, and counts that.
///
/// # Errors
/// Returns the refusal of a limit that denies requests while the store is away.
pub fn fall_back(
    gateway: &GatewayState,
    snapshot: &Snapshot,
    plan: &Plan,
    error: StoreError,
) -> Result<TakeReply, Refusal> {
    let rules = &snapshot.config.rules;
    let refusal = store_failure::refusal(rules, plan, snapshot.config.retry_after_jitter);
    for charge in &plan.enforced {
        let Some((limit, metrics)) = snapshot.limit(charge.limit) else { continue };
        // What is done: one that denies refuses for all.
        let action = if refusal.is_some() { OnStoreFailure::Deny } else { limit.on_store_failure };
        metrics.count_fallback(action, error);
        if refusal.is_some() {
            metrics.requests.increment(1);
        }
        if limit.on_store_failure == OnStoreFailure::Deny {
            metrics.unavailable.increment(1);
        }
    }
    let is_local = |charge: &Charge| {
        rules.limit(charge.limit).is_some_and(|limit| limit.on_store_failure == OnStoreFailure::Local)
    };
    match refusal {
        None => Ok(take_locally(gateway, plan, is_local)),
        Some(refusal) => Err(refusal),
    }
}

/// Charges the local limits; nothing is known of the others.
fn take_locally(gateway: &GatewayState, plan: &Plan, is_local: impl Fn(&Charge) -> bool) -> TakeReply {
    let enforced: SmallVec<[_; 2]> = plan.enforced.iter().filter(|charge| is_local(charge)).cloned().collect();
    if enforced.is_empty() {
        let enforced = plan.enforced.iter().map(|_| Outcome::UNASKED).collect();
        let settlement = Settlement { verdict: Verdict::Allow, delay: Micros(0), enforced, shadow: SmallVec::new() };
        return TakeReply { now: gateway.clock.now(), settlement, evicted: 0, source: Source::Fallback };
    }
    let mut taken = gateway.store.take_fallback(&Plan { enforced, shadow: SmallVec::new() });
    let mut outcomes = std::mem::take(&mut taken.settlement.enforced).into_iter();
    let outcome = |charge| if is_local(charge) { outcomes.next() } else { None };
    taken.settlement.enforced = plan.enforced.iter().map(outcome).map(|one| one.unwrap_or(Outcome::UNASKED)).collect();
    taken
}
