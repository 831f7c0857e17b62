//! Compiles policies, and determines what a request has to pay.
//!
//! Each attribute that any rule reads has one slot and is resolved at most once per request. Compiling happens once per
//! load of the file; planning once per request, and cannot fail.

use std::borrow::Cow;

use smallvec::SmallVec;

use super::ambiguity::{Ambiguity, AmbiguityCheck};
use super::claimed_numbers::ClaimedNumbers;
pub use super::compiled_limit::CompiledLimit;
use super::compiled_limit::{CompiledNumbers, CompiledPrice, combine_meters};
use super::denier::{Denier, DenierId, DenierIds};
use super::index::Index;
use super::overrides::CompiledOverrides;
use super::resolved::{CompiledCondition, Slot, Values};
use super::rule::{
    Action, Condition, Fold, Limit, Mode, Otherwise, Override, OverrideNumbers, Policy, Price, Rule, RuleSource,
};
pub use super::ruling::{Answer, PolicyId, Ruling};
use base::time::Timestamp;
use ledger::algorithm::Algorithm;
use ledger::bucket_key::{Descriptor, KeySeed, LimitIdentity};
use ledger::charge::{Charge, ChargePurpose, LimitId, Plan};
use ledger::cost::requested_cost;
use request::attribute::Attribute;
use request::identity::Claims;
use request::matcher::Expectation;
use request::request::Request;

/// All rules of a file, compiled.
#[derive(Clone, Debug, Default)]
pub struct RuleSet {
    attributes: Vec<Attribute>,
    ambiguity: AmbiguityCheck,
    exempt: Vec<Vec<CompiledCondition>>,
    policies: Vec<CompiledPolicy>,
    /// Finds policies by their own conditions.
    index: Option<Index>,
    limits: Vec<CompiledLimit>,
    deniers: Vec<Denier>,
    source: RuleSource,
}

#[derive(Clone, Debug)]
struct CompiledPolicy {
    id: PolicyId,
    conditions: Vec<CompiledCondition>,
    mode: Mode,
    /// The denier for the policy's `otherwise`, if that is `deny`.
    denies_unmatched: Option<DenierId>,
    rules: Vec<CompiledRule>,
    index: Option<Index>,
}

#[derive(Clone, Debug)]
struct CompiledRule {
    conditions: Vec<CompiledCondition>,
    /// The limit keys in the order of their printed names, which is that of the bucket's identity.
    keys: Vec<Vec<(Slot, Fold)>>,
    mode: Mode,
    action: CompiledAction,
    until: Option<Timestamp>,
}

#[derive(Clone, Debug)]
enum CompiledAction {
    Allow,
    Deny(DenierId),
    Charge(Vec<LimitId>),
}

