//! Walks over the rules, and determines which rules apply to a request and which buckets they charge.
//!
//! The gateway and explanations use the same walk. [`Facts`] answer the walk's questions about a request, from the
//! request itself ([`super::plan`]) or from its known parts ([`super::explanation`]). An [`Observer`] receives every
//! step. A plain decision has the observer `()`.

use smallvec::SmallVec;

use super::claimed_numbers::{ClaimResults, ClaimedAmount, ClaimedNumber};
use super::compiled_limit::{CompiledLimit, CompiledNumbers, CompiledPrice};
use super::compiled_rule::{CompiledAction, CompiledCondition, CompiledPolicy, CompiledRule, Slot};
use super::denier::{DenierId, DenierIds};
use super::index::{Index, Indices, among};
use super::rule::Mode;
use super::rule_set::RuleSet;
use super::ruling::{Answer, PolicyId, Ruling};
use super::settled_price::LearnedCosts;
use super::walked_reserve::{ReserveOf, reserved};
use base::time::Timestamp;
use ledger::algorithm::Algorithm;
use ledger::bucket_key::Descriptor;
use ledger::charge::{Charge, ChargePurpose, LimitId, Plan};
use ledger::cost::{Cost, requested_cost};
use request::model_request::ModelRequest;

/// What a walk over the rules needs to know about a request.
pub(crate) trait Facts<'s>: Sized {
    /// The parts of the request that meet conditions.
    type Match;
    /// The reason why a condition fails, or a limit key has no value.
    type Failure;
    /// What is unknown about the request. A walk that knows everything has a type without values.
    type Unknown;
    /// The picked values of a rule's limit keys, and the descriptor made from these values.
    type Picked: Default;

    /// Returns the time for calendars and for rules that expire.
    fn at(&self) -> Timestamp;

    /// Returns whether this gateway forwards the request, and so knows when it ends. Only then can the request hold
    /// slots.
    fn is_forwarded(&mut self) -> bool;

    /// Returns whether a service holds what it takes until it settles.
    fn is_held(&mut self) -> bool {
        false
    }

    /// Returns the indexes of the entries that this index finds, or `None` if all entries must be checked.
    fn find(&mut self, index: &Index) -> Option<Indices>;

    /// Checks whether all conditions hold. `Fails` if a condition fails, even if other conditions are unknown.
    fn conditions(&mut self, conditions: &'s [CompiledCondition])
    -> Finding<Self::Match, Self::Failure, Self::Unknown>;

    /// Picks the values of the rule's limit keys, and adds them to `picked`. `Holds` if each limit key has a value.
    fn pick(&mut self, rule: &'s CompiledRule, picked: &mut Self::Picked) -> Finding<(), Self::Failure, Self::Unknown>;

    fn descriptor(picked: &Self::Picked) -> &Descriptor;

    /// Checks that the costs and the settings of these limits are known.
    ///
    /// # Errors
    /// Returns what is unknown.
    fn check_costs(
        &mut self,
        limits: impl Iterator<Item = &'s CompiledLimit>,
        picked: &Self::Picked,
    ) -> Result<(), Self::Unknown>;

    /// Returns the number of the first override that fits the picked values, from 1, or 0 for the limit's own settings.
    fn variant(&mut self, limit: &'s CompiledLimit, picked: &Self::Picked) -> u32;

    /// Calls `read` with the value of an attribute, to parse a number. The value is `None` if the attribute is missing.
    fn with_text<R>(&mut self, slot: Slot, read: impl FnOnce(Option<&[u8]>) -> R) -> R;

    /// Returns the costs of earlier requests. `None` if they are not known.
    fn learned_costs(&self) -> Option<&'s dyn LearnedCosts>;

    /// Returns what the request asks of a language model. `None` for other requests, or if the body is not known.
    fn model_request(&self) -> Option<&'s ModelRequest>;

    /// Combines what is unknown in two answers.
    fn join(first: Self::Unknown, second: Self::Unknown) -> Self::Unknown;
}

/// The answer to a question of a walk over the rules. `M`, `F` and `U` contain the details of each kind of answer.
pub(crate) enum Finding<M, F, U> {
    Holds(M),
    Fails(F),
    Unknown(U),
}

/// Receives every step of a walk over the rules, for example to explain a decision.
pub(crate) trait Observer<'s, F: Facts<'s>> {
    /// Receives whether a policy takes part. After a policy that denies the request, no further policy is checked.
    fn policy(&mut self, _: &'s CompiledPolicy, _: Finding<F::Match, F::Failure, F::Unknown>) {}

    /// Receives whether a rule applies, after the charges of the rule. Only for rules of a policy that takes part.
    fn rule(&mut self, _: &'s CompiledPolicy, _: &'s CompiledRule, _: RuleFinding<'s, F>) {}

    /// Receives the result of a policy that takes part.
    fn end(&mut self, _: &'s CompiledPolicy, _: &PolicyResult<'s>) {}

    /// Receives a setting that a limit takes from the request's credentials. The charge of this limit follows.
    fn number(&mut self, _: &mut F, _: Slot, _: &'s ClaimedNumber, _: ClaimedAmount) {}

    fn charge(&mut self, _: &'s CompiledLimit, _: &Charge) {}

    /// Receives a limit that charges nothing because of an override.
    fn unlimited(&mut self, _: &'s CompiledLimit) {}

    /// Receives a concurrency limit or budget that charges nothing, because another proxy forwards the request, or because a service
    /// holds what it takes and the limit is in shadow mode.
    fn not_at_door(&mut self, _: &'s CompiledLimit) {}

    /// Receives whether the request meets the conditions of the exemption with this index.
    fn exemption(&mut self, _: usize, _: Finding<F::Match, F::Failure, F::Unknown>) {}
}

impl<'s, F: Facts<'s>> Observer<'s, F> for () {}

/// Whether a rule applies to a request.
pub(crate) enum RuleFinding<'s, F: Facts<'s>> {
    Applies {
        matched: F::Match,
        picked: F::Picked,
    },
    Fails(F::Failure),
    /// The rule no longer applies, because it expired at this moment (`until`).
    Over {
        since: Timestamp,
    },
    Unknown(F::Unknown),
}

/// The result of a policy that takes part.
pub(crate) enum PolicyResult<'s> {
    /// This rule is the first rule that applies.
    Decided(&'s CompiledRule),
    /// The request is denied by this rule, or by the policy's `otherwise` if `rule` is `None`.
    Denied { by: DenierId, rule: Option<&'s CompiledRule> },
    /// No rule applies, and the policy's `otherwise` lets the request pass.
    Unmatched,
    /// No rule applies. The policy is a dry run, and would deny the request if it were enforced.
    WouldDeny,
    /// It is not known whether this rule applies.
    Undecided(&'s CompiledRule),
}

impl RuleSet {
    /// Decides about a request by checking the policies and rules in their order. `observer` receives every step.
    pub(super) fn walk<'s, F: Facts<'s>>(&'s self, facts: &mut F, observer: &mut impl Observer<'s, F>) -> Ruling {
        let mut walk = Walk::new(self, facts, observer);
        let end = walk.policies();
        let Walk { plan, is_unlimited, mut unmatched, mut shadow_denials, claims, not_at_door, .. } = walk;
        match end {
            WalkEnd::Denied(by) => {
                shadow_denials.clear();
                let (answer, claims, not_at_door) = (Answer::Denied(by), SmallVec::new(), SmallVec::new());
                Ruling { answer, is_unlimited, unmatched, shadow_denials, claims, not_at_door }
            }
            WalkEnd::Exempt => {
                unmatched.clear();
                let (answer, claims, not_at_door) = (Answer::Exempt, SmallVec::new(), SmallVec::new());
                Ruling { answer, is_unlimited: true, unmatched, shadow_denials, claims, not_at_door }
            }
            WalkEnd::Charged => {
                let answer = Answer::for_plan(plan);
                Ruling { answer, is_unlimited, unmatched, shadow_denials, claims, not_at_door }
            }
        }
    }

    /// Determines the charges of these limits, as if their rule applied. `observer` receives the charges.
    pub(super) fn walk_limits<'s, F: Facts<'s>>(
        &'s self,
        limits: impl Iterator<Item = LimitId>,
        picked: &F::Picked,
        facts: &mut F,
        observer: &mut impl Observer<'s, F>,
    ) {
        let mut walk = Walk::new(self, facts, observer);
        limits.for_each(|id| walk.charge(id, picked));
    }
}

struct Walk<'s, 'w, F, O> {
    rules: &'s RuleSet,
    facts: &'w mut F,
    observer: &'w mut O,
    /// The charges of the rules that have been checked.
    plan: Plan,
    claims: ClaimResults,
    /// Whether a rule or an override exempts the request from limits.
    is_unlimited: bool,
    unmatched: SmallVec<[PolicyId; 2]>,
    shadow_denials: DenierIds,
    /// The concurrency limits and budgets that do not apply, because another proxy forwards the request.
    not_at_door: SmallVec<[LimitId; 0]>,
}

/// How a walk over all policies ends.
enum WalkEnd {
    Denied(DenierId),
    Exempt,
    Charged,
}

enum RuleResult {
    Applies,
    Denies(DenierId),
    Fails,
    Unknown,
}

impl<'s, 'w, F: Facts<'s>, O: Observer<'s, F>> Walk<'s, 'w, F, O> {
    fn new(rules: &'s RuleSet, facts: &'w mut F, observer: &'w mut O) -> Walk<'s, 'w, F, O> {
        Walk {
            rules,
            facts,
            observer,
            plan: Plan::default(),
            claims: ClaimResults::new(),
            is_unlimited: false,
            unmatched: SmallVec::new(),
            shadow_denials: DenierIds::new(),
            not_at_door: SmallVec::new(),
        }
    }

    fn policies(&mut self) -> WalkEnd {
        let rules = self.rules;
        let found = rules.index.as_ref().and_then(|index| self.facts.find(index));
        for policy in among(&rules.policies, found) {
            let own = self.facts.conditions(&policy.conditions);
            let takes_part = matches!(own, Finding::Holds(_));
            self.observer.policy(policy, own);
            if !takes_part {
                continue;
            }
            let result = self.policy(policy);
            self.observer.end(policy, &result);
            match result {
                PolicyResult::Denied { by, .. } => return WalkEnd::Denied(by),
                PolicyResult::Unmatched => self.unmatched.push(policy.id),
                PolicyResult::Decided(_) | PolicyResult::WouldDeny | PolicyResult::Undecided(_) => {}
            }
        }
        // Exemptions are checked last, because a `deny` also applies to exempt requests.
        for (index, conditions) in rules.exempt.iter().enumerate() {
            let finding = self.facts.conditions(conditions);
            let is_exempt = matches!(finding, Finding::Holds(_));
            self.observer.exemption(index, finding);
            if is_exempt {
                return WalkEnd::Exempt;
            }
        }
        WalkEnd::Charged
    }

    fn policy(&mut self, policy: &'s CompiledPolicy) -> PolicyResult<'s> {
        let found = policy.index.as_ref().and_then(|index| self.facts.find(index));
        for rule in among(&policy.rules, found) {
            // A shadow rule does not affect the rules after it. In a shadow policy, the first rule that applies
            // decides.
            let ends = rule.mode == Mode::Enforce || policy.mode == Mode::Shadow;
            match self.rule(policy, rule) {
                RuleResult::Denies(by) => return PolicyResult::Denied { by, rule: Some(rule) },
                RuleResult::Applies if ends => return PolicyResult::Decided(rule),
                RuleResult::Unknown if ends => return PolicyResult::Undecided(rule),
                RuleResult::Applies | RuleResult::Unknown | RuleResult::Fails => {}
            }
        }
        match (policy.denies_unmatched, policy.mode) {
            (Some(by), Mode::Enforce) => PolicyResult::Denied { by, rule: None },
            (Some(by), Mode::Shadow) => {
                self.shadow_denials.push(by);
                PolicyResult::WouldDeny
            }
            (None, _) => PolicyResult::Unmatched,
        }
    }

    fn rule(&mut self, policy: &'s CompiledPolicy, rule: &'s CompiledRule) -> RuleResult {
        if let Some(since) = rule.until.filter(|until| *until <= self.facts.at()) {
            self.observer.rule(policy, rule, RuleFinding::Over { since });
            return RuleResult::Fails;
        }
        let conditions = self.facts.conditions(&rule.conditions);
        if let Finding::Fails(failure) = conditions {
            self.observer.rule(policy, rule, RuleFinding::Fails(failure));
            return RuleResult::Fails;
        }
        let mut picked = F::Picked::default();
        let keys = self.facts.pick(rule, &mut picked);
        let matched = match (conditions, keys) {
            (Finding::Holds(matched), Finding::Holds(())) => matched,
            (Finding::Fails(failure), _) | (_, Finding::Fails(failure)) => {
                self.observer.rule(policy, rule, RuleFinding::Fails(failure));
                return RuleResult::Fails;
            }
            (Finding::Unknown(conditions), Finding::Unknown(keys)) => {
                return self.unknown(policy, rule, F::join(conditions, keys));
            }
            (Finding::Unknown(unknown), _) | (_, Finding::Unknown(unknown)) => {
                return self.unknown(policy, rule, unknown);
            }
        };
        let shadow = policy.mode == Mode::Shadow || rule.mode == Mode::Shadow;
        let mut result = RuleResult::Applies;
        match &rule.action {
            CompiledAction::Charge(limits) => {
                let rules = self.rules;
                let compiled = limits.iter().filter_map(|id| rules.limit(*id));
                if let Err(unknown) = self.facts.check_costs(compiled, &picked) {
                    return self.unknown(policy, rule, unknown);
                }
                for id in limits {
                    self.charge(*id, &picked);
                }
            }
            CompiledAction::Deny(by) if !shadow => result = RuleResult::Denies(*by),
            CompiledAction::Deny(by) => self.shadow_denials.push(*by),
            CompiledAction::Allow => self.is_unlimited |= !shadow,
        }
        self.observer.rule(policy, rule, RuleFinding::Applies { matched, picked });
        result
    }

    fn unknown(&mut self, policy: &'s CompiledPolicy, rule: &'s CompiledRule, unknown: F::Unknown) -> RuleResult {
        self.observer.rule(policy, rule, RuleFinding::Unknown(unknown));
        RuleResult::Unknown
    }

    fn charge(&mut self, id: LimitId, picked: &F::Picked) {
        let Some(limit) = self.rules.limit(id) else { return };
        let variant = self.facts.variant(limit, picked);
        if limit.is_unlimited(variant) {
            self.is_unlimited |= limit.mode == Mode::Enforce;
            self.observer.unlimited(limit);
            return;
        }
        let Some(algorithm) = usize::try_from(variant).ok().and_then(|index| limit.variants.get(index)) else { return };
        // A limit in shadow mode must neither shorten nor refuse what a service holds, so it holds nothing for it.
        let is_held_elsewhere = self.facts.is_held() && limit.mode == Mode::Enforce;
        if algorithm.is_held() && !self.facts.is_forwarded() && !is_held_elsewhere {
            self.not_at_door.push(id);
            self.observer.not_at_door(limit);
            if let (Some(algorithm), Mode::Enforce) = (algorithm.beginning_no_ban(), limit.mode) {
                self.check_ban(id, limit, algorithm, variant, picked);
            }
            return;
        }
        let algorithm = match &limit.claimed {
            Some(claimed) if variant == 0 => self.claimed(id, claimed),
            _ => *algorithm,
        };
        // A request that another proxy forwards begins no ban, because its response is not known here.
        let is_elsewhere = algorithm.ban().is_some() && !self.facts.is_forwarded();
        let algorithm = if is_elsewhere { algorithm.beginning_no_ban().unwrap_or(algorithm) } else { algorithm };
        let cost = match &limit.price {
            CompiledPrice::Fixed(cost) => *cost,
            CompiledPrice::FromRequest { slot, default, min, max } => {
                self.facts.with_text(*slot, |text| requested_cost(text, *default, *min, *max))
            }
            CompiledPrice::Settled { price, slots } => {
                reserved(self.facts, ReserveOf { limit: id, price, slots, ceiling: algorithm.ceiling() })
            }
        };
        let key = limit.charged_bucket(F::descriptor(picked), &algorithm);
        let charge =
            Charge { key, algorithm, cost, limit: id, variant, tag: limit.tag(variant), purpose: ChargePurpose::Spend };
        self.observer.charge(limit, &charge);
        match limit.mode {
            Mode::Enforce => self.plan.enforce(charge),
            Mode::Shadow => self.plan.shadow.push(charge),
        }
    }

    /// Adds a check that refuses the request while a ban of the limit runs, and charges nothing.
    fn check_ban(
        &mut self,
        id: LimitId,
        limit: &'s CompiledLimit,
        algorithm: Algorithm,
        variant: u32,
        picked: &F::Picked,
    ) {
        let (key, tag) = (limit.bucket(F::descriptor(picked)), limit.tag(variant));
        let (cost, purpose) = (Cost::default(), ChargePurpose::Check);
        self.plan.enforced.push(Charge { key, algorithm, cost, limit: id, variant, tag, purpose });
    }

    /// Returns the algorithm of a limit with the numbers that this request claims.
    fn claimed(&mut self, id: LimitId, CompiledNumbers { claimed, slots }: &'s CompiledNumbers) -> Algorithm {
        let mut slots = slots.iter();
        claimed.with(|number| {
            let Some(slot) = slots.next() else { return number.default };
            let read = self.facts.with_text(*slot, |text| number.amount(text));
            self.claims.push((id, read.result));
            self.observer.number(self.facts, *slot, number, read);
            read.amount
        })
    }
}
