//! Holds what is known of the requests that a rule applies to, and decides what follows from it.
//!
//! Every answer is certain: `false` means that it cannot be told.

use super::texts::{are_apart, covers, outside, within};
use crate::limit::attribute::Attribute;
use crate::limit::matcher::{Expectation, Text};
use crate::limit::rule::{Condition, LimitKey, Policy, Rule};

static PRESENT: Expectation = Expectation::Present(true);

/// What holds of every request of some kind.
#[derive(Clone, Debug, Default)]
pub struct Known<'f> {
    /// Operators of one map stand here one by one.
    expected: Vec<(&'f Attribute, &'f Expectation)>,
    /// Of each, at least one alternative has a value.
    keys: &'f [LimitKey],
}

impl<'f> Known<'f> {
    /// Of requests for which these conditions hold.
    pub fn of(conditions: impl IntoIterator<Item = &'f Condition>) -> Known<'f> {
        let mut known = Known::default();
        for condition in conditions {
            known.expect(&condition.attribute, &condition.expectation);
        }
        known
    }

    /// Of requests to which a rule applies.
    pub fn under(policy: &'f Policy, rule: &'f Rule) -> Known<'f> {
        let mut known = Known::of(policy.conditions.iter().chain(&rule.conditions));
        known.keys = &rule.keys;
        for key in &rule.keys {
            if let [only] = &key.alternatives[..] {
                known.expected.push((&only.attribute, &PRESENT));
            }
        }
        known
    }

    /// The same, and what holds of requests to which this rule applies as well.
    pub fn and(mut self, other: &Known<'f>) -> Known<'f> {
        self.expected.extend(&other.expected);
        self
    }

    fn expect(&mut self, attribute: &'f Attribute, expectation: &'f Expectation) {
        match expectation {
            Expectation::All(all) => all.iter().for_each(|each| self.expect(attribute, each)),
            one => self.expected.push((attribute, one)),
        }
    }

    /// What is known of an attribute.
    pub fn on(&self, attribute: &Attribute) -> Vec<&'f Expectation> {
        self.expected.iter().filter(|(known, _)| *known == attribute).map(|(_, expectation)| *expectation).collect()
    }

    pub fn attributes(&self) -> impl Iterator<Item = &'f Attribute> {
        self.expected.iter().map(|(attribute, _)| *attribute)
    }

    pub fn is_present(&self, attribute: &Attribute) -> bool {
        never_missing(attribute) || self.on(attribute).into_iter().any(wants_a_value)
    }

    /// Whether it can only have one of finitely many values.
    pub fn is_pinned(&self, attribute: &Attribute) -> bool {
        let finite = |texts: &[Text]| texts.iter().all(|text| matches!(text, Text::Exact(_)));
        self.on(attribute).iter().any(|known| matches!(known, Expectation::AnyOf(texts) if finite(texts)))
    }

    pub fn implies(&self, condition: &Condition) -> bool {
        let present = self.is_present(&condition.attribute);
        implied(&self.on(&condition.attribute), present, &condition.expectation)
    }

    /// Whether the condition holds of none of these requests.
    pub fn excludes(&self, condition: &Condition) -> bool {
        let present = self.is_present(&condition.attribute);
        excluded(&self.on(&condition.attribute), present, &condition.expectation)
    }

    /// Whether a rule applies to all of these requests, for good.
    pub fn always_meets(&self, rule: &Rule) -> bool {
        let has_a_value = |key: &LimitKey| {
            let known = |part: &Attribute| key.alternatives.iter().any(|mine| mine.attribute == *part);
            key.alternatives.iter().any(|part| self.is_present(&part.attribute))
                || self.keys.iter().any(|other| other.alternatives.iter().all(|part| known(&part.attribute)))
        };
        rule.until.is_none()
            && rule.conditions.iter().all(|condition| self.implies(condition))
            && rule.keys.iter().all(has_a_value)
    }
}