impl RuleSet {
    /// Compiles a source, whose names and numbers have been checked.
    pub fn compile(source: RuleSource) -> RuleSet {
        let RuleSource { policies, exempt } = &source;
        let mut set = RuleSet::default();
        set.exempt = exempt.iter().map(|conditions| set.conditions(conditions)).collect();
        for (policy, id) in policies.iter().zip(0..) {
            let rules: Vec<_> = policy.rules.iter().map(|rule| set.rule(policy, rule)).collect();
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
        // An attribute that only shadows read never refuses a request.
        set.ambiguity = AmbiguityCheck::of(policies, exempt);
        set.source = source;
        set
    }

    /// Adds attributes that must not be ambiguous either, because credentials or routes read them.
    pub fn with_unambiguous(mut self, attributes: impl IntoIterator<Item = Attribute>) -> RuleSet {
        self.ambiguity.add(attributes);
        self
    }

    #[cfg(test)]
    pub fn without_indexes(mut self) -> RuleSet {
        self.index = None;
        self.policies.iter_mut().for_each(|policy| policy.index = None);
        self
    }

    /// Checks that a request has only one reading. To be called first: an ambiguous request is neither verified nor
    /// planned.
    ///
    /// # Errors
    /// Returns the part that has several readings.
    pub fn read(&self, request: &Request<'_>) -> Result<(), Ambiguity> {
        self.ambiguity.check(request)
    }

    /// The check for ambiguous requests.
    pub fn ambiguity(&self) -> &AmbiguityCheck {
        &self.ambiguity
    }

    /// The attributes that rules read.
    pub fn attributes(&self) -> &[Attribute] {
        &self.attributes
    }

    /// The columns of the key file that rules read, other than id and plan.
    pub fn key_columns(&self) -> impl Iterator<Item = &str> {
        self.attributes.iter().filter_map(|attribute| match attribute {
            Attribute::KeyColumn(name) => Some(&**name),
            _ => None,
        })
    }

    /// Every limit of the file; a [`LimitId`] is an index into it.
    pub fn limits(&self) -> &[CompiledLimit] {
        &self.limits
    }

    /// The limits that a rule charges, by the index of its policy and its own.
    pub fn charged_by(&self, policy: usize, rule: usize) -> &[LimitId] {
        match self.policies.get(policy).and_then(|policy| policy.rules.get(rule)) {
            Some(CompiledRule { action: CompiledAction::Charge(limits), .. }) => limits,
            _ => &[],
        }
    }

    pub fn limit(&self, id: LimitId) -> Option<&CompiledLimit> {
        self.limits.get(usize::try_from(id.0).ok()?)
    }

    /// Every rule and policy that may deny a request; a [`DenierId`] is an index into it.
    pub fn deniers(&self) -> &[Denier] {
        &self.deniers
    }

    pub fn denier(&self, id: DenierId) -> Option<&Denier> {
        self.deniers.get(usize::try_from(id.0).ok()?)
    }

    /// The source from which it was compiled.
    pub fn source(&self) -> &RuleSource {
        &self.source
    }

    /// Determines what this request has to pay, or that it is exempt or denied. `at` is calendar time: rules may apply until a
    /// date.
    pub fn plan(&self, request: &Request<'_>, at: Timestamp) -> Ruling {
        let (mut unmatched, mut shadow_denials) = (SmallVec::new(), DenierIds::new());
        let mut values = Values::new(&self.attributes, request, at);
        let answer = self.answer(&mut values, &mut unmatched, &mut shadow_denials);
        let is_unlimited = values.is_unlimited || matches!(answer, Answer::Exempt);
        let claims = match &answer {
            Answer::TooLarge(_) | Answer::Charge(_) => values.claims,
            Answer::Denied(_) | Answer::Exempt => SmallVec::new(),
        };
        Ruling { answer, is_unlimited, unmatched, shadow_denials, claims }
    }

    fn answer(
        &self,
        values: &mut Values<'_, '_>,
        unmatched: &mut SmallVec<[PolicyId; 2]>,
        shadow_denials: &mut DenierIds,
    ) -> Answer {
        let mut plan = Plan::default();
        for policy in values.among(&self.policies, self.index.as_ref()) {
            if !values.hold(&policy.conditions) {
                continue;
            }
            match self.walk(policy, values, &mut plan, shadow_denials) {
                PolicyResult::Decided => {}
                PolicyResult::Denied(by) => {
                    shadow_denials.clear();
                    return Answer::Denied(by);
                }
                PolicyResult::Unmatched => unmatched.push(policy.id),
            }
        }
        // Only now: a `deny` applies to exempt requests as well.
        if self.exempt.iter().any(|conditions| values.hold(conditions)) {
            unmatched.clear();
            return Answer::Exempt;
        }
        Answer::for_plan(plan)
    }

    fn walk(
        &self,
        policy: &CompiledPolicy,
        values: &mut Values<'_, '_>,
        plan: &mut Plan,
        shadow_denials: &mut DenierIds,
    ) -> PolicyResult {
        for rule in values.among(&policy.rules, policy.index.as_ref()) {
            if rule.until.is_some_and(|until| until <= values.at) || !values.hold(&rule.conditions) {
                continue;
            }
            let Some(descriptor) = describe(rule, values) else { continue };
            let shadow = policy.mode == Mode::Shadow || rule.mode == Mode::Shadow;
            match &rule.action {
                CompiledAction::Charge(limits) => {
                    for id in limits {
                        self.charge(*id, &descriptor, values, plan);
                    }
                }
                CompiledAction::Deny(by) if !shadow => return PolicyResult::Denied(*by),
                CompiledAction::Deny(by) => shadow_denials.push(*by),
                CompiledAction::Allow => values.is_unlimited |= !shadow,
            }
            // A shadow rule changes nothing for the rules after it; in a shadow policy they are all shadows.
            if rule.mode == Mode::Enforce || policy.mode == Mode::Shadow {
                return PolicyResult::Decided;
            }
        }
        match (policy.denies_unmatched, policy.mode) {
            (Some(by), Mode::Enforce) => PolicyResult::Denied(by),
            (Some(by), Mode::Shadow) => {
                shadow_denials.push(by);
                PolicyResult::Decided
            }
            (None, _) => PolicyResult::Unmatched,
        }
    }

    fn charge(&self, id: LimitId, described: &RuleDescriptor, values: &mut Values<'_, '_>, plan: &mut Plan) {
        let Some(limit) = self.limit(id) else { return };
        let variant = limit.overrides.variant(&described.picked, values);
        if limit.is_unlimited(variant) {
            values.is_unlimited |= limit.mode == Mode::Enforce;
            return;
        }
        let Some(algorithm) = usize::try_from(variant).ok().and_then(|index| limit.variants.get(index)) else { return };
        let cost = match limit.price {
            CompiledPrice::Fixed(cost) => cost,
            CompiledPrice::FromRequest { slot, default, min, max } => {
                requested_cost(values.of(slot), default, min, max)
            }
        };
        let algorithm = match &limit.claimed {
            Some(claimed) if variant == 0 => claimed.of_request(id, values),
            _ => *algorithm,
        };
        let key = limit.seed.key(&described.descriptor);
        let charge =
            Charge { key, algorithm, cost, limit: id, variant, tag: limit.tag(variant), purpose: ChargePurpose::Spend };
        match limit.mode {
            Mode::Enforce => plan.enforce(charge),
            Mode::Shadow => plan.shadow.push(charge),
        }
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
            expectation: condition.expectation.clone(),
        };
        conditions.iter().map(compile).collect()
    }

