//! Collects facts about all requests to which a rule applies, and draws conclusions.
//!
//! `true` is always certain. `false` means that the answer is unknown.

use super::texts::{are_apart, covers, outside, within};
use request::attribute::Attribute;
use request::matcher::{Expectation, Text};
use rules::rule::{Condition, LimitKey, Policy, Rule};

static PRESENT: Expectation = Expectation::Present(true);

/// The conditions that all requests of a group meet, such as the requests to which a rule applies.
#[derive(Clone, Debug, Default)]
pub(crate) struct Constraints<'f> {
    /// Each attribute with an expectation. Several operators of one condition are separate entries.
    expected: Vec<(&'f Attribute, &'f Expectation)>,
    /// The limit keys. In every request of the group, at least one alternative of each key has a value.
    keys: &'f [LimitKey],
}

impl<'f> Constraints<'f> {
    /// Returns the constraints of requests that meet these conditions.
    pub(crate) fn of(conditions: impl IntoIterator<Item = &'f Condition>) -> Constraints<'f> {
        let mut constraints = Constraints::default();
        for condition in conditions {
            constraints.expect(&condition.attribute, &condition.expectation);
        }
        constraints
    }

    /// Returns the constraints of the requests to which a rule of this policy applies.
    pub(crate) fn under(policy: &'f Policy, rule: &'f Rule) -> Constraints<'f> {
        let mut constraints = Constraints::of(policy.conditions.iter().chain(&rule.conditions));
        constraints.keys = &rule.keys;
        for key in &rule.keys {
            if let [only] = &key.alternatives[..] {
                constraints.expected.push((only, &PRESENT));
            }
        }
        constraints
    }

    /// Returns these constraints together with the constraints of `other`. The requests must then meet both.
    pub(crate) fn and(mut self, other: &Constraints<'f>) -> Constraints<'f> {
        self.expected.extend(&other.expected);
        self
    }

    fn expect(&mut self, attribute: &'f Attribute, expectation: &'f Expectation) {
        match expectation {
            Expectation::All(all) => all.iter().for_each(|each| self.expect(attribute, each)),
            one => self.expected.push((attribute, one)),
        }
    }

    /// Returns the expectations that this attribute meets in all requests of the group.
    pub(crate) fn on(&self, attribute: &Attribute) -> Vec<&'f Expectation> {
        self.expected.iter().filter(|(known, _)| *known == attribute).map(|(_, expectation)| *expectation).collect()
    }

    fn of_attribute(&self, attribute: &Attribute) -> AttributeConstraints<'f> {
        AttributeConstraints {
            expected: self.on(attribute),
            present: self.is_present(attribute),
            plurality: self.plurality(attribute),
        }
    }

    /// Whether an attribute may have several values, such as a claim that is a list.
    fn plurality(&self, attribute: &Attribute) -> Plurality {
        let is_single = match attribute.source() {
            Attribute::Claim(_) => self.keys.iter().any(|key| key.is_only(attribute)),
            Attribute::Words(_) => false,
            _ => true,
        };
        if is_single { Plurality::Single } else { Plurality::Several }
    }

    /// Returns the attributes for which there is an expectation.
    pub(crate) fn attributes(&self) -> impl Iterator<Item = &'f Attribute> {
        self.expected.iter().map(|(attribute, _)| *attribute)
    }

    /// Whether every request that meets the constraints has a value of the attribute.
    pub(crate) fn is_present(&self, attribute: &Attribute) -> bool {
        attribute.is_never_missing() || self.expects_a_value(attribute)
    }

    /// Whether the constraints exclude requests that have no value of the attribute.
    pub(crate) fn expects_a_value(&self, attribute: &Attribute) -> bool {
        // Of the functions, only `trim` can make a value missing.
        let is_of_it = |known: &Attribute| {
            known.source() == attribute.source() && (known.folding().is_trim() || !attribute.folding().is_trim())
        };
        self.expected.iter().any(|(known, expectation)| is_of_it(known) && wants_a_value(expectation))
    }

    /// Whether the constraints allow only a fixed list of values of the attribute.
    pub(crate) fn is_pinned(&self, attribute: &Attribute) -> bool {
        let finite = |texts: &[Text]| texts.iter().all(|text| matches!(text, Text::Exact(_)));
        self.on(attribute).iter().any(|known| matches!(known, Expectation::AnyOf(texts) if finite(texts)))
    }

    /// Whether the operators of the condition contradict each other, so that no value can meet all of them.
    pub(crate) fn contradicts_itself(condition: &Condition) -> bool {
        let operators = condition.expectation.operators();
        operators.iter().enumerate().any(|(index, each)| {
            let mut others = Constraints::default();
            let rest = operators.iter().enumerate().filter(|(other, _)| *other != index);
            rest.for_each(|(_, other)| others.expect(&condition.attribute, other));
            others.of_attribute(&condition.attribute).excludes(each)
        })
    }

    /// Whether every request that meets the constraints also meets the condition.
    pub(crate) fn implies(&self, condition: &Condition) -> bool {
        self.of_attribute(&condition.attribute).implies(&condition.expectation)
    }

    /// Whether no request that meets the constraints can meet the condition.
    pub(crate) fn excludes(&self, condition: &Condition) -> bool {
        self.of_attribute(&condition.attribute).excludes(&condition.expectation)
    }

    /// Whether the rule never expires and applies to every request that meets the constraints.
    pub(crate) fn always_meets(&self, rule: &Rule) -> bool {
        let has_a_value = |key: &LimitKey| {
            let known = |part: &Attribute| key.alternatives.contains(part);
            let counts =
                |attribute: &Attribute| self.is_present(attribute) && self.plurality(attribute) == Plurality::Single;
            key.alternatives.iter().any(counts) || self.keys.iter().any(|other| other.alternatives.iter().all(known))
        };
        rule.until.is_none()
            && rule.conditions.iter().all(|condition| self.implies(condition))
            && rule.keys.iter().all(has_a_value)
    }
}

