//! Decides about a request for which the store gave no answer.

use super::refusal::Refusal;
use super::retry_after::{Jitter, retry_after};
use base::time::Micros;
use ledger::charge::{Charge, Plan};
use rules::rule::OnStoreFailure;
use rules::rule_set::RuleSet;

/// How long a refused client should wait while the store gives no answer, before jitter is added.
const STORE_WAIT: Micros = Micros(3_000_000);

/// Returns the refusal of a request for which the store gave no answer, by the first limit with `on_store_failure:
/// deny`. `None` if the plan has no such limit.
pub fn refusal(rules: &RuleSet, plan: &Plan, jitter: Jitter) -> Option<Refusal> {
    let denies = |charge: &&Charge| {
        rules.limit(charge.limit).is_some_and(|limit| limit.on_store_failure == OnStoreFailure::Deny)
    };
    let charge = plan.enforced.iter().find(denies)?;
    Some(Refusal::store_unavailable(retry_after(charge.key.spread(), STORE_WAIT, jitter)))
}
