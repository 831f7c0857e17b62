//! Copies decisions and charges from the gateway's own log, if the log lacks the attributes for a new decision.
//!
//! New numbers for an existing rule can then be simulated. This is valid only if the rule is chosen as before. Nothing
//! is copied for a policy whose conditions or keys differ from the former file.

use super::bucket::{BucketCharge, BucketId};
use super::open_question::RuleRange;
use super::own_entry::{LoggedCharge, OwnEntry};

use ledger::bucket_key::{BucketKey, LimitTag};
use ledger::charge::{Charge, ChargePurpose, LimitId};
use ledger::cost::Cost;
use request::door::Door;
use rules::rule::{Action, Mode, Otherwise, Policy, Price, Rule};
use rules::rule_set::RuleSet;
use rules::settled_price::{Reserve, SettledPrice};

/// The decisions that can be copied from the gateway's own log, where the log lacks attributes.
#[derive(Debug)]
pub(crate) struct LoggedDecisions<'c> {
    rules: &'c RuleSet,
    policies: Vec<LoggedPolicy<'c>>,
    /// Whether exemptions are the same as in the file under which the log was written.
    exempts_as_before: bool,
}

#[derive(Debug)]
struct LoggedPolicy<'c> {
    name: &'c str,
    /// Whether the policy chooses its rules as in the file under which the log was written.
    chooses_as_before: bool,
    /// Whether the policy can deny requests.
    denies: bool,
    rules: Vec<LoggedRule<'c>>,
}

#[derive(Debug)]
struct LoggedRule<'c> {
    name: &'c str,
    limits: Vec<(LimitId, &'c Price)>,
}

impl<'c> LoggedDecisions<'c> {
    /// Finds the decisions that can be copied for `rules`. `before` is the rule set under which the log was written, or
    /// `None` if the log was written under `rules`.
    pub(crate) fn new(rules: &'c RuleSet, before: Option<&RuleSet>) -> LoggedDecisions<'c> {
        let mut next = 0;
        let mut rule = |rule: &'c Rule| {
            let Action::Charge(limits) = &rule.action else {
                return LoggedRule { name: &rule.name, limits: Vec::new() };
            };
            let with_candidate = limits.iter().flat_map(|limit| {
                let price = &limit.price;
                std::iter::once(price).chain(limit.candidate.map(|_| price))
            });
            let mut id = || {
                next += 1;
                LimitId(next - 1)
            };
            LoggedRule { name: &rule.name, limits: with_candidate.map(|price| (id(), price)).collect() }
        };
        let mut policies = Vec::new();
        for policy in &rules.source().policies {
            let was = before.map(|before| before.source().policies.iter().find(|was| was.name == policy.name));
            policies.push(LoggedPolicy {
                name: &policy.name,
                chooses_as_before: was.is_none_or(|was| was.is_some_and(|was| choice(was) == choice(policy))),
                denies: policy.otherwise == Otherwise::Deny
                    || policy.rules.iter().any(|rule| matches!(rule.action, Action::Deny)),
                rules: policy.rules.iter().map(&mut rule).collect(),
            });
        }
        let exempt = |rules: &RuleSet| format!("{:?}", rules.source().exempt);
        let exempts_as_before = before.is_none_or(|before| exempt(before) == exempt(rules));
        LoggedDecisions { rules, policies, exempts_as_before }
    }

    /// Whether a request is exempt: the log records no charge for it. `None` if the exemptions were different when the
    /// log was written.
    pub(crate) fn exempts(&self, logged: &OwnEntry) -> Option<bool> {
        self.exempts_as_before.then_some(logged.limits.is_empty())
    }

    /// Whether this policy can deny requests, and chooses its rules as it did when the log was written.
    pub(crate) fn denies(&self, policy: usize) -> bool {
        self.policies.get(policy).is_some_and(|policy| policy.denies && policy.chooses_as_before)
    }

