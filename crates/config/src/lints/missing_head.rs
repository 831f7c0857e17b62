//! Finds limits on `GET` that a client can evade with `HEAD`.

use std::net::{IpAddr, Ipv4Addr};

use super::constraints::Constraints;
use super::file::File;
use super::location::{Finding, Location};
use request::attribute::Attribute;
use request::matcher::{Expectation, Text};
use rules::rule::{Action, Condition, Mode, Otherwise};

/// Finds rules and policies whose `match` accepts GET but not HEAD, if no other rule of the policy can apply to HEAD.
pub(super) fn missing_head(file: &File<'_>) -> Vec<Finding> {
    let head = Condition {
        attribute: Attribute::Method,
        expectation: Expectation::AnyOf(vec![Text::Exact(b"HEAD".to_vec())]),
    };
    let mut found = Vec::new();
    for (index, policy) in file.policies.iter().enumerate() {
        if policy.mode == Mode::Shadow {
            continue;
        }
        if policy.conditions.iter().any(admits_only_get) {
            found.push(finding(&file.root.key("policies").member(index)));
            continue;
        }
        if policy.otherwise == Otherwise::Deny {
            continue;
        }
        let rules = file.rules_of(index);
        let enforced = || rules.iter().filter(|located| located.is_enforced());
        let limiting = enforced().filter(|located| !matches!(located.rule.action, Action::Allow));
        for located in limiting.filter(|located| located.rule.conditions.iter().any(admits_only_get)) {
            let others = located.rule.conditions.iter().filter(|condition| condition.attribute != Attribute::Method);
            let rest = Constraints::of(policy.conditions.iter().chain(others).chain([&head]));
            let applies = |condition: &Condition| !rest.excludes(condition);
            if !enforced().any(|other| other.rule.conditions.iter().all(applies)) {
                found.push(finding(&located.location));
            }
        }
    }
    found
}

fn finding(rule: &Location<'_>) -> Finding {
    let what =
        "a request with HEAD passes without a limit of this policy, and most servers run for it what they run for GET";
    rule.key("match").key("method").finding(what, "write `method: [GET, HEAD]`")
}

fn admits_only_get(condition: &Condition) -> bool {
    let nobody = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    let admits = |method: &[u8]| condition.expectation.holds(Some(method), nobody);
    condition.attribute == Attribute::Method && admits(b"GET") && !admits(b"HEAD")
}
