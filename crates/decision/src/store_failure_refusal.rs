//! Decides about a request for which the store gave no answer.

use super::refusal::Refusal;
use super::retry_after::{Jitter, retry_after};
use base::time::Micros;
use ledger::bucket_key::BucketKey;
use ledger::charge::{Charge, Plan};
use rules::rule::OnStoreFailure;
use rules::rule_set::RuleSet;

/// How long a refused client should wait while the store gives no answer, before jitter is added.
const STORE_WAIT: Micros = Micros(3_000_000);

/// Returns the refusal of a request for which the store gave no answer, by the first limit with `on_store_failure:
/// deny`. `None` if the plan has no such limit. A limit of which only a ban can refuse the request does not count.
pub fn refusal(rules: &RuleSet, plan: &Plan, jitter: Jitter) -> Option<Refusal> {
    let denies = |charge: &&Charge| {
        let limit = rules.limit(charge.limit).filter(|_| !charge.only_asks_for_ban());
        limit.is_some_and(|limit| limit.on_store_failure == OnStoreFailure::Deny)
    };
    let charge = plan.enforced.iter().find(denies)?;
    Some(unread(charge, jitter))
}

/// Returns the refusal of a question about a plan that begins with this charge, because its buckets could not be read.
pub fn unread(charge: &Charge, jitter: Jitter) -> Refusal {
    of_bucket(&charge.key, jitter)
}

/// Returns how long a client should wait whose request a purse cannot pay while home gives no answer, in seconds.
pub fn home_wait(charge: &Charge, jitter: Jitter) -> u64 {
    retry_after(charge.key.spread(), STORE_WAIT, jitter)
}

/// Returns the refusal of a call that cannot be answered without the store, about this bucket.
pub fn of_bucket(bucket: &BucketKey, jitter: Jitter) -> Refusal {
    Refusal::store_unavailable(retry_after(bucket.spread(), STORE_WAIT, jitter))
}
