//! Explains how much a request has to pay and why, with the outcome of every policy and every rule.
//!
//! An explanation uses the same walk as [`RuleSet::plan`], but checks every rule and notes every step.
//!
//! A rule that depends on something unknown is [`RuleOutcome::Undecidable`], and the answer is made from the other
//! rules. If the answer is a denial, it is certain. If the answer is an exemption, an undecidable rule might still deny
//! the request.

mod charging;
mod facts;
mod parts;
#[cfg(test)]
mod plan_parity;
mod words;

use super::claimed_numbers::{ClaimedAmount, ClaimedNumber};
use super::compiled_limit::CompiledLimit;
use super::compiled_rule::{CompiledPolicy, CompiledRule, Slot};
use super::partial_evaluation::{Knowledge, Observation};
use super::policy_walk::{Finding, Observer, PolicyResult, RuleFinding};
use super::rule::{Condition, Mode, Policy};
use super::rule_set::RuleSet;
use charging::ChargeNotes;
use facts::{PartialFacts, PickedKeys};
use ledger::charge::Charge;
pub use parts::{
    Exemption, ExplainedCharge, ExplainedNumber, ExplainedPolicy, ExplainedRule, Explanation, Failure, MatchedElement,
    PickedKey, PolicyEnd, PolicyOutcome, RuleCharges, RuleOutcome, SkipReason,
};
use request::attribute::Attribute;
pub use words::Date;

impl RuleSet {
    /// Explains what the rules decide about a request, with the outcome of every policy and rule. `see` returns what is
    /// known about an attribute's value, and may be called several times for the same attribute.
    pub fn explain<'a>(
        &'a self,
        see: &mut dyn FnMut(&'a Attribute) -> Observation<'a>,
        known: Knowledge<'a>,
    ) -> Explanation<'a> {
        let mut notes = Notes::new(self);
        let ruling = self.walk(&mut PartialFacts { rules: self, see, known }, &mut notes);
        let Notes { policies, exemption, .. } = notes;
        Explanation { policies, exemption, answer: ruling.answer }
    }
}

/// Notes every step of a walk over the rules.
struct Notes<'a> {
    /// All policies of the file. A policy that was not reached is noted as not checked, and its rules as skipped.
    policies: Vec<ExplainedPolicy<'a>>,
    exemption: Exemption<'a>,
    exempt: &'a [Vec<Condition>],
    /// The charges of the rule that is being walked over.
    charging: ChargeNotes<'a>,
}

impl<'a> Notes<'a> {
    fn new(rules: &'a RuleSet) -> Notes<'a> {
        let policy = |policy: &'a Policy| {
            let rule = |rule| ExplainedRule {
                rule,
                mode: if policy.mode == Mode::Shadow { Mode::Shadow } else { rule.mode },
                outcome: RuleOutcome::Skipped(SkipReason::PolicySkipped),
            };
            let part = PolicyOutcome::NotChecked { denied_by: "" };
            ExplainedPolicy { policy, part, matched: Vec::new(), rules: policy.rules.iter().map(rule).collect() }
        };
        Notes {
            policies: rules.source().policies.iter().map(policy).collect(),
            exemption: Exemption::None,
            exempt: &rules.source().exempt,
            charging: ChargeNotes::default(),
        }
    }

    /// Returns the notes of a policy, and the notes of the policies after it.
    fn policy_and_rest(
        &mut self,
        policy: &CompiledPolicy,
    ) -> Option<(&mut ExplainedPolicy<'a>, &mut [ExplainedPolicy<'a>])> {
        self.policies.get_mut(usize::try_from(policy.id.0).ok()?..)?.split_first_mut()
    }
}

type PartialFinding<'a> = Finding<Vec<MatchedElement<'a>>, Failure<'a>, Vec<&'a Attribute>>;

impl<'a, 'w> Observer<'a, PartialFacts<'a, 'w>> for Notes<'a> {
    fn policy(&mut self, policy: &'a CompiledPolicy, finding: PartialFinding<'a>) {
        let Some((explained, _)) = self.policy_and_rest(policy) else { return };
        match finding {
            Finding::Holds(matched) => explained.matched = matched,
            Finding::Fails(failure) => explained.part = PolicyOutcome::Fails(failure),
            Finding::Unknown(attributes) => explained.part = PolicyOutcome::Undecidable(attributes),
        }
    }

