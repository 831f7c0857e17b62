//! Finds rules that never apply, and rules with `deny` that come too late because an earlier rule of the policy decides.

use std::collections::HashMap;

use super::constraints::Constraints;
use super::doors::doors;
use super::example::Example;
use super::file::{File, LocatedRule};
use super::location::Finding;
use super::texts::root;
use request::attribute::Attribute;
use request::matcher::Expectation;
use rules::index::Index;
use rules::rule::{Action, Condition, Mode};

/// The largest number of rules before a `deny` that are examined.
const MAX_RULES: usize = 100;

/// Finds rules that never apply, because of their conditions or because an earlier rule of the policy decides.
pub(super) fn unreachable_rule(file: &File<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for policy in 0..file.policies.len() {
        let rules = file.rules_of(policy);
        let lookup = Lookup::new(&rules);
        for late in &rules {
            let doors = doors(file, late);
            let is_missing_at_some = |attribute: &Attribute| doors.iter().any(|door| !attribute.is_supplied_at(*door));
            let expects_none = |one: &Condition| Constraints::default().excludes(one);
            let mut conditions = late.rule.conditions.iter();
            if let Some(condition) = conditions.find(|one| expects_none(one) && !is_missing_at_some(&one.attribute)) {
                let attribute = &condition.attribute;
                let what = format!("never applies: it expects {attribute} to be missing, and every request has one");
                found.push(late.location.key("match").finding(what, format!("leave {attribute} out")));
                continue;
            }
            let scope = Constraints::of(&late.policy.conditions);
            let is_excluded =
                |one: &&Condition| scope.excludes(one) && (!expects_none(one) || scope.expects_a_value(&one.attribute));
            if let Some(condition) = late.rule.conditions.iter().find(is_excluded) {
                let what = format!(
                    "never applies: the match of its policy rules out what it expects of {}",
                    condition.attribute
                );
                found.push(
                    late.location
                        .key("match")
                        .finding(what, "put it into a policy of its own, or correct one of the two"),
                );
                continue;
            }
            let Some(first) = lookup.decider(late).filter(|first| !may_lack(file, first, late)) else { continue };
            if is_deny(late) && !is_deny(first) {
                continue;
            }
            let name = &first.rule.name;
            let what = format!("never applies: whenever it would, `{name}` before it does, and decides");
            found.push(late.location.finding(what, format!("put it before `{name}`, or remove it")));
        }
    }
    found
}

/// Finds rules with `deny` that come too late for some requests, because an earlier rule decides.
pub(super) fn late_deny(file: &File<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for policy in 0..file.policies.len() {
        let rules = file.rules_of(policy);
        let lookup = Lookup::new(&rules);
        for late in rules.iter().filter(|late| late.is_enforced() && is_deny(late)) {
            let hint = "put it first, or into a policy of its own: a `deny` in any policy holds";
            if let Some(first) = lookup.decider(late).filter(|first| !may_lack(file, first, late)) {
                if !is_deny(first) {
                    let what = format!("never holds: `{}` before it decides all such requests", first.rule.name);
                    found.push(late.location.finding(what, hint));
                }
                continue;
            }
            if let Some(first) = escapes(&rules, late, file.config.client_ip.ipv6_prefix) {
                let what = format!("does not hold for requests to which `{}` before it applies", first.rule.name);
                found.push(late.location.finding(what, hint));
            }
        }
    }
    found
}

/// Returns an earlier rule that charges a request which `late`, a rule with `deny`, would refuse.
fn escapes<'r>(rules: &'r [LocatedRule<'_>], late: &LocatedRule<'_>, ipv6_prefix: u8) -> Option<&'r LocatedRule<'r>> {
    let denied = Constraints::under(late.policy, late.rule);
    let charges = |first: &&LocatedRule<'_>| {
        // A rule for only some of the denied requests is an exception, which must come before the `deny`.
        let is_exception = || Constraints::under(first.policy, first.rule).always_meets(late.rule);
        first.is_enforced() && matches!(first.rule.action, Action::Charge(_)) && !is_exception()
    };
    let before = rules.get(..late.index).unwrap_or_default();
    before.iter().filter(charges).take(MAX_RULES).find(|first| {
        let both = Constraints::under(first.policy, first.rule).and(&denied);
        let of_both = |example: &Example<'_>| {
            example.meets(late.rule) && example.first(before).is_some_and(|one| one.index == first.index)
        };
        Example::of(&both, ipv6_prefix).iter().any(of_both)
    })
}

/// Whether `first` reads an attribute that is missing at a door where `late` may apply.
fn may_lack(file: &File<'_>, first: &LocatedRule<'_>, late: &LocatedRule<'_>) -> bool {
    let conditions = first.rule.conditions.iter().map(|condition| &condition.attribute);
    let keys = first.rule.keys.iter().flat_map(|key| &key.alternatives);
    let needed = Constraints::under(late.policy, late.rule);
    let doors = doors(file, late);
    let is_missing = |attribute: &Attribute| doors.iter().any(|door| !attribute.is_supplied_at(*door));
    conditions.chain(keys).any(|attribute| is_missing(attribute) && !needed.expects_a_value(attribute))
}

fn is_deny(located: &LocatedRule<'_>) -> bool {
    matches!(located.rule.action, Action::Deny)
}

/// Finds the rules of one policy by their conditions, without comparing all rules in pairs.
struct Lookup<'r, 'f> {
    rules: &'r [LocatedRule<'f>],
    slots: HashMap<&'f Attribute, usize>,
    index: Option<Index>,
}

impl<'r, 'f> Lookup<'r, 'f> {
    fn new(rules: &'r [LocatedRule<'f>]) -> Lookup<'r, 'f> {
        let mut slots = HashMap::new();
        for condition in rules.iter().flat_map(|located| &located.rule.conditions) {
            let next = slots.len();
            slots.entry(&condition.attribute).or_insert(next);
        }
        let index = Index::of(rules.iter().map(|located| {
            let conditions = located.rule.conditions.iter();
            conditions.filter_map(|condition| Some((*slots.get(&condition.attribute)?, &condition.expectation)))
        }));
        Lookup { rules, slots, index }
    }

    /// Returns an earlier rule that decides every request to which `late` would apply.
    fn decider(&self, late: &LocatedRule<'f>) -> Option<&'r LocatedRule<'f>> {
        let constraints = Constraints::under(late.policy, late.rule);
        let decides = |first: &&LocatedRule<'f>| {
            // A shadow rule decides only in a shadow policy.
            let counts = first.rule.mode == Mode::Enforce || first.policy.mode == Mode::Shadow;
            counts && constraints.always_meets(first.rule)
        };
        let Some(index) = &self.index else { return self.rules.iter().take(late.index).find(decides) };
        // A rule that decides every request of `late` also decides the request with the shortest values. So only this
        // request is looked up.
        let found = index.find(|slot, tell| {
            let attribute = self.slots.iter().find(|(_, other)| **other == slot).map(|(attribute, _)| *attribute);
            let expected = attribute.map(|attribute| constraints.on(attribute)).unwrap_or_default();
            expected.into_iter().filter_map(shortest).for_each(tell);
        });
        let indexes = found.into_iter().filter_map(|index| usize::try_from(index).ok());
        indexes.take_while(|index| *index < late.index).filter_map(|index| self.rules.get(index)).find(decides)
    }
}

fn shortest(expected: &Expectation) -> Option<&[u8]> {
    match expected {
        Expectation::AnyOf(texts) => texts.first().map(root),
        Expectation::Prefix(prefix) => Some(prefix),
        _ => None,
    }
}
