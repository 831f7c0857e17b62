//! Decides a request for which the store gave no answer, by what each limit that was asked says of that.
//!
//! One that says `deny` is enough to refuse, and then nothing is charged. Those that say `local` are charged here, to
//! this gateway's shares, all or none; those that say `allow` let it pass. A shadow is not asked.

use smallvec::SmallVec;

use super::{Refusal, retry_after};
use crate::base::time::Micros;
use crate::gateway::response::problem::Reason;
use crate::gateway::response::ratelimit_fields::RateFields;
use crate::gateway::state::GatewayState;
use crate::gateway::state::snapshot::Snapshot;
use crate::limit::charge::{Charge, Plan, Settlement};
use crate::limit::outcome::{Outcome, Verdict};
use crate::limit::rule::OnStoreFailure;
use crate::store::{Source, StoreError, TakeReply};

/// What a refused client is told to wait while the store is away, before the spread.
const OUTAGE: Micros = Micros(3_000_000);

/// What this gateway alone comes to, or the refusal of a limit that wants the store's word.
pub fn fall_back(
    gateway: &GatewayState,
    snapshot: &Snapshot,
    plan: &Plan,
    error: StoreError,
) -> Result<TakeReply, Box<Refusal>> {
    let says = |charge: &Charge| snapshot.limit(charge.limit).map(|(limit, _)| limit.on_store_failure);
    let denied = plan.enforced.iter().find(|charge| says(charge) == Some(OnStoreFailure::Deny));
    for charge in &plan.enforced {
        let Some((_, metrics)) = snapshot.limit(charge.limit) else { continue };
        metrics.count_fallback(error);
        if denied.is_some() {
            metrics.requests.increment(1);
        }
        if says(charge) == Some(OnStoreFailure::Deny) {
            metrics.unavailable.increment(1);
        }
    }
    match denied {
        None => Ok(take_locally(gateway, plan, |charge| says(charge) == Some(OnStoreFailure::Local))),
        Some(charge) => Err(Box::new(Refusal {
            status: 503,
            reason: Reason::StoreUnavailable,
            retry_after: Some(retry_after(charge.key.spread(), OUTAGE, snapshot.config.retry_after_jitter)),
            fields: Some(RateFields::new(&snapshot.config.headers, &snapshot.shown, plan, None)),
            violated: None,
        })),
    }
}

/// Charges those that are to be charged here; of the others nothing is known.
fn take_locally(gateway: &GatewayState, plan: &Plan, is_local: impl Fn(&Charge) -> bool) -> TakeReply {
    let enforced: SmallVec<[_; 2]> = plan.enforced.iter().filter(|charge| is_local(charge)).cloned().collect();
    if enforced.is_empty() {
        let enforced = plan.enforced.iter().map(|_| Outcome::UNASKED).collect();
        let settlement = Settlement { verdict: Verdict::Allow, enforced, shadow: SmallVec::new() };
        return TakeReply { now: gateway.clock.now(), settlement, evicted: 0, source: Source::Fallback };
    }
    let mut taken = gateway.store.take_fallback(&Plan { enforced, shadow: SmallVec::new() });
    let mut outcomes = std::mem::take(&mut taken.settlement.enforced).into_iter();
    let outcome = |charge| if is_local(charge) { outcomes.next() } else { None };
    taken.settlement.enforced = plan.enforced.iter().map(outcome).map(|one| one.unwrap_or(Outcome::UNASKED)).collect();
    taken
}
