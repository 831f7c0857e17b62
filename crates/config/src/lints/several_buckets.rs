//! Finds the limits that a request may pay together with other limits. On several nodes of a cluster, a charge to these
//! limits may be undone. So the cached levels of their buckets are valid for a shorter time.

use std::collections::HashSet;

use crate::config::Config;
use crate::lints::constraints::Constraints;
use ledger::bucket_key::BucketKey;
use ledger::charge::LimitId;
use request::door::Door;
use rules::rule::{Mode, Policy, Rule};
use stores::redis::Target;
use stores::redis::cluster::Place;
use stores::{Endpoint, Settings};

impl Config {
    /// Returns the limits that a request may pay together with limits on other nodes of the cluster. Empty if all
    /// buckets are on one server.
    pub fn limits_charged_beside_others(&self) -> HashSet<LimitId> {
        // An `rls` call has several descriptors, and may charge any limits together.
        self.charged_beside_others(self.listeners.iter().any(|listener| listener.doors().contains(&Door::Rls)))
    }

    /// Returns the limits as [`Config::limits_charged_beside_others`] does, but only for requests that this gateway forwards.
    pub(crate) fn limits_charged_with_others(&self) -> HashSet<LimitId> {
        self.charged_beside_others(false)
    }

    fn charged_beside_others(&self, any_together: bool) -> HashSet<LimitId> {
        if !is_spread(&self.store) {
            return HashSet::new();
        }
        let policies = &self.rules.source().policies;
        let charging = |(policy, of): (usize, &'_ Policy)| -> Vec<(usize, Vec<LimitId>)> {
            let limits = |rule| (rule, self.enforced_limits(policy, rule));
            (0..of.rules.len()).map(limits).filter(|(_, limits)| !limits.is_empty()).collect()
        };
        let charging: Vec<_> = policies.iter().enumerate().map(charging).collect();
        let rule = |policy: usize, rule: usize| {
            let policy = policies.get(policy)?;
            Some((policy, policy.rules.get(rule)?))
        };
        let meets_another = |policy: usize, index: usize| {
            let Some(one) = rule(policy, index) else { return false };
            let others = charging.iter().enumerate().filter(|(other, _)| *other != policy);
            let mut others =
                others.flat_map(|(other, rules)| rules.iter().filter_map(move |(index, _)| rule(other, *index)));
            others.any(|other| may_meet(one, other))
        };
        let mut beside = HashSet::new();
        for (policy, rules) in charging.iter().enumerate() {
            for (index, limits) in rules {
                if any_together || limits.len() > 1 || meets_another(policy, *index) {
                    beside.extend(limits);
                }
            }
        }
        self.add_limits_of_the_same_buckets(&mut beside);
        beside
    }

    fn enforced_limits(&self, policy: usize, rule: usize) -> Vec<LimitId> {
        let is_enforced = |id: &LimitId| self.rules.limit(*id).is_some_and(|limit| limit.mode == Mode::Enforce);
        self.rules.charged_by(policy, rule).iter().copied().filter(is_enforced).collect()
    }

    /// Adds the limits that share buckets with the given limits, because they have the same meter.
    fn add_limits_of_the_same_buckets(&self, limits: &mut HashSet<LimitId>) {
        let buckets: HashSet<BucketKey> =
            limits.iter().filter_map(|id| self.rules.limit(*id)).map(|limit| limit.identity()).collect();
        let all = (0..).map(LimitId).zip(self.rules.limits());
        limits.extend(all.filter(|(_, limit)| buckets.contains(&limit.identity())).map(|(id, _)| id));
    }
}

/// Whether the store distributes the buckets over several nodes of a cluster.
pub(crate) fn is_spread(store: &Settings) -> bool {
    let Some(Endpoint::Redis { target: Target::Cluster(cluster), .. }) = store.endpoint() else { return false };
    matches!(cluster.place, Place::Spread { hash_tags } if hash_tags > 1)
}

/// Whether two rules may apply to the same request. Each pair is a policy and one of its rules.
pub(crate) fn may_meet((policy, rule): (&Policy, &Rule), (other_policy, other): (&Policy, &Rule)) -> bool {
    let constraints = Constraints::under(policy, rule);
    !other_policy.conditions.iter().chain(&other.conditions).any(|condition| constraints.excludes(condition))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::language::environment::Environment;

    const CLUSTER: &str = "store: {redis: {cluster: {nodes: [\"a:1\"]}}}";
    const NUMBERS: &str = "algorithm_config: {rate: 1/s}";

    /// Asserts the names of the limits that may be charged together with other limits.
    #[track_caller]
    fn check(text: &str, expected: &[&str]) {
        let read = |_: &Path| Err(std::io::ErrorKind::NotFound.into());
        let surroundings = Environment { variable: &|_| None, folder: Path::new(""), read: &read };
        let text = format!("upstream: http://a\n{}", text.replace("NUMBERS", NUMBERS));
        let config = Config::parse("gateway.yaml", text.as_bytes(), surroundings).unwrap();
        let beside = config.limits_charged_beside_others();
        let mut names: Vec<_> = beside.iter().map(|id| &*config.rules.limit(*id).unwrap().name).collect();
        names.sort_unstable();
        assert_eq!(names, expected, "{text}");
    }

    #[test]
    fn rules_of_one_policy_are_not_charged_together() {
        let rules = "rules:
  - {name: free, match: {header:x-plan: free}, limit_keys: [ip:address], NUMBERS}
  - {name: other, limit_keys: [ip:address], NUMBERS}
";
        check(&format!("{CLUSTER}\n{rules}"), &[]);
    }

    #[test]
    fn limits_of_one_rule_are_and_so_is_whatever_shares_their_buckets() {
        let rules = "rules:
  - name: both
    match: {header:x-plan: free}
    limit_keys: [ip:address]
    limits:
      minute: {rate: 1/min, meter: calls}
      day: {rate: 1/day}
  - {name: metered, match: {header:x-plan: pro}, limit_keys: [ip:address], limits: {all: {rate: 1/s, meter: calls}}}
  - {name: alone, limit_keys: [ip:address], NUMBERS}
";
        check(&format!("{CLUSTER}\n{rules}"), &["both.day", "both.minute", "metered.all"]);
    }

    #[test]
    fn policies_are_unless_their_conditions_exclude_each_other() {
        let policies = "policies:
  - {name: a, match: {path: /a}, rules: [{name: a, limit_keys: [ip:address], NUMBERS}]}
  - {name: b, match: {path: /b}, rules: [{name: b, limit_keys: [ip:address], NUMBERS}]}
  - {name: c, match: {path: /b, method: POST}, rules: [{name: c, limit_keys: [ip:address], NUMBERS}]}
  - {name: d, mode: shadow, rules: [{name: d, limit_keys: [ip:address], NUMBERS}]}
";
        check(&format!("{CLUSTER}\n{policies}"), &["b", "c"]);
    }

    #[test]
    fn none_are_where_all_buckets_are_on_one_server() {
        let policies = "policies:
  - {name: a, rules: [{name: a, limit_keys: [ip:address], NUMBERS}]}
  - {name: b, rules: [{name: b, limit_keys: [ip:address], NUMBERS}]}
";
        check(&format!("{CLUSTER}\n{policies}"), &["a", "b"]);
        check(&format!("{}\n{policies}", CLUSTER.replace("]}", "], place: together}")), &[]);
        check(&format!("store: {{redis: {{url: \"redis://a\"}}}}\n{policies}"), &[]);
    }
}
