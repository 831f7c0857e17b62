//! Finds limits that a client can leave behind by sending another value.

use super::known::Known;
use super::location::Finding;
use super::{File, Standing};
use crate::auth::api_keys::OnInvalid;
use crate::limit::attribute::Attribute;
use crate::limit::rule::{Action, LimitKey, Mode, Otherwise, Rule};

/// What a client picks as it likes is all that a request is counted by.
pub fn unverified_key(file: &File<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for (number, policy) in file.policies.iter().enumerate() {
        for standing in file.rules_of(number) {
            if !standing.is_enforced() || !matches!(standing.rule.action, Action::Charge(_)) {
                continue;
            }
            let known = Known::under(policy, standing.rule);
            let picked = standing.rule.keys.iter().find_map(|key| file.picked(&known, key));
            let Some(picked) = picked else { continue };
            let others = (0..file.policies.len()).filter(|other| *other != number);
            if others.into_iter().any(|other| file.holds(&known, &file.rules_of(other))) {
                continue;
            }
            let what =
                format!("whoever sends another {picked} gets a full bucket, and no other limit holds such a request");
            let hint = "count by jwt:<claim>, key:id or ip:address, or add a policy with a ceiling by one of them";
            found.push(standing.spot.key("limit_keys").finding(what, hint));
        }
    }
    found
}

impl File<'_> {
    /// An attribute of this limit key whose value the client picks.
    fn picked<'k>(&self, known: &Known<'_>, key: &'k LimitKey) -> Option<&'k Attribute> {
        for part in &key.alternatives {
            let attribute = &part.attribute;
            if self.is_free(attribute) && !known.is_pinned(attribute) {
                return Some(attribute);
            }
            // The next alternative is never come to.
            if known.is_present(attribute) {
                return None;
            }
        }
        None
    }

    /// Whether a client may send any value of it.
    fn is_free(&self, attribute: &Attribute) -> bool {
        match attribute {
            Attribute::Header(_) | Attribute::Query(_) | Attribute::Cookie(_) => !self.is_known_key(attribute),
            _ => false,
        }
    }

    /// Whether a value of it is that of a known API key, or refused.
    fn is_known_key(&self, attribute: &Attribute) -> bool {
        let api_keys = self.config.api_keys.as_ref();
        api_keys.is_some_and(|keys| keys.from == *attribute && keys.on_invalid == OnInvalid::Reject)
    }

    /// Whether each request of this kind is refused by these rules, which are those of one policy, or pays a limit that its
    /// client cannot choose.
    fn holds(&self, requests: &Known<'_>, rules: &[Standing<'_>]) -> bool {
        let Some(Standing { policy, .. }) = rules.first() else { return false };
        if policy.mode == Mode::Shadow || !policy.conditions.iter().all(|condition| requests.implies(condition)) {
            return false;
        }
        for Standing { rule, .. } in rules.iter().filter(|standing| standing.is_enforced()) {
            let always = requests.always_meets(rule);
            if !always && rule.conditions.iter().any(|condition| requests.excludes(condition)) {
                continue;
            }
            let both = Known::under(policy, rule).and(requests);
            if !self.is_firm(rule, &both) {
                return false;
            }
            if always {
                return true;
            }
        }
        policy.otherwise == Otherwise::Deny
    }

    /// Whether no client can get around what this rule does.
    fn is_firm(&self, rule: &Rule, known: &Known<'_>) -> bool {
        let chosen = |attribute: &Attribute| match attribute {
            Attribute::Claim(_) | Attribute::KeyId | Attribute::KeyPlan | Attribute::Address => false,
            Attribute::Route | Attribute::Upstream => false,
            // A path is chosen as freely as a header.
            _ => !self.is_known_key(attribute) && !known.is_pinned(attribute),
        };
        let is_firm = |key: &LimitKey| {
            let last = key.alternatives.iter().position(|part| known.is_present(&part.attribute));
            let reached = last.map_or(key.alternatives.len(), |last| last + 1);
            !key.alternatives.iter().take(reached).any(|part| chosen(&part.attribute))
        };
        match rule.action {
            Action::Allow => false,
            Action::Deny => rule.until.is_none(),
            Action::Charge(_) => rule.keys.iter().all(is_firm),
        }
    }
}
