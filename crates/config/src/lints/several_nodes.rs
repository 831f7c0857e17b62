//! Finds policies whose requests may charge buckets on several nodes of a Redis Cluster. Each node needs its own call.

use super::file::{File, LocatedRule};
use super::location::Finding;
use crate::lints::several_buckets::{is_spread, may_meet};
use rules::rule::Action;

/// Finds policies whose requests may charge buckets on several nodes, because of `place: spread`. The buckets may also
/// belong to another policy.
pub(super) fn several_nodes(file: &File<'_>) -> Vec<Finding> {
    if !is_spread(&file.config.store) {
        return Vec::new();
    }
    let charging: Vec<Vec<LocatedRule<'_>>> = (0..file.policies.len())
        .map(|policy| file.rules_of(policy).into_iter().filter(|rule| limits(rule) > 0).collect())
        .collect();
    let meets_another = |policy: usize, rules: &[LocatedRule<'_>]| {
        let others = charging.iter().enumerate().filter(|(other, _)| *other != policy);
        let mut others = others.flat_map(|(_, rules)| rules);
        others.any(|other| rules.iter().any(|rule| may_meet((rule.policy, rule.rule), (other.policy, other.rule))))
    };
    let concerned = charging
        .iter()
        .enumerate()
        .filter(|(policy, rules)| rules.iter().any(|rule| limits(rule) > 1) || meets_another(*policy, rules));
    concerned
        .filter_map(|(index, _)| {
            let policy = file.policies.get(index)?;
            let what = format!(
                "a request under policy {} may charge buckets on several nodes; until one that is refused has got back \
                 what it paid, others may be refused although their buckets could pay",
                policy.name
            );
            let policies = file.root.key("policies");
            let location = if file.root.has("rules") { file.root.key("rules") } else { policies.member(index) };
            Some(location.finding(what, "set `place: together` if one node is enough for all buckets, or accept this"))
        })
        .collect()
}

/// Returns how many limits a rule charges. A rule in shadow mode counts as a rule without limits.
fn limits(located: &LocatedRule<'_>) -> usize {
    match &located.rule.action {
        Action::Charge(limits) if located.is_enforced() => limits.len(),
        Action::Charge(_) | Action::Deny | Action::Allow => 0,
    }
}