    fn rule(
        &mut self,
        policy: &'a CompiledPolicy,
        rule: &'a CompiledRule,
        finding: RuleFinding<'a, PartialFacts<'a, 'w>>,
    ) {
        let ChargeNotes { charges, .. } = std::mem::take(&mut self.charging);
        let Some((explained, _)) = self.policy_and_rest(policy) else { return };
        let Some(explained) = explained.rules.get_mut(rule.index) else { return };
        explained.outcome = match finding {
            RuleFinding::Applies { matched, picked: PickedKeys { keys, .. } } => {
                RuleOutcome::Applies { picked: keys, charges, matched }
            }
            RuleFinding::Fails(failure) => RuleOutcome::Fails(failure),
            RuleFinding::Over { since } => RuleOutcome::Fails(Failure::Over { since }),
            RuleFinding::Unknown(attributes) => RuleOutcome::Undecidable(attributes),
        };
    }

    fn end(&mut self, policy: &'a CompiledPolicy, result: &PolicyResult<'a>) {
        let exemption = &mut self.exemption;
        if let PolicyResult::Denied { .. } = result {
            *exemption = Exemption::NotChecked;
        }
        let Some((explained, rest)) = self.policy_and_rest(policy) else { return };
        let ExplainedPolicy { policy, rules, part, .. } = explained;
        let name = |rule: &CompiledRule| policy.rules.get(rule.index).map_or("", |rule| &*rule.name);
        let (end, last) = match result {
            PolicyResult::Decided(rule) => (PolicyEnd::Decided { by: name(rule) }, Some(rule)),
            PolicyResult::Denied { rule: Some(rule), .. } => (PolicyEnd::Denied { by: name(rule) }, Some(rule)),
            PolicyResult::Undecided(rule) => (PolicyEnd::Undecided { at: name(rule) }, Some(rule)),
            PolicyResult::Denied { rule: None, .. } | PolicyResult::Unmatched | PolicyResult::WouldDeny => {
                (PolicyEnd::Otherwise(policy.otherwise), None)
            }
        };
        *part = PolicyOutcome::TakesPart(end);
        if let Some(last) = last {
            for rule in rules.iter_mut().skip(last.index.saturating_add(1)) {
                rule.outcome = RuleOutcome::Skipped(SkipReason::After { rule: name(last) });
            }
        }
        if let PolicyResult::Denied { .. } = result {
            rest.iter_mut().for_each(|one| one.part = PolicyOutcome::NotChecked { denied_by: &policy.name });
        }
    }

    fn number(&mut self, facts: &mut PartialFacts<'a, 'w>, slot: Slot, number: &'a ClaimedNumber, read: ClaimedAmount) {
        self.charging.number(facts, slot, number, read);
    }

    fn charge(&mut self, limit: &'a CompiledLimit, charge: &Charge) {
        Observer::<PartialFacts<'a, 'w>>::charge(&mut self.charging, limit, charge);
    }

    fn unlimited(&mut self, limit: &'a CompiledLimit) {
        Observer::<PartialFacts<'a, 'w>>::unlimited(&mut self.charging, limit);
    }

    fn not_at_door(&mut self, limit: &'a CompiledLimit) {
        Observer::<PartialFacts<'a, 'w>>::not_at_door(&mut self.charging, limit);
    }

    fn exemption(&mut self, index: usize, finding: PartialFinding<'a>) {
        self.exemption = match (finding, std::mem::replace(&mut self.exemption, Exemption::None)) {
            (Finding::Holds(_), _) => self.exempt.get(index).map_or(Exemption::None, |by| Exemption::By(by)),
            (Finding::Fails(_), before) => before,
            (Finding::Unknown(attributes), Exemption::Undecidable(mut before)) => {
                before.extend(attributes);
                Exemption::Undecidable(before)
            }
            (Finding::Unknown(attributes), _) => Exemption::Undecidable(attributes),
        };
    }
}
