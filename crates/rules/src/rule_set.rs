//! Compiles the policies of a file, once for each load of the file.
//!
//! A list has all attributes that rules read, each of them once. A rule refers to an attribute by its index in this
//! list, the slot. So an attribute is resolved at most once for each request.

use std::borrow::Cow;
use std::sync::Arc;

use smallvec::SmallVec;

use super::ambiguity::{Ambiguity, AmbiguityCheck};
use super::claimed_numbers::ClaimedNumbers;
pub use super::compiled_limit::CompiledLimit;
use super::compiled_limit::{CompiledNumbers, CompiledPrice, combine_meters};
use super::compiled_rule::{
    CompiledAction, CompiledCondition, CompiledKey, CompiledPolicy, CompiledRule, Slot, conditions_of,
};
use super::denier::{Denier, DenierId};
use super::index::Index;
use super::overrides::CompiledOverrides;
use super::rule::{
    Action, Condition, Limit, Mode, Otherwise, Override, OverrideNumbers, Policy, Price, Rule, RuleSource,
};
pub use super::ruling::{Answer, PolicyId, Ruling};
use super::settled_price::Unit;
use ledger::algorithm::Algorithm;
use ledger::bucket_key::{KeySeed, LimitIdentity};
use ledger::charge::LimitId;
use request::attribute::Attribute;
use request::body_reading::JsonPlaces;
use request::key_places::KeyPlaces;
use request::request::Request;

/// All rules of a file, compiled.
#[derive(Clone, Debug, Default)]
pub struct RuleSet {
    attributes: Vec<Attribute>,
    /// Those of the attributes that are places in JSON bodies.
    json_places: JsonPlaces,
    /// Whether attributes or costs are read from the bodies of requests.
    reads_bodies: bool,
    /// Whether a limit counts the tokens, or the money, of language models.
    counts_models: bool,
    ambiguity: AmbiguityCheck,
    pub(super) exempt: Vec<Vec<CompiledCondition>>,
    pub(super) policies: Vec<CompiledPolicy>,
    /// Finds the policies that may apply to a request. `None` if there are too few policies for an index.
    pub(super) index: Option<Index>,
    limits: Vec<CompiledLimit>,
    deniers: Vec<Denier>,
    source: RuleSource,
}

impl RuleSet {
    /// Compiles policies and exemptions. Their names and numbers must have been checked before.
    pub fn compile(source: RuleSource) -> RuleSet {
        let RuleSource { policies, exempt } = &source;
        let mut set = RuleSet::default();
        set.exempt = exempt.iter().map(|conditions| set.conditions(conditions)).collect();
        for (policy, id) in policies.iter().zip(0..) {
            let rules: Vec<_> =
                policy.rules.iter().enumerate().map(|(index, rule)| set.rule(policy, rule, index)).collect();
            let compiled = CompiledPolicy {
                id: PolicyId(id),
                conditions: set.conditions(&policy.conditions),
                mode: policy.mode,
                denies_unmatched: match policy.otherwise {
                    Otherwise::Allow => None,
                    Otherwise::Deny => Some(set.add_denier(policy, None, policy.mode)),
                },
                index: Index::of(rules.iter().map(|rule| conditions_of(&rule.conditions))),
                rules,
            };
            set.policies.push(compiled);
        }
        combine_meters(&mut set.limits);
        set.index = Index::of(set.policies.iter().map(|policy| conditions_of(&policy.conditions)));
        // Attributes that only shadow rules read are left out, because a shadow rule never refuses a request.
        set.ambiguity = AmbiguityCheck::of(policies, exempt);
        set.json_places = JsonPlaces::of(&set.attributes);
        set.counts_models = set.limits.iter().any(CompiledLimit::counts_models);
        set.reads_bodies = set.counts_models || set.attributes.iter().any(Attribute::needs_body);
        set.source = source;
        set
    }

    /// Returns these rules with every limit over several regions as a limit of one region, for a reader that knows one region.
    #[must_use]
    pub fn in_one_region(mut self) -> RuleSet {
        let rules = self.source.policies.iter_mut().flat_map(|policy| &mut policy.rules);
        for rule in rules {
            if let Action::Charge(limits) = &mut rule.action {
                limits.iter_mut().for_each(Limit::set_in_one_region);
            }
        }
        self.limits.iter_mut().for_each(CompiledLimit::set_in_one_region);
        self
    }