/// Whether a request without a value fails the expectation.
fn wants_a_value(expectation: &Expectation) -> bool {
    match expectation {
        Expectation::Not(_) | Expectation::Present(false) => false,
        Expectation::All(all) => all.iter().any(wants_a_value),
        _ => true,
    }
}

/// The constraints on one attribute, which all requests of the group meet.
struct AttributeConstraints<'f> {
    expected: Vec<&'f Expectation>,
    /// Whether the attribute always has a value.
    present: bool,
    /// Whether the attribute may have several values at once.
    plurality: Plurality,
}

/// Whether an attribute of the requests may be a list. Different elements of a list may meet different expectations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plurality {
    Single,
    Several,
}

impl AttributeConstraints<'_> {
    /// Whether every possible value meets the expectation.
    fn implies(&self, wanted: &Expectation) -> bool {
        // Texts that other expectations exclude are not possible values.
        let left = |texts: &[Text]| {
            let possible = texts.iter().filter(|text| !self.expected.iter().any(|other| self.rules_out(other, text)));
            possible.into_iter().all(|text| within(text, wanted))
        };
        match wanted {
            // An expectation about one element of a list shows nothing about the other elements.
            Expectation::Not(_) if self.plurality == Plurality::Several => {
                let says = |known: &&Expectation| matches!(known, Expectation::Not(_) | Expectation::Present(false));
                self.expected.iter().filter(|known| says(known)).any(|known| implies(known, wanted))
            }
            Expectation::All(all) => all.iter().all(|each| self.implies(each)),
            Expectation::Present(true) => self.present,
            Expectation::Present(false) => self.is_missing(),
            _ => self.expected.iter().any(|expected| match expected {
                Expectation::AnyOf(texts) => left(texts),
                one => implies(one, wanted),
            }),
        }
    }

    /// Whether no possible value meets the expectation.
    fn excludes(&self, wanted: &Expectation) -> bool {
        match wanted {
            Expectation::All(all) => return all.iter().any(|each| self.excludes(each)),
            Expectation::Present(false) => return self.present,
            _ if wants_a_value(wanted) && self.is_missing() => return true,
            _ => {}
        }
        if self.plurality == Plurality::Several {
            // Different elements of a list may meet the expectations, so one of the expectations must be about all
            // elements.
            return self.expected.iter().any(|one| match (one, wanted) {
                (Expectation::AnyOf(texts), Expectation::Not(_)) => {
                    texts.iter().all(|text| self.rules_out(wanted, text))
                }
                (Expectation::Not(_), Expectation::AnyOf(texts)) => texts.iter().all(|text| self.rules_out(one, text)),
                _ => false,
            });
        }
        self.expected.iter().any(|one| match (one, wanted) {
            (Expectation::AnyOf(texts), _) => {
                texts.iter().all(|text| outside(text, wanted) || self.expected.iter().any(|other| outside(text, other)))
            }
            (_, Expectation::AnyOf(texts)) => texts.iter().all(|text| outside(text, one)),
            (Expectation::Prefix(one), Expectation::Prefix(other)) => {
                !one.starts_with(other) && !other.starts_with(one)
            }
            (Expectation::Suffix(one), Expectation::Suffix(other)) => !one.ends_with(other) && !other.ends_with(one),
            (Expectation::Cidr(one), Expectation::Cidr(other)) => {
                one.iter().all(|network| other.iter().all(|other| are_apart(network, other)))
            }
            _ => false,
        })
    }

    /// Whether the expectation excludes this text as a value, or as an element of a list.
    fn rules_out(&self, expected: &Expectation, text: &Text) -> bool {
        let of_all = self.plurality == Plurality::Single || matches!(expected, Expectation::Not(_));
        of_all && outside(text, expected)
    }

    /// Whether the attribute never has a value.
    fn is_missing(&self) -> bool {
        self.expected.iter().any(|expected| matches!(expected, Expectation::Present(false)))
    }
}

/// Whether a value that meets `known` always meets `wanted`. `known` is never an `AnyOf`.
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
            Text::Exact(_) | Text::Subdomain(_) => false,
        }),
        (Expectation::Suffix(known), Expectation::Suffix(wanted)) => known.ends_with(wanted),
        (Expectation::Regex(known), Expectation::Regex(wanted)) => known.as_str() == wanted.as_str(),
        (Expectation::Cidr(known), Expectation::Cidr(wanted)) => {
            known.iter().all(|inner| wanted.iter().any(|outer| outer.contains(inner)))
        }
        _ => false,
    }
}
