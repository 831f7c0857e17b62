//! Answers the questions of a walk over the rules, from the known parts of a request.

use super::parts::{Failure, MatchedElement, PickedKey};
use crate::compiled_limit::{CompiledLimit, CompiledNumbers};
use crate::compiled_rule::{CompiledCondition, CompiledRule, Slot};
use crate::index::{Index, Indices};
use crate::partial_evaluation::{Knowledge, Observation};
use crate::policy_walk::{Facts, Finding};
use crate::rule::{Condition, LimitKey};
use crate::rule_set::RuleSet;
use crate::settled_price::{LearnedCosts, SettledPrice};
use base::time::Timestamp;
use ledger::bucket_key::Descriptor;
use request::attribute::Attribute;
use request::door::Door;
use request::matcher::Expectation;
use request::model_request::ModelRequest;

/// Answers the questions of a walk over the rules. Some attributes of the request may be unknown.
pub(super) struct PartialFacts<'a, 'w> {
    pub rules: &'a RuleSet,
    /// Returns what is known about an attribute's value.
    pub see: &'w mut dyn FnMut(&'a Attribute) -> Observation<'a>,
    pub known: Knowledge<'a>,
}

/// The values of a rule's limit keys, and the descriptor made from these values.
#[derive(Default)]
pub(super) struct PickedKeys<'a> {
    /// The picked values, in the order of the limit keys in a bucket's identity.
    pub keys: Vec<PickedKey<'a>>,
    descriptor: Descriptor,
}

impl<'a> PickedKeys<'a> {
    /// Adds the value of a limit key, or its pseudonym if only the pseudonym is known. With a pseudonym, the bucket is
    /// not the gateway's bucket, but different clients still have different buckets.
    pub(super) fn push(&mut self, picked: PickedKey<'a>, issuer: Option<&str>) {
        let PickedKey { alternative, part, value, .. } = &picked;
        let mut push = |value: &[u8]| self.descriptor.push_value(*alternative, part, issuer, value);
        match value {
            Observation::Value(value) => push(value),
            Observation::Named(name) => push(name.to_string().as_bytes()),
            Observation::Missing | Observation::List(_) | Observation::Unknown => {}
        }
        self.keys.push(picked);
    }
}

impl<'a> PartialFacts<'a, '_> {
    /// Returns what is known about the attribute with this index (slot). `Missing` for an index of another rule set.
    pub(super) fn look(&mut self, slot: Slot) -> Observation<'a> {
        self.rules.attributes().get(slot.0).map_or(Observation::Missing, |attribute| (self.see)(attribute))
    }

    /// Adds the elements of a list that fulfil a condition: the first element for each operator.
    fn match_elements(&self, condition: &'a Condition, found: &Observation<'a>, matched: &mut Vec<MatchedElement<'a>>) {
        let Observation::List(elements) = found else { return };
        let attribute = &condition.attribute;
        for expectation in condition.expectation.operators() {
            if matches!(
                expectation,
                Expectation::Not(_) | Expectation::Present(_) | Expectation::Cidr(_) | Expectation::CidrFile(_)
            ) {
                continue;
            }
            let holds = |element: &&Observation<'a>| self.known.evaluate(expectation, attribute, element) == Some(true);
            let Some(element) = elements.iter().find(holds) else { continue };
            let one = MatchedElement { attribute, element: element.clone() };
            if !matched.contains(&one) {
                matched.push(one);
            }
        }
    }

    /// Picks the first alternative of a limit key that has a value.
    fn pick_key(&mut self, key: &'a LimitKey) -> Finding<PickedKey<'a>, Failure<'a>, &'a Attribute> {
        for (alternative, part) in (0u8..).zip(&key.alternatives) {
            let value = match (self.see)(part) {
                // A limit cannot count by a list, so the next alternative is tried.
                Observation::Missing | Observation::List(_) => continue,
                Observation::Unknown => return Finding::Unknown(part),
                value => value,
            };
            return Finding::Holds(PickedKey { key, alternative, part, value });
        }
        Finding::Fails(Failure::Key(key))
    }
}

impl<'a> Facts<'a> for PartialFacts<'a, '_> {
    type Match = Vec<MatchedElement<'a>>;
    type Failure = Failure<'a>;
    /// The attributes whose values are unknown.
    type Unknown = Vec<&'a Attribute>;
    type Picked = PickedKeys<'a>;

    fn at(&self) -> Timestamp {
        self.known.at
    }

    /// A request whose door is not known counts as forwarded.
    fn is_forwarded(&mut self) -> bool {
        match (self.see)(&Attribute::Door) {
            Observation::Value(door) => *door == *Door::Proxy.name().as_bytes(),
            _ => true,
        }
    }

