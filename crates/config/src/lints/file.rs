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

    /// Returns all conditions, each with the location of its value: those of exemptions, policies, rules and routes.
    pub fn conditions(&self) -> Vec<(&'f Condition, Location<'f>)> {
        let root = &self.root;
        let exempt = self.exempt.iter().enumerate().map(|(index, all)| (&all[..], root.key("exempt").member(index)));
        let policies = self.policies.iter().enumerate();
        let policies =
            policies.map(|(index, policy)| (&policy.conditions[..], root.key("policies").member(index).key("match")));
        let rules = self.rules().map(|located| (&located.rule.conditions[..], located.location.key("match")));
        let routes = self.config.routes.routes().iter().enumerate();
        let routes =
            routes.map(|(index, route)| (&route.conditions[..], root.key("routes").member(index).key("match")));
        let lists = exempt.chain(policies).chain(rules).chain(routes);
        lists
            .flat_map(|(conditions, location)| {
                conditions.iter().enumerate().map(move |(index, condition)| (condition, location.pair(index)))
            })
            .collect()
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