    fn rule(&mut self, policy: &Policy, rule: &Rule) -> CompiledRule {
        let mode = if policy.mode == Mode::Shadow { Mode::Shadow } else { rule.mode };
        let action = match &rule.action {
            Action::Allow => CompiledAction::Allow,
            Action::Deny => CompiledAction::Deny(self.add_denier(policy, Some(&rule.name), mode)),
            Action::Charge(limits) => CompiledAction::Charge(
                limits.iter().flat_map(|limit| self.limits_of(policy, rule, limit, mode)).collect(),
            ),
        };
        CompiledRule {
            conditions: self.conditions(&rule.conditions),
            keys: rule
                .sorted_keys()
                .into_iter()
                .map(|key| key.alternatives.iter().map(|part| (self.slot(&part.attribute), part.fold)).collect())
                .collect(),
            mode: rule.mode,
            action,
            until: rule.until,
        }
    }

    /// Compiles a limit and, if it has one, its candidate, which is a shadow.
    fn limits_of(&mut self, policy: &Policy, rule: &Rule, limit: &Limit, mode: Mode) -> SmallVec<[LimitId; 2]> {
        let mut keys: Vec<String> = rule.keys.iter().map(|key| key.text.clone()).collect();
        keys.sort_unstable();
        let meter = limit.meter.as_ref().filter(|_| mode == Mode::Enforce);
        let seed = |mode: Mode, algorithm: &Algorithm, meter: Option<&String>| {
            let identity = LimitIdentity {
                policy: &policy.name,
                rule: &rule.name,
                limit: &limit.name,
                mode: mode.name(),
                algorithm: algorithm.name(),
                keys: &keys,
            };
            meter.map_or_else(|| KeySeed::new(&identity), |meter| KeySeed::of_meter(meter, &identity))
        };
        let price = match &limit.price {
            Price::Fixed(cost) => CompiledPrice::Fixed(*cost),
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
        // A file is bounded far below 2^32 rules.
        let id = DenierId(u32::try_from(self.deniers.len()).unwrap_or(u32::MAX));
        self.deniers.push(Denier { policy: policy.name.clone(), rule: rule.map(str::to_owned), mode });
        id
    }

    fn add(&mut self, limit: CompiledLimit) -> LimitId {
        // A file is bounded far below 2^32 limits.
        let id = LimitId(u32::try_from(self.limits.len()).unwrap_or(u32::MAX));
        self.limits.push(limit);
        id
    }
}

/// The conditions of an entry for an index.
fn conditions_of(conditions: &[CompiledCondition]) -> impl Iterator<Item = (usize, &Expectation)> {
    conditions.iter().map(|condition| (condition.slot.0, &condition.expectation))
}

enum PolicyResult {
    Decided,
    Denied(DenierId),
    Unmatched,
}

/// A descriptor, and the index of the alternative that had a value for each limit key.
struct RuleDescriptor {
    descriptor: Descriptor,
    picked: SmallVec<[u8; 8]>,
}

/// The descriptor of a request; `None` if one of the rule's keys has no value.
fn describe(rule: &CompiledRule, values: &mut Values<'_, '_>) -> Option<RuleDescriptor> {
    let mut described = RuleDescriptor { descriptor: Descriptor::default(), picked: SmallVec::new() };
    let issuer = values.request.claims.and_then(Claims::issuer);
    for alternatives in &rule.keys {
        let (number, (slot, fold)) = (0u8..).zip(alternatives).find(|(_, (slot, _))| values.of(*slot).is_some())?;
        let attribute = values.attribute(*slot);
        let value = values.of(*slot)?;
        let value = match fold {
            Fold::Exact => Cow::Borrowed(value),
            Fold::Lower => Cow::Owned(value.to_ascii_lowercase()),
        };
        described.descriptor.push_value(number, attribute, issuer, &value);
        described.picked.push(number);
    }
    Some(described)
}
