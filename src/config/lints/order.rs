//! Finds rules that come too late: another one of their policy has decided before them.

use std::collections::HashMap;

use super::example::Example;
use super::known::Known;
use super::location::Finding;
use super::texts::root;
use super::{File, Standing};
use crate::limit::attribute::Attribute;
use crate::limit::index::Index;
use crate::limit::matcher::Expectation;
use crate::limit::rule::{Action, Mode};

/// Rules before a `deny` that are looked at: what the first of a long list does, the others do as well.
const TRIED: usize = 100;

/// Rules that never apply.
pub fn unreachable_rule(file: &File<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for policy in 0..file.policies.len() {
        let rules = file.rules_of(policy);
        let lookup = Lookup::new(&rules);
        for late in &rules {
            let scope = Known::of(&late.policy.conditions);
            if let Some(condition) = late.rule.conditions.iter().find(|condition| scope.excludes(condition)) {
                let what = format!(
                    "never applies: the match of its policy rules out what it expects of {}",
                    condition.attribute
                );
                found.push(
                    late.spot.key("match").finding(what, "put it into a policy of its own, or correct one of the two"),
                );
                continue;
            }
            let Some(first) = lookup.decider(late) else { continue };
            if is_deny(late) && !is_deny(first) {
                continue;
            }
            let name = &first.rule.name;
            let what = format!("never applies: whenever it would, `{name}` before it does, and decides");
            found.push(late.spot.finding(what, format!("put it before `{name}`, or take it out")));
        }
    }
    found
}

/// A `deny` that does not hold for requests which it names, because a rule before it lets them pay instead.
pub fn late_deny(file: &File<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for policy in 0..file.policies.len() {
        let rules = file.rules_of(policy);
        let lookup = Lookup::new(&rules);
        for late in rules.iter().filter(|late| late.is_enforced() && is_deny(late)) {
            let hint = "put it first, or into a policy of its own: a `deny` in any policy holds";
            if let Some(first) = lookup.decider(late) {
                if !is_deny(first) {
                    let what = format!("never holds: `{}` before it decides all such requests", first.rule.name);
                    found.push(late.spot.finding(what, hint));
                }
                continue;
            }
            if let Some(first) = escapes(&rules, late, file.config.client_ip.ipv6_prefix) {
                let what = format!("does not hold for requests to which `{}` before it applies", first.rule.name);
                found.push(late.spot.finding(what, hint));
            }
        }
    }
    found
}

/// A rule before a `deny` that charges a request which that would refuse.
fn escapes<'r>(rules: &'r [Standing<'_>], late: &Standing<'_>, ipv6_prefix: u8) -> Option<&'r Standing<'r>> {
    let denied = Known::under(late.policy, late.rule);
    let charges = |first: &&Standing<'_>| {
        // What is a part of what is denied is an exception, which has to stand before it.
        let is_exception = || Known::under(first.policy, first.rule).always_meets(late.rule);
        first.is_enforced() && matches!(first.rule.action, Action::Charge(_)) && !is_exception()
    };
    let before = rules.get(..late.number).unwrap_or_default();
    before.iter().filter(charges).take(TRIED).find(|first| {
        let both = Known::under(first.policy, first.rule).and(&denied);
        let of_both = |example: &Example<'_>| {
            example.meets(late.rule) && example.first(before).is_some_and(|one| one.number == first.number)
        };
        Example::of(&both, ipv6_prefix).iter().any(of_both)
    })
}

fn is_deny(standing: &Standing<'_>) -> bool {
    matches!(standing.rule.action, Action::Deny)
}

/// The rules of one policy, found by what they expect: a long list is not compared with itself, pair by pair.
struct Lookup<'r, 'f> {
    rules: &'r [Standing<'f>],
    slots: HashMap<&'f Attribute, usize>,
    index: Option<Index>,
}

impl<'r, 'f> Lookup<'r, 'f> {
    fn new(rules: &'r [Standing<'f>]) -> Lookup<'r, 'f> {
        let mut slots = HashMap::new();
        for condition in rules.iter().flat_map(|standing| &standing.rule.conditions) {
            let next = slots.len();
            slots.entry(&condition.attribute).or_insert(next);
        }
        let index = Index::of(rules.iter().map(|standing| {
            let conditions = standing.rule.conditions.iter();
            conditions.filter_map(|condition| Some((*slots.get(&condition.attribute)?, &condition.expectation)))
        }));
        Lookup { rules, slots, index }
    }

    /// A rule before this one that decides every request to which this one would apply.
    fn decider(&self, late: &Standing<'f>) -> Option<&'r Standing<'f>> {
        let known = Known::under(late.policy, late.rule);
        let decides = |first: &&Standing<'f>| {
            // A shadow decides nothing, but among shadows.
            let counts = first.rule.mode == Mode::Enforce || first.policy.mode == Mode::Shadow;
            counts && known.always_meets(first.rule)
        };
        let Some(index) = &self.index else { return self.rules.iter().take(late.number).find(decides) };
        // What decides all of these requests decides this one, which has the shortest values that there can be.
        let found = index.find(|slot, tell| {
            let attribute = self.slots.iter().find(|(_, number)| **number == slot).map(|(attribute, _)| *attribute);
            let known = attribute.map(|attribute| known.on(attribute)).unwrap_or_default();
            if let Some(value) = known.into_iter().find_map(shortest) {
                tell(value);
            }
        });
        let places = found.into_iter().filter_map(|place| usize::try_from(place).ok());
        places.take_while(|place| *place < late.number).filter_map(|place| self.rules.get(place)).find(decides)
    }
}

fn shortest(known: &Expectation) -> Option<&[u8]> {
    match known {
        Expectation::AnyOf(texts) => texts.first().map(root),
        Expectation::Prefix(prefix) => Some(prefix),
        _ => None,
    }
}
