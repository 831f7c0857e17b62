//! Plans the charges of a request whose body has perhaps not been read: [`RuleSet::plan_or_needs`].

use smallvec::SmallVec;

use super::compiled_limit::CompiledLimit;
use super::compiled_rule::{CompiledCondition, CompiledPolicy, CompiledRule, Slot};
use super::index::{Index, Indices};
use super::plan::RuleDescriptor;
use super::policy_walk::{Facts, Finding, Observer, RuleFinding};
use super::resolved::Values;
use super::rule_set::RuleSet;
use super::ruling::{Answer, Ruling};
use super::settled_price::LearnedCosts;
use base::time::Timestamp;
use ledger::bucket_key::Descriptor;
use request::attribute::Attribute;
use request::llm_model::format_of;
use request::model_request::{ModelBody, ModelRequest};
use request::request::Request;

/// What must be read from the body before the rules can decide.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NeededFromBody {
    pub attributes: Vec<Attribute>,
    /// Whether the whole body is needed, because this is a [request to a language model](request::model_request).
    pub model: bool,
}

/// What is not known of a request before its body is read.
#[derive(Default)]
struct Unread {
    /// The slots (indexes) of the attributes that are not known.
    slots: SmallVec<[Slot; 2]>,
    /// Whether it is not known what the body asks of a language model.
    model: bool,
}

impl RuleSet {
    /// Determines what a request has to pay, as [`RuleSet::plan`] does, if enough is known of its body. `learned` are
    /// the costs of earlier requests.
    ///
    /// # Errors
    /// Returns what must be read from the body. Each of the attributes belongs to a rule, a policy or an exemption
    /// whose other conditions hold. A request that is denied without these attributes needs no attribute.
    pub fn plan_or_needs(
        &self,
        request: &Request<'_>,
        at: Timestamp,
        learned: Option<&dyn LearnedCosts>,
    ) -> Result<Ruling, NeededFromBody> {
        let mut values = Values::new(self.attributes(), request, at);
        values.learned = learned;
        if !self.reads_bodies() || request.body.is_none() {
            return Ok(self.walk(&mut values, &mut ()));
        }
        let (mut values, mut needed) = (UnreadValues(values), Needed::default());
        let ruling = self.walk(&mut values, &mut needed);
        let Needed(Unread { slots, model }) = needed;
        if slots.is_empty() && !model || matches!(ruling.answer, Answer::Denied(_)) {
            return Ok(ruling);
        }
        let mut attributes: Vec<Attribute> = Vec::new();
        for slot in slots {
            let attribute = values.0.attribute(slot).source();
            if !attributes.contains(attribute) {
                attributes.push(attribute.clone());
            }
        }
        Err(NeededFromBody { attributes, model })
    }
}

/// The attributes of one request. The attributes in its body may be unknown.
struct UnreadValues<'s, 'r>(Values<'s, 'r>);

impl UnreadValues<'_, '_> {
    fn is_unknown(&self, slot: Slot) -> bool {
        let attribute = self.0.attribute(slot);
        let body = self.0.request.body.filter(|_| attribute.needs_body());
        body.is_some_and(|body| !body.knows(attribute)) && attribute.is_in_body_of(self.0.request.head)
    }

    /// Whether the body may be that of a request to a language model.
    fn is_model_unknown(&self) -> bool {
        *self.0.request.model() == ModelBody::Unread && format_of(self.0.request.head).is_some()
    }
}

impl Unread {
    fn of(slots: SmallVec<[Slot; 2]>) -> Unread {
        Unread { slots, model: false }
    }
}

impl<'s> Facts<'s> for UnreadValues<'s, '_> {
    type Match = ();
    type Failure = ();
    type Unknown = Unread;
    type Picked = RuleDescriptor;

    fn at(&self) -> Timestamp {
        self.0.at
    }

    fn is_forwarded(&mut self) -> bool {
        self.0.is_forwarded()
    }

    fn find(&mut self, index: &Index) -> Option<Indices> {
        if index.reads(|slot| self.is_unknown(Slot(slot))) { None } else { Some(self.0.find(index)) }
    }

