//! Finds policies whose limits a client leaves behind by leaving something out.

use http::header::HOST;

use super::known::Known;
use super::location::Finding;
use super::{File, Standing};
use crate::auth::jwt::{OnInvalid, OnMissing};
use crate::limit::attribute::Attribute;
use crate::limit::rule::{Action, Condition, Mode, Otherwise, Rule};

/// No rule of a policy applies to a request without what its rules look for, and the policy lets that pass.
pub fn open_policy(file: &File<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for (number, policy) in file.policies.iter().enumerate() {
        if policy.mode == Mode::Shadow || policy.otherwise == Otherwise::Deny {
            continue;
        }
        let rules = file.rules_of(number);
        // What the policy itself looks at says what it is for.
        let scope = Known::of(&policy.conditions);
        let left_out = |attribute: &Attribute| file.is_optional(attribute) && scope.on(attribute).is_empty();
        let enforced = || rules.iter().filter(|standing| standing.is_enforced());
        let catching: Vec<_> = enforced().filter(|standing| can_apply(standing.rule, &left_out)).collect();
        let charging = enforced().filter(|standing| matches!(standing.rule.action, Action::Charge(_)));
        // What no request of this policy can meet tells of nothing that a client could leave out.
        let possible =
            |standing: &&Standing<'_>| !standing.rule.conditions.iter().any(|condition| scope.excludes(condition));
        let open = charging.rev().filter(possible).find_map(|standing| {
            let missing = needed(standing.rule, &left_out)?;
            // Of a request like those of this rule, but for what can be left out.
            let rest = standing.rule.conditions.iter().filter(|condition| !left_out(&condition.attribute));
            let rest = Known::of(policy.conditions.iter().chain(rest));
            let caught =
                |other: &&Standing<'_>| !other.rule.conditions.iter().any(|condition| rest.excludes(condition));
            (!catching.iter().any(caught)).then_some((standing, missing))
        });
        if let Some((standing, missing)) = open {
            let what = format!(
                "no rule applies to a request without {missing}, so that it passes without a limit of this policy"
            );
            let hint = "end the policy with a rule by ip:address, with `otherwise: deny`, or, if that is meant, with `action: allow`";
            found.push(standing.spot.finding(what, hint));
        }
    }
    found
}

impl File<'_> {
    /// Whether a client may leave it out, and is heard all the same.
    fn is_optional(&self, attribute: &Attribute) -> bool {
        match attribute {
            Attribute::Header(name) => *name != HOST,
            Attribute::Query(_) | Attribute::Cookie(_) | Attribute::KeyId | Attribute::KeyPlan => true,
            Attribute::Claim(_) => self
                .config
                .jwt
                .as_ref()
                .is_none_or(|jwt| jwt.on_missing == OnMissing::Anonymous || jwt.on_invalid == OnInvalid::Anonymous),
            Attribute::Address
            | Attribute::Method
            | Attribute::Host
            | Attribute::Path
            | Attribute::Route
            | Attribute::Upstream => false,
        }
    }
}

/// Whether a rule may apply to a request without these attributes.
fn can_apply(rule: &Rule, left_out: &impl Fn(&Attribute) -> bool) -> bool {
    let holds = |condition: &Condition| {
        let nobody = std::net::IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED);
        !left_out(&condition.attribute) || condition.expectation.holds(None, nobody)
    };
    rule.conditions.iter().all(holds)
        && rule.keys.iter().all(|key| key.alternatives.iter().any(|part| !left_out(&part.attribute)))
}

/// What of a rule can be left out so that it does not apply.
fn needed<'r>(rule: &'r Rule, left_out: &impl Fn(&Attribute) -> bool) -> Option<&'r Attribute> {
    if can_apply(rule, left_out) {
        return None;
    }
    let keys = rule.keys.iter().flat_map(|key| &key.alternatives).map(|part| &part.attribute);
    let conditions = rule.conditions.iter().map(|condition| &condition.attribute);
    conditions.chain(keys).find(|attribute| left_out(attribute))
}
