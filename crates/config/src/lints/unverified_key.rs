//! Finds limits that a client can evade by sending a different value of a limit key.

use super::constraints::Constraints;
use super::file::{File, LocatedRule};
use super::location::Finding;
use identity::api_keys::OnInvalid;
use request::attribute::Attribute;
use rules::rule::{Action, LimitKey, Mode, Otherwise, Rule};

/// Finds limits that count by an attribute that the client can choose, if no other limit bounds the same requests.
pub(super) fn unverified_key(file: &File<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for (index, policy) in file.policies.iter().enumerate() {
        for located in file.rules_of(index) {
            if !located.is_enforced() || !matches!(located.rule.action, Action::Charge(_)) {
                continue;
            }
            let constraints = Constraints::under(policy, located.rule);
            let picked = file.picked_by_client(&constraints, &located.rule.keys);
            let Some(picked) = picked else { continue };
            let others = (0..file.policies.len()).filter(|other| *other != index);
            if others.into_iter().any(|other| file.holds(&constraints, &file.rules_of(other))) {
                continue;
            }
            let what = format!(
                "a client that sends another {picked} gets a full bucket, and no other limit bounds such a request"
            );
            let hint = "count by jwt:<claim>, key:id or ip:address, or add a policy with a ceiling by one of them";
            found.push(located.location.key("limit_keys").finding(what, hint));
        }
    }
    found
}

/// The values that a client is assumed to choose itself.
#[derive(Clone, Copy)]
enum ClientChoice {
    /// Header fields, cookies and values of the query.
    Identity,
    /// The values of `Identity`, and the path, the host and the method of the request, and the TLS server name.
    Target,
}

impl File<'_> {
    /// Returns an attribute that a client can change to get a new bucket. The path, the host and the method count only
    /// if no other limit key distinguishes clients.
    fn picked_by_client<'k>(&self, constraints: &Constraints<'_>, keys: &'k [LimitKey]) -> Option<&'k Attribute> {
        let picked = |chosen| move |key| self.picked(constraints, key, chosen);
        if let Some(attribute) = self.picked_as_identity(constraints, keys) {
            return Some(attribute);
        }
        let is_constant = |attribute: &Attribute| {
            constraints.is_pinned(attribute)
                || matches!(attribute.source(), Attribute::Route | Attribute::Upstream | Attribute::Scheme)
                || matches!(attribute.source(), Attribute::Listener | Attribute::Door)
        };
        let others = keys.iter().filter(|key| self.picked(constraints, key, ClientChoice::Target).is_none());
        let mut parts = others.flat_map(|key| &key.alternatives);
        parts.all(is_constant).then(|| keys.iter().find_map(picked(ClientChoice::Target))).flatten()
    }

    /// Returns an attribute that identifies a client, and whose value any client can choose.
    pub(super) fn picked_as_identity<'k>(
        &self,
        constraints: &Constraints<'_>,
        keys: &'k [LimitKey],
    ) -> Option<&'k Attribute> {
        keys.iter().find_map(|key| self.picked(constraints, key, ClientChoice::Identity))
    }

    /// Returns an attribute of this limit key whose value the client can choose.
    fn picked<'k>(
        &self,
        constraints: &Constraints<'_>,
        key: &'k LimitKey,
        chosen: ClientChoice,
    ) -> Option<&'k Attribute> {
        for attribute in &key.alternatives {
            if self.is_free(attribute, chosen) && !constraints.is_pinned(attribute) {
                return Some(attribute);
            }
            // This alternative always has a value, so the next alternatives of the key are never used.
            if constraints.is_present(attribute) {
                return None;
            }
        }
        None
    }

    /// Whether a client may send any value of the attribute.
    fn is_free(&self, attribute: &Attribute, chosen: ClientChoice) -> bool {
        match attribute.source() {
            Attribute::Path
            | Attribute::PathSegment(_)
            | Attribute::Host
            | Attribute::TlsServerName
            | Attribute::Model
            | Attribute::Method => {
                matches!(chosen, ClientChoice::Target)
            }
            Attribute::RequestJson(_) | Attribute::JsonAmount(_) | Attribute::RequestForm(_) => true,
            source @ (Attribute::Header(_) | Attribute::Query(_) | Attribute::Cookie(_)) => !self.is_known_key(source),
            _ => false,
        }
    }

    /// Whether every value of the attribute is a known API key, because requests with other values are rejected.
    pub(super) fn is_known_key(&self, attribute: &Attribute) -> bool {
        let api_keys = self.config.api_keys.as_ref();
        api_keys.is_some_and(|keys| keys.from.are_all_values_of(attribute) && keys.on_invalid == OnInvalid::Reject)
    }

    /// Whether the rules of one policy refuse each of these requests, or charge it to a bucket that the client cannot
    /// choose.
    fn holds(&self, requests: &Constraints<'_>, rules: &[LocatedRule<'_>]) -> bool {
        let Some(LocatedRule { policy, .. }) = rules.first() else { return false };
        if policy.mode == Mode::Shadow || !policy.conditions.iter().all(|condition| requests.implies(condition)) {
            return false;
        }
        for LocatedRule { rule, .. } in rules.iter().filter(|located| located.is_enforced()) {
            let always = requests.always_meets(rule);
            if !always && rule.conditions.iter().any(|condition| requests.excludes(condition)) {
                continue;
            }
            let both = Constraints::under(policy, rule).and(requests);
            if !self.is_firm(rule, &both) {
                return false;
            }
            if always {
                return true;
            }
        }
        policy.otherwise == Otherwise::Deny
    }

    /// Whether no client can evade this rule.
    fn is_firm(&self, rule: &Rule, constraints: &Constraints<'_>) -> bool {
        let chosen = |attribute: &Attribute| match attribute.source() {
            Attribute::Claim(_) | Attribute::Words(_) | Attribute::ClaimedAmount(_) => false,
            Attribute::KeyId | Attribute::KeyPlan | Attribute::KeyColumn(_) | Attribute::Address => false,
            Attribute::Route | Attribute::Upstream => false,
            // The proxy that sends this attribute is trusted.
            Attribute::Descriptor(_) => false,
            Attribute::Scheme | Attribute::Listener | Attribute::Door | Attribute::TlsClient(_) => false,
            // A client can choose a path as freely as a header.
            source => !self.is_known_key(source) && !constraints.is_pinned(attribute),
        };
        let is_firm = |key: &LimitKey| {
            let last = key.alternatives.iter().position(|part| constraints.is_present(part));
            let reached = last.map_or(key.alternatives.len(), |last| last + 1);
            !key.alternatives.iter().take(reached).any(chosen)
        };
        match rule.action {
            Action::Allow => false,
            Action::Deny => rule.until.is_none(),
            Action::Charge(_) => rule.keys.iter().all(is_firm),
        }
    }
}