    fn conditions(&mut self, conditions: &'s [CompiledCondition]) -> Finding<(), (), Unread> {
        let mut unknown: SmallVec<[Slot; 2]> = SmallVec::new();
        for condition in conditions {
            if self.is_unknown(condition.slot) {
                unknown.push(condition.slot);
            } else if !self.0.hold(std::slice::from_ref(condition)) {
                return Finding::Fails(());
            }
        }
        if unknown.is_empty() { Finding::Holds(()) } else { Finding::Unknown(Unread::of(unknown)) }
    }

    fn pick(&mut self, rule: &'s CompiledRule, picked: &mut RuleDescriptor) -> Finding<(), (), Unread> {
        let mut unknown: SmallVec<[Slot; 2]> = SmallVec::new();
        for key in &rule.keys {
            // The first alternative that has a value counts, so an unknown alternative before it must be read.
            let open = unknown.len();
            let mut has_value = false;
            for slot in &key.parts {
                if self.is_unknown(*slot) {
                    unknown.push(*slot);
                } else if self.0.of(*slot).is_some() {
                    has_value = true;
                    break;
                }
            }
            if !has_value && unknown.len() == open {
                return Finding::Fails(());
            }
        }
        if unknown.is_empty() { self.0.pick(rule, picked).widened() } else { Finding::Unknown(Unread::of(unknown)) }
    }

    fn descriptor(picked: &RuleDescriptor) -> &Descriptor {
        <Values<'_, '_> as Facts<'_>>::descriptor(picked)
    }

    fn check_costs(
        &mut self,
        limits: impl Iterator<Item = &'s CompiledLimit>,
        _: &RuleDescriptor,
    ) -> Result<(), Unread> {
        let mut unknown = Unread::default();
        for limit in limits {
            unknown.slots.extend(limit.slots().filter(|slot| self.is_unknown(*slot)));
            unknown.model |= limit.counts_models() && self.is_model_unknown();
        }
        if unknown.slots.is_empty() && !unknown.model { Ok(()) } else { Err(unknown) }
    }

    fn variant(&mut self, limit: &'s CompiledLimit, picked: &RuleDescriptor) -> u32 {
        self.0.variant(limit, picked)
    }

    fn with_text<R>(&mut self, slot: Slot, read: impl FnOnce(Option<&[u8]>) -> R) -> R {
        self.0.with_text(slot, read)
    }

    fn learned_costs(&self) -> Option<&'s dyn LearnedCosts> {
        self.0.learned_costs()
    }

    fn model_request(&self) -> Option<&'s ModelRequest> {
        self.0.model_request()
    }

    /// Returns what is not known for the conditions. The values of limit keys are needed only if the conditions hold.
    fn join(conditions: Unread, _: Unread) -> Unread {
        conditions
    }
}

impl<M, F> Finding<M, F, std::convert::Infallible> {
    /// Converts this finding, which is never unknown, to a type of finding that can be unknown.
    fn widened<U>(self) -> Finding<M, F, U> {
        match self {
            Finding::Holds(matched) => Finding::Holds(matched),
            Finding::Fails(failure) => Finding::Fails(failure),
            Finding::Unknown(never) => match never {},
        }
    }
}

/// Collects the unknown attributes on which the rules depend.
#[derive(Default)]
struct Needed(Unread);

impl<'s, 'r> Observer<'s, UnreadValues<'s, 'r>> for Needed {
    fn policy(&mut self, _: &'s CompiledPolicy, finding: Finding<(), (), Unread>) {
        self.note(finding);
    }

    fn rule(&mut self, _: &'s CompiledPolicy, _: &'s CompiledRule, finding: RuleFinding<'s, UnreadValues<'s, 'r>>) {
        if let RuleFinding::Unknown(unread) = finding {
            self.add(unread);
        }
    }

    fn exemption(&mut self, _: usize, finding: Finding<(), (), Unread>) {
        self.note(finding);
    }
}

impl Needed {
    fn note(&mut self, finding: Finding<(), (), Unread>) {
        if let Finding::Unknown(unread) = finding {
            self.add(unread);
        }
    }