    /// Adds attributes to the check for ambiguous requests, because credentials or routes read these attributes.
    pub fn with_unambiguous(mut self, attributes: impl IntoIterator<Item = Attribute>) -> RuleSet {
        self.ambiguity.add(attributes);
        self
    }

    /// Adds the places of API keys to the check for ambiguous requests.
    pub fn with_key_places(mut self, places: KeyPlaces) -> RuleSet {
        self.ambiguity.add(places.attributes().map(Cow::into_owned));
        self.ambiguity.add_keys(places);
        self
    }

    #[cfg(test)]
    pub(crate) fn without_indexes(mut self) -> RuleSet {
        self.index = None;
        self.policies.iter_mut().for_each(|policy| policy.index = None);
        self
    }

    /// Checks that a request can be read in only one way. Must be called first, because an ambiguous request is neither
    /// authenticated nor charged.
    ///
    /// # Errors
    /// Returns the part that has several readings.
    pub fn read(&self, request: &Request<'_>) -> Result<(), Ambiguity> {
        self.ambiguity.check(request)
    }

    /// Returns the check for ambiguous requests.
    pub fn ambiguity(&self) -> &AmbiguityCheck {
        &self.ambiguity
    }

    /// Returns the attributes that rules read.
    pub fn attributes(&self) -> &[Attribute] {
        &self.attributes
    }

    /// Returns whether a limit counts the tokens, or the money, of language models.
    pub fn counts_models(&self) -> bool {
        self.counts_models
    }

    /// Returns those of the attributes that are places in JSON bodies.
    pub fn json_places(&self) -> &JsonPlaces {
        &self.json_places
    }

    /// Returns whether rules read attributes or costs from the bodies of requests.
    pub fn reads_bodies(&self) -> bool {
        self.reads_bodies
    }

    /// Returns the columns of the key file that rules read, except the columns with the id and the plan.
    pub fn key_columns(&self) -> impl Iterator<Item = &str> {
        self.attributes.iter().filter_map(|attribute| match attribute.source() {
            Attribute::KeyColumn(name) => Some(&**name),
            _ => None,
        })
    }

    /// Returns all limits of the file. A [`LimitId`] is an index into this list.
    pub fn limits(&self) -> &[CompiledLimit] {
        &self.limits
    }

    /// Returns the limits that a rule charges. `policy` and `rule` are indexes.
    pub fn charged_by(&self, policy: usize, rule: usize) -> &[LimitId] {
        match self.policies.get(policy).and_then(|policy| policy.rules.get(rule)) {
            Some(CompiledRule { action: CompiledAction::Charge(limits), .. }) => limits,
            _ => &[],
        }
    }

    pub fn limit(&self, id: LimitId) -> Option<&CompiledLimit> {
        self.limits.get(usize::try_from(id.0).ok()?)
    }

    /// Returns all rules and policies that may deny a request. A [`DenierId`] is an index into this list.
    pub fn deniers(&self) -> &[Denier] {
        &self.deniers
    }

    pub fn denier(&self, id: DenierId) -> Option<&Denier> {
        self.deniers.get(usize::try_from(id.0).ok()?)
    }

    /// Returns the policies and exemptions from which the rule set was compiled.
    pub fn source(&self) -> &RuleSource {
        &self.source
    }

    fn slot(&mut self, attribute: &Attribute) -> Slot {
        let index = self.attributes.iter().position(|known| known == attribute);
        Slot(index.unwrap_or_else(|| {
            self.attributes.push(attribute.clone());
            self.attributes.len() - 1
        }))
    }

    fn conditions(&mut self, conditions: &[Condition]) -> Vec<CompiledCondition> {
        let compile = |condition: &Condition| CompiledCondition {
            slot: self.slot(&condition.attribute),
            condition: condition.clone(),
        };
        conditions.iter().map(compile).collect()
    }

