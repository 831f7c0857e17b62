//! Finds rules that have less effect on requests about which other proxies or services ask: rules that need an attribute
//! which none of them sends, limits of requests in flight, and queues.

use std::net::{IpAddr, Ipv4Addr};

use super::constraints::Constraints;
use super::file::{File, LocatedRule};
use super::location::Finding;
use crate::keys::listeners::Listener;
use ledger::algorithm::Algorithm;
use request::attribute::Attribute;
use request::door::Door;
use request::matcher::{Expectation, Text};
use rules::rule::{Action, Condition};

/// Finds rules that never apply, because no listener supplies an attribute that they need. A listener that decides for
/// other proxies supplies few attributes.
pub(super) fn missing_at_door(file: &File<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for located in file.rules() {
        let doors = doors(file, &located);
        if doors.is_empty() {
            continue;
        }
        let lacks = |attribute: &Attribute| !doors.iter().any(|door| attribute.is_supplied_at(*door));
        if let Some(attribute) = needed(&located, &lacks) {
            let (mut names, mut at): (Vec<&str>, Vec<&str>) =
                (doors.iter().map(|door| door.name()).collect(), Vec::new());
            names.sort_unstable();
            names.dedup();
            at.extend(Door::ALL.iter().filter(|door| attribute.is_supplied_at(**door)).map(|door| door.name()));
            let what = format!("never applies: {attribute} is always missing at the door {}", names.join(" and at "));
            let hint = format!("remove it; it is supplied at {}", at.join(", "));
            found.push(located.location.finding(what, hint));
        }
    }
    found
}

/// Finds rules with a queue that apply to requests about which other proxies ask. Such requests never wait in a queue.
pub(super) fn queue_at_door(file: &File<'_>) -> Vec<Finding> {
    let what = "has a queue, in which no request waits about which another proxy or a service asks: it leaves at once, or is refused";
    let hint = "use a token_bucket for such requests, or name a listener without `decide` in `match`";
    limits_at_door(file, &[Door::Proxy], |algorithm| algorithm.delays(), what, hint)
}

/// Finds limits of slots that apply to requests about which other proxies ask. The gateway does not know when such a
/// request ends. A service says it, if it holds what it takes.
pub(super) fn slots_at_door(file: &File<'_>) -> Vec<Finding> {
    let what = "does not apply to requests about which another proxy asks: they hold no slot, since the gateway does not see their end";
    let hint = "limit such requests where they are made, or name a listener without `decide` in `match`";
    let fine = &[Door::Proxy, Door::Json];
    let mut found = limits_at_door(file, fine, |algorithm| algorithm.slots().is_some(), what, hint);
    let what =
        "does not apply to requests about which another proxy asks: the gateway does not see what their responses cost";
    found.extend(limits_at_door(file, fine, |algorithm| algorithm.settling_budget().is_some(), what, hint));
    found
}

/// Finds the limits that apply to requests at other doors than those in `fine`. Only limits whose algorithm `is_such` accepts
/// are found.
fn limits_at_door(
    file: &File<'_>,
    fine: &[Door],
    is_such: fn(&Algorithm) -> bool,
    what: &str,
    hint: &str,
) -> Vec<Finding> {
    let mut found = Vec::new();
    for located in file.rules().filter(LocatedRule::is_enforced) {
        let Action::Charge(limits) = &located.rule.action else { continue };
        if doors(file, &located).iter().all(|door| fine.contains(door)) {
            continue;
        }
        for limit in limits.iter().filter(|limit| is_such(&limit.algorithm)) {
            found.push(located.numbers(limit).finding(what, hint));
        }
    }
    found
}

/// Returns the doors at which requests can reach this rule: the gateway proxies them, or another proxy asks about them.
pub(super) fn doors(file: &File<'_>, located: &LocatedRule<'_>) -> Vec<Door> {
    if !file.config.decides() {
        return vec![Door::Proxy];
    }
    file.config.listeners.iter().flat_map(|listener| doors_of(listener, located)).collect()
}

/// Returns the doors of this listener at which requests can reach this rule.
pub(super) fn doors_of(listener: &Listener, located: &LocatedRule<'_>) -> Vec<Door> {
    let constraints = Constraints::under(located.policy, located.rule);
    let excludes = |attribute, text: &str| {
        let expectation = Expectation::AnyOf(vec![Text::Exact(text.as_bytes().to_vec())]);
        constraints.excludes(&Condition { attribute, expectation })
    };
    if excludes(Attribute::Listener, &listener.name) {
        return Vec::new();
    }
    let doors = if listener.decide.is_some() { listener.doors() } else { &[Door::Proxy] };
    doors.iter().copied().filter(|door| !excludes(Attribute::Door, door.name())).collect()
}

/// Whether the rule never applies at this door, which does not supply an attribute that the rule needs.
pub(super) fn lacks(located: &LocatedRule<'_>, door: Door) -> bool {
    needed(located, &|attribute: &Attribute| !attribute.is_supplied_at(door)).is_some()
}

/// Returns an attribute that the rule needs and for which `lacks` returns true.
fn needed<'r>(located: &LocatedRule<'r>, lacks: &impl Fn(&Attribute) -> bool) -> Option<&'r Attribute> {
    let LocatedRule { policy, rule, .. } = located;
    let nobody = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    let conditions = policy.conditions.iter().chain(&rule.conditions);
    let wanted = conditions.filter(|condition| !condition.expectation.holds(None, nobody));
    let keys = rule.keys.iter().filter_map(|key| {
        let all_lack = key.alternatives.iter().all(lacks);
        key.alternatives.first().filter(|_| all_lack)
    });
    wanted.map(|condition| &condition.attribute).chain(keys).find(|attribute| lacks(attribute))
}
