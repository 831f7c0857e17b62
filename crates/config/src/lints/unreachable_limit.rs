//! Finds limits that never refuse a request, because a smaller limit in another policy refuses first.

use super::file::{File, LocatedRule};
use super::location::Finding;
use ledger::algorithm::Algorithm;
use ledger::algorithm::token_bucket::TokenBucket;
use rules::rule::{Action, Limit, Policy, Rule};

/// The largest number of [`Ceiling`]s that are compared with each rule.
const MAX_CEILINGS: usize = 100;

/// A limit with a token bucket. Every request that has the limit keys of the rule must pay this limit.
#[derive(Debug)]
struct Ceiling<'f> {
    policy: &'f Policy,
    rule: &'f Rule,
    limit: &'f Limit,
    bucket: TokenBucket,
}

/// Finds token buckets that never refuse a request, because a smaller limit has the same or fewer limit keys. Reports
/// at most one limit of each rule.
pub(super) fn unreachable_limit(file: &File<'_>) -> Vec<Finding> {
    let ceilings: Vec<Ceiling<'_>> =
        (0..file.policies.len()).filter_map(|policy| ceiling(&file.rules_of(policy))).take(MAX_CEILINGS).collect();
    let mut found = Vec::new();
    if ceilings.is_empty() {
        return found;
    }
    for located in file.rules().filter(|located| located.is_enforced()) {
        let unreachable = buckets(located.rule).find_map(|(limit, bucket)| {
            let ceiling = ceilings.iter().find(|ceiling| ceiling.covers(&located, limit, &bucket))?;
            Some((limit, bucket, ceiling))
        });
        let Some((limit, bucket, ceiling)) = unreachable else { continue };
        let name = format!("{}/{}", ceiling.policy.name, ceiling.rule.name);
        let what = format!(
            "never refuses with {bucket}: `{name}` charges the same requests, and has {} (line {})",
            ceiling.bucket, ceiling.rule.position.line
        );
        found.push(located.numbers(limit).finding(what, format!("raise `{name}` above it, or remove one of the two")));
    }
    found
}

/// Returns the first limit of a policy if every request that has the limit keys must pay it. So neither the policy nor
/// its first enforced rule may have conditions, and the rule may not expire.
fn ceiling<'f>(rules: &[LocatedRule<'f>]) -> Option<Ceiling<'f>> {
    let first = rules.iter().find(|located| located.is_enforced())?;
    let (policy, rule) = (first.policy, first.rule);
    if !policy.conditions.is_empty() || !rule.conditions.is_empty() || rule.until.is_some() {
        return None;
    }
    let (limit, bucket) = buckets(rule).next()?;
    Some(Ceiling { policy, rule, limit, bucket })
}

/// Returns the limits of a rule that have token buckets of their own, with the same numbers for all requests.
fn buckets(rule: &Rule) -> impl Iterator<Item = (&Limit, TokenBucket)> {
    let limits = match &rule.action {
        Action::Charge(limits) => &limits[..],
        Action::Allow | Action::Deny => &[],
    };
    limits.iter().filter_map(|limit| {
        let is_plain = limit.meter.is_none() && limit.claimed.is_none() && limit.overrides.is_empty();
        match limit.algorithm {
            Algorithm::TokenBucket(bucket) if is_plain => Some((limit, bucket)),
            _ => None,
        }
    })
}

impl Ceiling<'_> {
    /// Whether every request of the limit also pays this ceiling, at the same cost, and the ceiling refuses first.
    fn covers(&self, located: &LocatedRule<'_>, limit: &Limit, bucket: &TokenBucket) -> bool {
        self.bucket.burst() < bucket.burst()
            && self.bucket.per_second() < bucket.per_second()
            && !std::ptr::eq(self.policy, located.policy)
            && self.rule.keys.iter().all(|key| located.rule.keys.contains(key))
            && self.limit.price == limit.price
            && self.limit.on_store_failure == limit.on_store_failure
    }
}