    fn rule(&mut self, policy: &Policy, rule: &Rule, index: usize) -> CompiledRule {
        let mode = if policy.mode == Mode::Shadow { Mode::Shadow } else { rule.mode };
        let action = match &rule.action {
            Action::Allow => CompiledAction::Allow,
            Action::Deny => CompiledAction::Deny(self.add_denier(policy, Some(&rule.name), mode)),
            Action::Charge(limits) => CompiledAction::Charge(
                limits.iter().flat_map(|limit| self.limits_of(policy, rule, limit, mode)).collect(),
            ),
        };
        CompiledRule {
            index,
            conditions: self.conditions(&rule.conditions),
            keys: rule
                .sorted_keys()
                .into_iter()
                .map(|key| CompiledKey {
                    key: key.clone(),
                    parts: key.alternatives.iter().map(|one| self.slot(one)).collect(),
                })
                .collect(),
            mode: rule.mode,
            action,
            until: rule.until,
        }
    }

    /// Compiles a limit, and its `candidate` in shadow mode if it has one.
    fn limits_of(&mut self, policy: &Policy, rule: &Rule, limit: &Limit, mode: Mode) -> SmallVec<[LimitId; 2]> {
        let mut keys: Vec<String> = rule.keys.iter().map(|key| key.text.clone()).collect();
        keys.sort_unstable();
        let meter = limit.meter.as_ref().filter(|_| mode == Mode::Enforce);
        // The unit is part of the bucket's identity, as a text that no limit key has. So a bucket counts in only one
        // unit.
        let unit = match &limit.price {
            Price::Settled(price) if price.unit() != Unit::Requests => Some(format!("unit={}", price.unit().name())),
            _ => None,
        };
        let identifying: Vec<String> = keys.iter().cloned().chain(unit).collect();
        let seed = |mode: Mode, algorithm: &Algorithm, meter: Option<&String>| {
            let identity = LimitIdentity {
                policy: &policy.name,
                rule: &rule.name,
                limit: &limit.name,
                mode: mode.name(),
                // A limit over several regions is known by its bucket at home.
                algorithm: algorithm.kind().at_home(),
                keys: &identifying,
            };
            meter.map_or_else(|| KeySeed::new(&identity), |meter| KeySeed::of_meter(meter, &identity))
        };
        let price = match &limit.price {
            Price::Fixed(cost) => CompiledPrice::Fixed(*cost),
            Price::Settled(price) => {
                let slots = price.reserve.attributes().iter().map(|attribute| self.slot(attribute)).collect();
                CompiledPrice::Settled { price: Arc::new(price.clone()), slots }
            }
            Price::FromRequest { attribute, default, min, max } => {
                CompiledPrice::FromRequest { slot: self.slot(attribute), default: *default, min: *min, max: *max }
            }
        };
        let name = match &*limit.name {
            "" => rule.name.clone(),
            several => format!("{}.{several}", rule.name),
        };
        let numbers = |one: &Override| match one.numbers {
            OverrideNumbers::Limited(numbers) => numbers,
            OverrideNumbers::Unlimited => limit.algorithm,
        };
        let bare = CompiledLimit {
            policy: policy.name.clone(),
            name,
            mode,
            meter: meter.cloned(),
            expose: limit.expose,
            refusal: limit.refusal,
            ban_status: limit.ban_status,
            on_store_failure: limit.on_store_failure,
            keys: keys.clone(),
            variants: Vec::new(),
            claimed: None,
            price,
            seed: seed(mode, &limit.algorithm, meter),
            overrides: CompiledOverrides::default(),
        };
        let enforced = CompiledLimit {
            variants: std::iter::once(limit.algorithm).chain(limit.overrides.iter().map(numbers)).collect(),
            claimed: self.claimed(limit.claimed.as_ref()),
            overrides: CompiledOverrides::compile(&limit.overrides, rule, |attribute| self.slot(attribute)),
            ..bare.clone()
        };
        let candidate = limit.candidate.map(|algorithm| CompiledLimit {
            mode: Mode::Shadow,
            meter: None,
            variants: vec![algorithm],
            claimed: self.claimed(limit.candidate_claimed.as_ref()),
            seed: seed(Mode::Shadow, &algorithm, None),
            ..bare
        });
        std::iter::once(enforced).chain(candidate).map(|limit| self.add(limit)).collect()
    }

    fn claimed(&mut self, claimed: Option<&ClaimedNumbers>) -> Option<CompiledNumbers> {
        claimed.map(|claimed| CompiledNumbers::compile(claimed, |attribute| self.slot(attribute)))
    }