    fn add(&mut self, Unread { slots, model }: Unread) {
        self.0.slots.extend(slots);
        self.0.model |= model;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::{Action, Condition, LimitKey, Mode, Otherwise, Policy, Rule, RuleSource};
    use base::position::Position;
    use proptest::prelude::*;
    use request::body_values::{BodyKind, BodyValues};
    use request::client_address::ClientAddress;
    use request::matcher::{Expectation, Text};

    const ATTRIBUTES: [&str; 6] =
        ["path", "header:a", "request_json:/a", "request_json:/b", "request_json:/c", "request_form:a"];

    fn attribute() -> BoxedStrategy<Attribute> {
        prop::sample::select(ATTRIBUTES.to_vec()).prop_map(|name| Attribute::parse(name).unwrap()).boxed()
    }

    /// Generates few attributes and values, so that many rules need the body, and many do not.
    fn rules() -> impl Strategy<Value = RuleSet> {
        let texts = prop::collection::vec(prop::sample::select(vec!["1", "2", "3", "/x"]), 1..3);
        let condition = (attribute(), texts, 0..4).prop_map(|(attribute, texts, kind)| {
            let texts = texts.iter().map(|text| Text::exact(text)).collect();
            let expectation = match kind {
                0 => Expectation::Not(texts),
                1 => Expectation::Present(true),
                _ => Expectation::AnyOf(texts),
            };
            Condition { attribute, expectation }
        });
        let conditions = prop::collection::vec(condition, 0..3).boxed();
        let key = prop::collection::vec(attribute(), 1..3).prop_map(|alternatives| LimitKey {
            text: alternatives.iter().map(ToString::to_string).collect::<Vec<_>>().join("|"),
            alternatives,
        });
        let action = prop::sample::select(vec![Action::Allow, Action::Deny, Action::Charge(Vec::new())]);
        let mode = prop::sample::select(vec![Mode::Enforce, Mode::Shadow]);
        let rule = (conditions.clone(), prop::collection::vec(key, 0..2), action, mode.clone()).prop_map(
            |(conditions, keys, action, mode)| Rule {
                name: String::new(),
                conditions,
                keys,
                mode,
                action,
                until: None,
                position: Position::default(),
            },
        );
        let otherwise = prop::sample::select(vec![Otherwise::Allow, Otherwise::Deny]);
        let policy = (conditions.clone(), prop::collection::vec(rule, 0..12), otherwise, mode).prop_map(
            |(conditions, rules, otherwise, mode)| Policy {
                name: String::new(),
                conditions,
                mode,
                otherwise,
                rules,
                position: Position::default(),
            },
        );
        let exempt = prop::collection::vec(conditions, 0..2);
        (prop::collection::vec(policy, 0..12), exempt)
            .prop_map(|(policies, exempt)| RuleSet::compile(RuleSource { policies, exempt }))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]

        #[test]
        fn the_ruling_is_that_of_a_body_that_was_read_at_once(
            rules in rules(),
            (path, a) in ("/[xy]", "[1-4]"),
            body in prop::sample::select(vec!["{}", r#"{"a":1}"#, r#"{"a":"2","b":3}"#, r#"{"c":1,"b":2,"a":3}"#]),
        ) {
            let (head, ()) = http::Request::builder().uri(path).header("a", a).body(()).unwrap().into_parts();
            let request = Request::new(&head, ClientAddress::new([203, 0, 113, 7].into(), 64));
            let read = |values: &mut BodyValues, needed: &[Attribute]| {
                values.read(BodyKind::Json, body.as_bytes(), needed).unwrap();
            };
            let mut all = BodyValues::default();
            read(&mut all, &ATTRIBUTES.map(|name| Attribute::parse(name).unwrap()));
            let whole = rules.plan(&request.with_body(Some(&all)), Timestamp(1));

            let (mut known, mut rounds) = (BodyValues::default(), 0);
            let ruling = loop {
                match rules.plan_or_needs(&request.with_body(Some(&known)), Timestamp(1), None) {
                    Ok(ruling) => break ruling,
                    Err(NeededFromBody { attributes: needed, model: false }) => {
                        prop_assert!(needed.iter().all(|one| one.needs_body() && !known.knows(one)));
                        prop_assert!(!needed.is_empty() && rounds < ATTRIBUTES.len());
                        rounds += 1;
                        read(&mut known, &needed);
                    }
                    Err(other) => panic!("{other:?}"),
                }
            };
            // If both rulings deny, their rules may differ: without the body, another rule may be the first that
            // denies.
            let both_deny = matches!((&ruling.answer, &whole.answer), (Answer::Denied(_), Answer::Denied(_)));
            prop_assert!(both_deny || format!("{ruling:?}") == format!("{whole:?}"), "{ruling:?}\n{whole:?}");
        }
    }
}