    fn is_held(&mut self) -> bool {
        self.known.is_held
    }

    /// Uses no index, so that the explanation has a reason for each entry.
    fn find(&mut self, _: &Index) -> Option<Indices> {
        None
    }

    fn conditions(
        &mut self,
        conditions: &'a [CompiledCondition],
    ) -> Finding<Self::Match, Self::Failure, Self::Unknown> {
        let (mut unknown, mut matched) = (Vec::new(), Vec::new());
        for CompiledCondition { condition, .. } in conditions {
            let found = (self.see)(&condition.attribute);
            match self.known.evaluate(&condition.expectation, &condition.attribute, &found) {
                Some(true) => self.match_elements(condition, &found, &mut matched),
                Some(false) => {
                    // A network is compared with the whole address, but the attribute has only its prefix.
                    let compares = condition.expectation.compares_networks() && found != Observation::Missing;
                    let whole = self.known.client.filter(|_| compares);
                    let found =
                        whole.map_or(found, |client| Observation::Value(client.to_string().into_bytes().into()));
                    return Finding::Fails(Failure::Condition { condition, found });
                }
                None => unknown.push(&condition.attribute),
            }
        }
        if unknown.is_empty() { Finding::Holds(matched) } else { Finding::Unknown(unknown) }
    }

    fn pick(
        &mut self,
        rule: &'a CompiledRule,
        picked: &mut PickedKeys<'a>,
    ) -> Finding<(), Self::Failure, Self::Unknown> {
        let mut unknown = Vec::new();
        for compiled in &rule.keys {
            match self.pick_key(&compiled.key) {
                Finding::Holds(key) => picked.push(key, self.known.issuer),
                Finding::Fails(failure) => return Finding::Fails(failure),
                Finding::Unknown(attribute) => unknown.push(attribute),
            }
        }
        if unknown.is_empty() { Finding::Holds(()) } else { Finding::Unknown(unknown) }
    }

    fn descriptor<'p>(picked: &'p PickedKeys<'a>) -> &'p Descriptor {
        &picked.descriptor
    }

    fn check_costs(
        &mut self,
        limits: impl Iterator<Item = &'a CompiledLimit>,
        picked: &PickedKeys<'a>,
    ) -> Result<(), Self::Unknown> {
        for limit in limits {
            let own = limit.claimed.as_ref().filter(|_| self.variant(limit, picked) == 0);
            let numbers = own.map_or(&[][..], |CompiledNumbers { slots, .. }| slots);
            // An explanation need not know what a budget reserves, because the request will settle its true cost.
            let named = if limit.settled_price().is_some_and(SettledPrice::is_told_by_response) {
                &[]
            } else {
                limit.price.slots()
            };
            for slot in named.iter().chain(numbers) {
                if let Observation::Named(_) | Observation::Unknown = self.look(*slot) {
                    return Err(self.rules.attributes().get(slot.0).into_iter().collect());
                }
            }
        }
        Ok(())
    }

    fn variant(&mut self, limit: &'a CompiledLimit, PickedKeys { keys, .. }: &PickedKeys<'a>) -> u32 {
        let parts = limit.overrides.of_picked(|key| keys.get(key).map(|picked| picked.alternative));
        let variants = parts.filter_map(|overrides| {
            let PickedKey { part, value, .. } = keys.get(overrides.key)?;
            match value {
                Observation::Value(value) => overrides.variant(value),
                Observation::Named(name) => {
                    let attribute = part.to_string();
                    overrides.variant_where(|value| self.known.names.value(&attribute, value) == *name)
                }
                Observation::Missing | Observation::List(_) | Observation::Unknown => None,
            }
        });
        variants.min().unwrap_or(0)
    }

    fn with_text<R>(&mut self, slot: Slot, read: impl FnOnce(Option<&[u8]>) -> R) -> R {
        match self.look(slot) {
            Observation::Value(text) => read(Some(&text)),
            // A list is not a number. It is read as an empty text, which is not a number either.
            Observation::List(_) => read(Some(b"")),
            Observation::Missing | Observation::Named(_) | Observation::Unknown => read(None),
        }
    }

    /// Returns `None`, because an explanation knows no earlier requests.
    fn learned_costs(&self) -> Option<&'a dyn LearnedCosts> {
        None
    }

    /// Returns `None`, because an explanation has no body.
    fn model_request(&self) -> Option<&'a ModelRequest> {
        None
    }

    fn join(mut first: Self::Unknown, second: Self::Unknown) -> Self::Unknown {
        first.extend(second);
        first
    }
}