    fn add_denier(&mut self, policy: &Policy, rule: Option<&str>, mode: Mode) -> DenierId {
        // A file has far fewer than 2^32 rules.
        let id = DenierId(u32::try_from(self.deniers.len()).unwrap_or(u32::MAX));
        self.deniers.push(Denier { policy: policy.name.clone(), rule: rule.map(str::to_owned), mode });
        id
    }

    fn add(&mut self, limit: CompiledLimit) -> LimitId {
        // A file has far fewer than 2^32 limits.
        let id = LimitId(u32::try_from(self.limits.len()).unwrap_or(u32::MAX));
        self.limits.push(limit);
        id
    }
}

#[cfg(test)]
mod tests {
    use super::super::rule::{Action, Condition, Mode, Otherwise, Policy, Rule, RuleSource};
    use super::*;
    use base::position::Position;
    use base::time::Timestamp;
    use proptest::prelude::*;
    use request::attribute::Attribute;
    use request::client_address::ClientAddress;
    use request::identity::Claims;
    use request::matcher::{Expectation, Text};
    use request::request::Request;

    /// Generates few attributes and values, so that most requests match several rules.
    fn policies() -> impl Strategy<Value = Vec<Policy>> {
        let attribute = prop::sample::select(vec!["path", "method", "header:a", "header:b", "jwt:c", "words(jwt:c)"]);
        let text = prop::sample::select(vec!["/v1/*", "/v1/x", "/*", "GET", "POST", "1", "2", "3"]);
        let condition = (attribute, prop::collection::vec(text, 1..3), 0..4).prop_map(|(name, texts, kind)| {
            let attribute = Attribute::parse(name).unwrap();
            let read = |text: &&str| if name == "path" { Text::for_path(text) } else { Text::exact(text) };
            let texts: Vec<_> = texts.iter().map(read).collect();
            let expectation = match kind {
                0 => Expectation::Not(texts),
                1 => Expectation::All(vec![Expectation::Present(true), Expectation::AnyOf(texts)]),
                _ => Expectation::AnyOf(texts),
            };
            Condition { attribute, expectation }
        });
        let conditions = prop::collection::vec(condition, 0..3);
        let action = prop::sample::select(vec![Action::Allow, Action::Deny]);
        let mode = prop::sample::select(vec![Mode::Enforce, Mode::Shadow]);
        let rule = (conditions.clone(), action, mode).prop_map(|(conditions, action, mode)| Rule {
            name: String::new(),
            conditions,
            keys: Vec::new(),
            mode,
            action,
            until: None,
            position: Position::default(),
        });
        let otherwise = prop::sample::select(vec![Otherwise::Allow, Otherwise::Deny]);
        let policy =
            (conditions, prop::collection::vec(rule, 0..20), otherwise).prop_map(|(conditions, rules, otherwise)| {
                Policy {
                    name: String::new(),
                    conditions,
                    mode: Mode::Enforce,
                    otherwise,
                    rules,
                    position: Position::default(),
                }
            });
        prop::collection::vec(policy, 0..20)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn an_index_changes_no_ruling(
            policies in policies(),
            requests in prop::collection::vec(
                ("(GET|POST)", "/(v1|v1/x|v1/x/y|v1x|v2)", "[1-4]", "[1-4]", prop::collection::vec("[1-4]( [1-4])?", 0..4)),
                1..8,
            ),
        ) {
            let indexed = RuleSet::compile(RuleSource { policies, exempt: Vec::new() });
            let plain = indexed.clone().without_indexes();
            for (method, path, a, b, list) in requests {
                let request = http::Request::builder().method(&*method).uri(path).header("a", a).header("b", b);
                let (head, ()) = request.body(()).unwrap().into_parts();
                let client = ClientAddress::new([203, 0, 113, 7].into(), 64);
                let claims = Claims::new([("c".to_owned(), list.into())].into_iter().collect(), None);
                let claims = Some(&claims);
                let request = Request { claims, ..Request::new(&head, client) };
                let answer = |rules: &RuleSet| format!("{:?}", rules.plan(&request, Timestamp(1)));
                prop_assert_eq!(answer(&indexed), answer(&plain));
            }
        }
    }
}
