//! Chooses which limit speaks for a request that limits refuse, and what the refusal says.

use super::reason::Reason;
use super::refusal::{Exceeded, Refusal};
use super::retry_after::{Jitter, retry_after};
use crate::limit::charge::{Charge, Plan, Settlement};
use crate::limit::outcome::Outcome;
use crate::limit::rule::{Expose, RefusalStatus};
use crate::limit::rule_set::RuleSet;

/// The enforced charges that refused, in the order of the file.
pub fn refusing<'p>(plan: &'p Plan, settlement: &'p Settlement) -> impl Iterator<Item = (&'p Charge, &'p Outcome)> {
    plan.enforced.iter().zip(&settlement.enforced).filter(|(_, outcome)| outcome.verdict.is_refusal())
}

/// The charge that speaks for all that refused: the one with the longest wait, of equal ones the first. `None` if none
/// refused.
pub fn speaker<'p>(plan: &'p Plan, settlement: &'p Settlement) -> Option<(&'p Charge, &'p Outcome)> {
    refusing(plan, settlement).reduce(|worst, next| if next.1.retry_after > worst.1.retry_after { next } else { worst })
}

/// The refusal of a plan whose settlement is not granted.
pub fn refusal(rules: &RuleSet, plan: &Plan, settlement: &Settlement, jitter: Jitter) -> Refusal {
    let limits = || refusing(plan, settlement).map(|(charge, _)| rules.limit(charge.limit));
    // The caller's fault, unless every limit that refused is shared capacity.
    let shared = limits().all(|limit| limit.is_some_and(|limit| limit.refusal == RefusalStatus::ReducedCapacity));
    let exceeded = if shared { Exceeded::SharedCapacity } else { Exceeded::Quota };
    let exposed = limits().flatten().filter(|limit| limit.expose == Expose::Yes);
    let violated = exposed.map(|limit| limit.name.clone()).collect();
    let speaker = speaker(plan, settlement);
    let reason = speaker.map_or(Reason::Denied, |(charge, _)| Reason::exceeded(&charge.algorithm));
    let seconds = speaker.map(|(charge, outcome)| retry_after(charge.key.spread(), outcome.retry_after, jitter));
    Refusal::exceeded(exceeded, reason, seconds, violated)
}