pub fn never_missing(attribute: &Attribute) -> bool {
    match attribute {
        Attribute::Address
        | Attribute::Method
        | Attribute::Host
        | Attribute::Path
        | Attribute::Route
        | Attribute::Upstream => true,
        Attribute::Claim(_)
        | Attribute::KeyId
        | Attribute::KeyPlan
        | Attribute::Header(_)
        | Attribute::Query(_)
        | Attribute::Cookie(_) => false,
    }
}

/// Whether it fails where there is no value.
fn wants_a_value(expectation: &Expectation) -> bool {
    match expectation {
        Expectation::Not(_) | Expectation::Present(false) => false,
        Expectation::All(all) => all.iter().any(wants_a_value),
        _ => true,
    }
}

fn implied(known: &[&Expectation], present: bool, wanted: &Expectation) -> bool {
    // Of some texts, those that nothing else rules out.
    let left = |texts: &[Text]| {
        let possible = texts.iter().filter(|text| !known.iter().any(|other| outside(text, other)));
        possible.into_iter().all(|text| within(text, wanted))
    };
    match wanted {
        Expectation::All(all) => all.iter().all(|each| implied(known, present, each)),
        Expectation::Present(true) => present,
        Expectation::Present(false) => known.iter().any(|known| matches!(known, Expectation::Present(false))),
        _ => known.iter().any(|known| match known {
            Expectation::AnyOf(texts) => left(texts),
            one => implies(one, wanted),
        }),
    }
}

/// What follows from a single expectation that names no texts.
fn implies(known: &Expectation, wanted: &Expectation) -> bool {
    match (known, wanted) {
        (Expectation::Present(false), Expectation::Not(_)) => true,
        (Expectation::Not(known), Expectation::Not(wanted)) => {
            wanted.iter().all(|text| known.iter().any(|outer| covers(outer, text)))
        }
        (
            Expectation::Prefix(_) | Expectation::Suffix(_) | Expectation::Regex(_) | Expectation::Cidr(_),
            Expectation::Not(texts),
        ) => texts.iter().all(|text| outside(text, known)),
        (Expectation::Prefix(known), Expectation::Prefix(wanted)) => known.starts_with(wanted),
        (Expectation::Prefix(known), Expectation::AnyOf(texts)) => texts.iter().any(|text| match text {
            Text::Subtree(root) => known.strip_prefix(&root[..]).is_some_and(|below| below.starts_with(b"/")),
            Text::Exact(_) => false,
        }),
        (Expectation::Suffix(known), Expectation::Suffix(wanted)) => known.ends_with(wanted),
        (Expectation::Regex(known), Expectation::Regex(wanted)) => known.as_str() == wanted.as_str(),
        (Expectation::Cidr(known), Expectation::Cidr(wanted)) => {
            known.iter().all(|inner| wanted.iter().any(|outer| outer.contains(inner)))
        }
        _ => false,
    }
}

fn excluded(known: &[&Expectation], present: bool, wanted: &Expectation) -> bool {
    let nothing = || known.iter().any(|known| matches!(known, Expectation::Present(false)));
    match wanted {
        Expectation::All(all) => return all.iter().any(|each| excluded(known, present, each)),
        Expectation::Present(false) => return present,
        _ if wants_a_value(wanted) && nothing() => return true,
        _ => {}
    }
    known.iter().any(|one| match (one, wanted) {
        (Expectation::AnyOf(texts), _) => {
            texts.iter().all(|text| outside(text, wanted) || known.iter().any(|other| outside(text, other)))
        }
        (_, Expectation::AnyOf(texts)) => texts.iter().all(|text| outside(text, one)),
        (Expectation::Prefix(one), Expectation::Prefix(other)) => !one.starts_with(other) && !other.starts_with(one),
        (Expectation::Suffix(one), Expectation::Suffix(other)) => !one.ends_with(other) && !other.ends_with(one),
        (Expectation::Cidr(one), Expectation::Cidr(other)) => {
            one.iter().all(|network| other.iter().all(|other| are_apart(network, other)))
        }
        _ => false,
    })
}
