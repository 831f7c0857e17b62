//! Replaces the pseudonyms in the gateway's own log by texts of the configuration.

use std::borrow::Cow;
use std::collections::HashMap;

use super::own_entry::OwnEntry;
use base::pseudonym::{Pseudonym, PseudonymKey};
use decision::access_log_line::LoggedValue;
use request::attribute::Attribute;
use request::matcher::{Expectation, Text};
use rules::partial_evaluation::Observation;
use rules::rule::{Action, Condition, Override, Policy};
use rules::rule_set::RuleSet;

/// Finds the texts in a configuration by their pseudonyms in a log.
#[derive(Debug, Default)]
pub(crate) struct Pseudonyms {
    texts: HashMap<Pseudonym, Vec<u8>>,
    /// Attributes that were recorded at least once. A request whose line lacks such an attribute did not have it.
    recorded: Vec<Attribute>,
}

impl Pseudonyms {
    pub(crate) fn new<'r>(rules: &'r RuleSet, key: &PseudonymKey) -> Pseudonyms {
        let mut names = Pseudonyms::default();
        let source = rules.source();
        let rule_conditions =
            |policy: &'r Policy| policy.conditions.iter().chain(policy.rules.iter().flat_map(|rule| &rule.conditions));
        let conditions = source.exempt.iter().flatten().chain(source.policies.iter().flat_map(rule_conditions));
        for Condition { attribute, expectation } in conditions {
            names.add(attribute.source(), expectation, key);
        }
        for rule in source.policies.iter().flat_map(|policy| &policy.rules) {
            let Action::Charge(limits) = &rule.action else { continue };
            for Override { part, value, .. } in limits.iter().flat_map(|limit| &limit.overrides) {
                names.add_text(part.source(), value.as_bytes(), key);
            }
        }
        names
    }

    fn add(&mut self, attribute: &Attribute, expectation: &Expectation, key: &PseudonymKey) {
        match expectation {
            Expectation::AnyOf(texts) | Expectation::Not(texts) => {
                for text in texts {
                    if let Text::Exact(text) = text {
                        self.add_text(attribute, text, key);
                    }
                }
            }
            Expectation::All(each) => each.iter().for_each(|one| self.add(attribute, one, key)),
            Expectation::Prefix(_)
            | Expectation::Suffix(_)
            | Expectation::Regex(_)
            | Expectation::Present(_)
            | Expectation::Cidr(_)
            | Expectation::InFile(_)
            | Expectation::CidrFile(_) => {}
        }
    }

    fn add_text(&mut self, attribute: &Attribute, text: &[u8], key: &PseudonymKey) {
        self.texts.insert(key.value(&attribute.to_string(), text), text.to_vec());
    }

    /// Notes which attributes a line records. Must be called with each line before [`Pseudonyms::observe`].
    pub(crate) fn learn_attributes(&mut self, logged: &OwnEntry) {
        let attributes = logged.attributes.iter().map(|(attribute, _)| attribute);
        for attribute in attributes.chain(logged.values.iter().map(|(attribute, _)| attribute)) {
            if !self.recorded.contains(attribute) {
                self.recorded.push(attribute.clone());
            }
        }
    }

    fn observe_name(&self, name: Pseudonym) -> Observation<'_> {
        match self.texts.get(&name) {
            Some(text) => Observation::Value(Cow::Borrowed(text)),
            None => Observation::Named(name),
        }
    }

    /// Returns what a line says about an attribute. The pseudonym of a text in the configuration is replaced by the
    /// text.
    pub(crate) fn observe<'a>(&'a self, attribute: &Attribute, logged: &'a OwnEntry) -> Observation<'a> {
        if let Attribute::Folded(folding, source) = attribute {
            return self.observe(source, logged).folded(*folding);
        }
        let in_clear = logged.values.iter().find(|(known, _)| known == attribute);
        if let Some((_, Some(value))) = in_clear {
            return Observation::Value(Cow::Borrowed(value.as_bytes()));
        }
        if let Some((_, recorded)) = logged.attributes.iter().find(|(known, _)| known == attribute) {
            return match recorded {
                LoggedValue::Single(name) => self.observe_name(*name),
                // For a call with several descriptors, the log does not say which descriptor has which value.
                LoggedValue::List(_) if matches!(attribute, Attribute::Descriptor(_)) => Observation::Unknown,
                LoggedValue::List(names) if names.is_empty() => Observation::Missing,
                LoggedValue::List(names) => {
                    Observation::List(names.iter().map(|name| self.observe_name(*name)).collect())
                }
            };
        }
        match (attribute, &logged.method) {
            // A missing claim has no words. The words of any other claim are not recorded.
            (Attribute::Words(name), _) => match self.observe(&Attribute::Claim(name.clone()), logged) {
                Observation::Missing => Observation::Missing,
                _ => Observation::Unknown,
            },
            (Attribute::ClaimedAmount(name), _) => self.observe(&Attribute::Claim(name.clone()), logged),
            (Attribute::Method, Some(method)) => Observation::Value(Cow::Borrowed(method.as_bytes())),
            (Attribute::Door, _) => logged
                .door
                .map_or(Observation::Unknown, |door| Observation::Value(Cow::Borrowed(door.name().as_bytes()))),
            // The line has a value that was cut, or a list.
            _ if in_clear.is_some() => Observation::Unknown,
            _ if self.recorded.contains(attribute) => Observation::Missing,
            _ => Observation::Unknown,
        }
    }
}
