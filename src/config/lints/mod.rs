//! Finds what is right but unwise in a file: what a client could get around, and what does not do what it seems to say.
//!
//! A lint is a name and a function, in [`LINTS`]; docs/warnings.md explains each. Lints see a file without a problem, and say
//! only what is certain: a remark that is wrong teaches people to pass over the right ones.

mod access;
mod cost;
mod example;
mod expired;
mod impossible;
mod keys;
mod known;
mod location;
mod open;
mod order;
mod proxies;
mod quota;
mod texts;

use super::Config;
use super::document::Checked;
use super::tree::Node;
use super::warning::Warning;
use crate::limit::rule::{Condition, Mode, Policy, Rule};
use location::{Finding, Location};

type Lint = fn(&File<'_>) -> Vec<Finding>;

/// All of them. A name is for good: files silence lints by it.
pub const LINTS: [(&str, Lint); 12] = [
    ("unverified_key", keys::unverified_key),
    ("open_policy", open::open_policy),
    ("unreachable_rule", order::unreachable_rule),
    ("late_deny", order::late_deny),
    ("impossible_value", impossible::impossible_value),
    ("client_chosen_cost", cost::client_chosen_cost),
    ("double_first_period", quota::double_first_period),
    ("expired_rule", expired::expired_rule),
    ("public_admin", access::public_admin),
    ("trust_everyone", proxies::trust_everyone),
    ("exempt_proxy", proxies::exempt_proxy),
    ("guessable_names", access::guessable_names),
];

/// What a lint looks at.
#[derive(Debug)]
pub struct File<'f> {
    config: &'f Config,
    policies: &'f [Policy],
    exempt: &'f [Vec<Condition>],
    root: Location<'f>,
}

/// A rule, and where it stands.
#[derive(Clone, Debug)]
struct Standing<'f> {
    policy: &'f Policy,
    rule: &'f Rule,
    /// In its policy.
    number: usize,
    spot: Location<'f>,
}

impl<'f> File<'f> {
    /// The rules of one policy.
    fn rules_of(&self, policy: usize) -> Vec<Standing<'f>> {
        // `rules` is short for one policy.
        let rules = match self.root.has("rules") {
            true => self.root.key("rules"),
            false => self.root.key("policies").member(policy).key("rules"),
        };
        let Some(policy) = self.policies.get(policy) else { return Vec::new() };
        let standing = |(number, rule)| Standing { policy, rule, number, spot: rules.member(number) };
        policy.rules.iter().enumerate().map(standing).collect()
    }

    fn rules(&self) -> impl Iterator<Item = Standing<'f>> {
        (0..self.policies.len()).flat_map(|policy| self.rules_of(policy))
    }
}

impl Standing<'_> {
    /// Whether it is a real rule, not the shadow of one.
    fn is_enforced(&self) -> bool {
        self.policy.mode == Mode::Enforce && self.rule.mode == Mode::Enforce
    }
}

/// The warnings of a file that are not silenced, in order of position.
pub fn look(checked: &Checked, tree: &Node) -> Vec<Warning> {
    let source = checked.config.rules.source();
    let file = File {
        config: &checked.config,
        policies: &source.policies,
        exempt: &source.exempt,
        root: Location::root(tree),
    };
    let wanted = LINTS.iter().filter(|(name, _)| !checked.allowed.contains(name));
    let mut warnings: Vec<Warning> =
        wanted.flat_map(|(name, lint)| lint(&file).into_iter().map(|finding| finding.named(name))).collect();
    warnings.sort_by_key(|warning| warning.place);
    warnings
}
