//! Gives lints the file that they examine: its configuration and its rules, with their positions in the text.

use super::location::Location;
use crate::config::Config;
use crate::language::tree::Node;
use rules::rule::{Condition, Limit, Mode, Policy, Rule};

/// A valid gateway.yaml, as lints examine it: the configuration, and the syntax tree with the positions.
#[derive(Debug)]
pub struct File<'f> {
    pub config: &'f Config,
    pub policies: &'f [Policy],
    pub exempt: &'f [Vec<Condition>],
    pub root: Location<'f>,
}

/// A rule with its policy, and its location in the file.
#[derive(Clone, Debug)]
pub struct LocatedRule<'f> {
    pub policy: &'f Policy,
    pub rule: &'f Rule,
    /// The index of the rule among the rules of its policy.
    pub index: usize,
    pub location: Location<'f>,
}

impl<'f> File<'f> {
    pub fn new(config: &'f Config, tree: &'f Node) -> File<'f> {
        let source = config.rules.source();
        File { config, policies: &source.policies, exempt: &source.exempt, root: Location::root(tree) }
    }

    /// Returns the rules of the policy with this index.
    pub fn rules_of(&self, policy: usize) -> Vec<LocatedRule<'f>> {
        // A file with the key `rules` has only one policy, which consists of these rules.
        let rules = if self.root.has("rules") {
            self.root.key("rules")
        } else {
            self.root.key("policies").member(policy).key("rules")
        };
        let Some(policy) = self.policies.get(policy) else { return Vec::new() };
        let located = |(index, rule)| LocatedRule { policy, rule, index, location: rules.member(index) };
        policy.rules.iter().enumerate().map(located).collect()
    }

    /// Returns the rules of all policies, in the order of the file.
    pub fn rules(&self) -> impl Iterator<Item = LocatedRule<'f>> {
        (0..self.policies.len()).flat_map(|policy| self.rules_of(policy))
    }
}

impl<'f> LocatedRule<'f> {
    /// Returns the location of the mapping that has the settings of this limit.
    pub fn numbers(&self, limit: &Limit) -> Location<'f> {
        match &*limit.name {
            "" => self.location.key("algorithm_config"),
            name => self.location.key("limits").key(name),
        }
    }

    /// Whether the rule can refuse requests: neither the rule nor its policy has the mode `shadow`.
    pub fn is_enforced(&self) -> bool {
        self.policy.mode == Mode::Enforce && self.rule.mode == Mode::Enforce
    }
}