    /// Returns the charges of a request by these rules of a policy, on the assumption that the logged rule applies
    /// again. `None` if the log does not determine the charges.
    pub(crate) fn charges(&self, policy: usize, rules: RuleRange, logged: &OwnEntry) -> Option<Vec<BucketCharge>> {
        // The log records no charges for a denied request.
        let policy = self.policies.get(policy).filter(|policy| policy.chooses_as_before && !logged.denied)?;
        let mut charges = Vec::new();
        let mut known = 0;
        let charged: Vec<&LoggedCharge> =
            logged.limits.iter().filter(|charged| *charged.policy == *policy.name).collect();
        for (index, rule) in policy.rules.iter().enumerate() {
            if !rules.contains(index) {
                continue;
            }
            let of_rule = || charged.iter().copied().filter(|charged| self.is_of(rule, charged));
            known += of_rule().count();
            let Some(any) = of_rule().next() else { continue };
            for (id, price) in &rule.limits {
                let limit = self.rules.limit(*id)?;
                let ([algorithm], None) = (&limit.variants[..], &limit.claimed) else {
                    // Overrides, and numbers from claims, depend on the client's values, which are unknown.
                    return None;
                };
                let same = of_rule().find(|charged| *charged.limit == *limit.name);
                let charged = same.unwrap_or(any);
                let cost = match price {
                    Price::Fixed(cost) => *cost,
                    Price::FromRequest { min, max, .. } => charged.cost.bounded(*min, *max),
                    // `LoggedCost` replaces this cost if the log tells what this limit reserved.
                    Price::Settled(SettledPrice { reserve: Reserve::Fixed(cost), .. }) => *cost,
                    Price::Settled(_) => charged.cost,
                };
                // Another proxy has forwarded the request, so that it begins no ban. A budget only asks whether one runs.
                let at_door = algorithm.beginning_no_ban().filter(|_| logged.door != Some(Door::Proxy));
                let (algorithm, cost, purpose) = match at_door {
                    Some(algorithm) if algorithm.is_held() => (algorithm, Cost::default(), ChargePurpose::Check),
                    Some(algorithm) => (algorithm, cost, ChargePurpose::Spend),
                    None => (*algorithm, cost, ChargePurpose::Spend),
                };
                // The real key is unknown. `BucketId::Logged` identifies the bucket instead.
                let charge = Charge {
                    key: BucketKey([0; 16]),
                    algorithm,
                    cost,
                    limit: *id,
                    variant: 0,
                    tag: LimitTag::default(),
                    purpose,
                };
                let bucket = BucketId::Logged(limit.identity(), charged.bucket);
                charges.push(BucketCharge { bucket, charge, settled: None });
            }
        }
        // If an enforced charge in the log belongs to none of these rules, another rule charged the request.
        let enforced = charged.iter().filter(|charged| charged.mode == Mode::Enforce).count();
        (known >= enforced || matches!(rules, RuleRange::Only(_))).then_some(charges)
    }

    /// Whether the limit in the log belongs to this rule. It must have the name of one of the rule's limits, or the
    /// rule's name, or the rule's name with a `.` and more text.
    fn is_of(&self, rule: &LoggedRule<'_>, charged: &LoggedCharge) -> bool {
        let whole = |(id, _): &(LimitId, _)| self.rules.limit(*id).is_some_and(|limit| *limit.name == *charged.limit);
        let part =
            || charged.limit.strip_prefix(rule.name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
        rule.limits.iter().any(whole) || part()
    }
}

/// Returns a text of all parts of a policy that determine which rule applies and which buckets are charged. Numbers are
/// left out.
fn choice(policy: &Policy) -> String {
    let rule = |rule: &Rule| {
        let (action, meters) = match &rule.action {
            Action::Allow => ("allow", Vec::new()),
            Action::Deny => ("deny", Vec::new()),
            Action::Charge(limits) => {
                let meters = limits.iter().filter_map(|limit| Some((&limit.name, limit.meter.as_ref()?)));
                ("charge", meters.collect())
            }
        };
        format!("{:?}", (&rule.name, &rule.conditions, &rule.keys, rule.mode, action, meters))
    };
    let rules: Vec<String> = policy.rules.iter().map(rule).collect();
    format!("{:?}", (&policy.conditions, policy.mode, policy.otherwise, rules))
}
