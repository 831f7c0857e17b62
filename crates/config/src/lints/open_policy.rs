//! Finds policies whose limits a client can evade by omitting something from a request, such as a header field.

use http::header::HOST;

use super::constraints::Constraints;
use super::file::{File, LocatedRule};
use super::location::Finding;
use base::tls::server::ClientAuth;
use identity::jwt::{OnInvalid, OnMissing};
use request::attribute::Attribute;
use rules::rule::{Action, Condition, Mode, Otherwise, Rule};

/// Finds policies whose rules do not limit a request that omits some attributes.
pub(super) fn open_policy(file: &File<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for (index, policy) in file.policies.iter().enumerate() {
        if policy.mode == Mode::Shadow || policy.otherwise == Otherwise::Deny {
            continue;
        }
        let rules = file.rules_of(index);
        // A policy is not meant to limit a request that omits an attribute of the policy's own `match`.
        let scope = Constraints::of(&policy.conditions);
        let left_out = |attribute: &Attribute| file.is_optional(attribute) && scope.on(attribute).is_empty();
        let enforced = || rules.iter().filter(|located| located.is_enforced());
        let catching: Vec<_> = enforced().filter(|located| can_apply(located.rule, &left_out)).collect();
        let charging = enforced().filter(|located| matches!(located.rule.action, Action::Charge(_)));
        // A rule that no request of this policy can meet is left out.
        let is_impossible =
            |condition: &Condition| scope.excludes(condition) || Constraints::contradicts_itself(condition);
        let possible = |located: &&LocatedRule<'_>| !located.rule.conditions.iter().any(is_impossible);
        let open = charging.rev().filter(possible).find_map(|located| {
            let missing = needed(located.rule, &left_out)?;
            // The constraints on a request that meets this rule, but lacks the attributes that can be omitted.
            let rest = located.rule.conditions.iter().filter(|condition| !left_out(&condition.attribute));
            let rest = Constraints::of(policy.conditions.iter().chain(rest));
            let caught =
                |other: &&LocatedRule<'_>| !other.rule.conditions.iter().any(|condition| rest.excludes(condition));
            (!catching.iter().any(caught)).then_some((located, missing))
        });
        if let Some((located, missing)) = open {
            let what = format!(
                "no rule applies to a request without {missing}, so that it passes without a limit of this policy"
            );
            let hint = "end the policy with a rule by ip:address, with `otherwise: deny`, or, if that is meant, with `action: allow`";
            found.push(located.location.finding(what, hint));
        }
    }
    found
}

impl File<'_> {
    /// Whether a client may omit the attribute without being rejected.
    fn is_optional(&self, attribute: &Attribute) -> bool {
        match attribute {
            Attribute::Header(name) => *name != HOST,
            Attribute::TlsServerName => true,
            Attribute::TlsClient(_) => !self.requires_client_certificates(),
            Attribute::Query(_)
            | Attribute::Cookie(_)
            | Attribute::RequestJson(_)
            | Attribute::JsonAmount(_)
            | Attribute::RequestForm(_)
            | Attribute::Model
            | Attribute::KeyId
            | Attribute::KeyPlan
            | Attribute::KeyColumn(_) => true,
            Attribute::Claim(_) | Attribute::Words(_) | Attribute::ClaimedAmount(_) => self
                .config
                .jwt
                .as_ref()
                .is_none_or(|jwt| jwt.on_missing == OnMissing::Anonymous || jwt.on_invalid == OnInvalid::Anonymous),
            Attribute::Address
            | Attribute::Method
            | Attribute::Host
            | Attribute::Scheme
            | Attribute::Listener
            | Attribute::Door
            | Attribute::Path
            // Without this segment, the path is a different path, so the request is a different request.
            | Attribute::PathSegment(_)
            | Attribute::Route
            | Attribute::Upstream
            // Another proxy sends this attribute, so a client cannot omit it.
            | Attribute::Descriptor(_) => false,
            Attribute::Folded(_, source) => self.is_optional(source),
        }
    }

    /// Whether every client needs a certificate.
    fn requires_client_certificates(&self) -> bool {
        self.config.listeners.iter().all(|listener| {
            // At a listener with `decide`, the certificates belong to proxies and not to clients.
            let Some(tls) = listener.tls.as_ref().filter(|_| listener.decide.is_none()) else { return false };
            tls.settings().certificates.iter().all(|one| one.client_auth == ClientAuth::Required)
        })
    }
}

/// Whether a rule may apply to a request without the attributes for which `left_out` returns `true`.
fn can_apply(rule: &Rule, left_out: &impl Fn(&Attribute) -> bool) -> bool {
    let holds = |condition: &Condition| {
        let nobody = std::net::IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED);
        !left_out(&condition.attribute) || condition.expectation.holds(None, nobody)
    };
    rule.conditions.iter().all(holds) && rule.keys.iter().all(|key| key.alternatives.iter().any(|part| !left_out(part)))
}

/// Returns an attribute that the rule needs and that a client can omit.
fn needed<'r>(rule: &'r Rule, left_out: &impl Fn(&Attribute) -> bool) -> Option<&'r Attribute> {
    if can_apply(rule, left_out) {
        return None;
    }
    let keys = rule.keys.iter().flat_map(|key| &key.alternatives);
    let conditions = rule.conditions.iter().map(|condition| &condition.attribute);
    conditions.chain(keys).find(|attribute| left_out(attribute))
}
