//! Explains how much a request has to pay and why, with the outcome of every policy and every rule.
//!
//! It walks the rules as they are written, one after the other, unlike [`RuleSet::plan`], which need not check all of them; a
//! property test holds that both give the same answer. It costs more, and takes an observer of attributes rather than a request.
//!
//! A rule that depends on something unknown is [`RuleOutcome::Undecidable`], and the answer is made of the rest: see
//! [`Explanation::undecided`].

mod charging;
mod parts;
#[cfg(test)]
mod plan_parity;
mod words;

use super::denier::{Denier, DenierId};
use super::partial::{Knowledge, Observation};
use super::rule::{Action, Condition, Fold, LimitKey, Mode, Otherwise, Policy, Rule};
use super::rule_set::{Answer, RuleSet};
use charging::Walk;
use ledger::charge::{LimitId, Plan};
pub use parts::{
    Exemption, ExplainedCharge, ExplainedNumber, ExplainedPolicy, ExplainedRule, Explanation, Failure, MatchedElement,
    PickedKey, PolicyEnd, PolicyOutcome, RuleCharges, RuleOutcome, SkipReason, UndecidedPart,
};
use request::attribute::Attribute;
use request::matcher::Expectation;
pub use words::Date;

impl RuleSet {
    /// Explains a request. `see` returns what is known of an attribute's value; it may be called several times for the same one.
    pub fn explain<'a>(
        &'a self,
        see: &mut dyn FnMut(&'a Attribute) -> Observation<'a>,
        known: Knowledge<'a>,
    ) -> Explanation<'a> {
        let mut walk = Walk { rules: self, see, known, plan: Plan::default(), next: LimitId(0) };
        let mut denied_by = None;
        let policies: Vec<_> =
            self.source().policies.iter().map(|policy| walk.policy(policy, &mut denied_by)).collect();
        let exemption = match denied_by {
            Some(_) => Exemption::NotChecked,
            None => walk.exemption(&self.source().exempt),
        };
        let plan = walk.plan;
        let answer = match (denied_by, &exemption) {
            (Some(policy), _) => Answer::Denied(self.denier_of(policy, denying_rule(&policies))),
            (None, Exemption::By(_)) => Answer::Exempt,
            _ => Answer::for_plan(plan),
        };
        Explanation { policies, exemption, answer }
    }
}

impl RuleSet {
    fn denier_of(&self, policy: &str, rule: Option<&str>) -> DenierId {
        let is_it = |denier: &Denier| denier.policy == policy && denier.rule.as_deref() == rule;
        let index = self.deniers().iter().position(is_it).and_then(|index| u32::try_from(index).ok());
        DenierId(index.unwrap_or(u32::MAX))
    }
}

/// The rule that denies the request; `None` if a policy's `otherwise` does.
fn denying_rule<'a>(policies: &[ExplainedPolicy<'a>]) -> Option<&'a str> {
    policies.iter().find_map(|explained| match explained.part {
        PolicyOutcome::TakesPart(PolicyEnd::Denied { by }) => Some(by),
        _ => None,
    })
}

impl<'a> Walk<'a, '_> {
    fn policy(&mut self, policy: &'a Policy, denied_by: &mut Option<&'a str>) -> ExplainedPolicy<'a> {
        let mut matched = Vec::new();
        let part = match *denied_by {
            Some(denied_by) => Some(PolicyOutcome::NotChecked { denied_by }),
            None => match self.conditions(&policy.conditions) {
                ConditionsOutcome::Hold(elements) => {
                    matched = elements;
                    None
                }
                ConditionsOutcome::Fail(failure) => Some(PolicyOutcome::Fails(failure)),
                ConditionsOutcome::Unknown(attributes) => Some(PolicyOutcome::Undecidable(attributes)),
            },
        };
        let mut ended = None;
        let mut rules = Vec::with_capacity(policy.rules.len());
        for rule in &policy.rules {
            let mode = if policy.mode == Mode::Shadow { Mode::Shadow } else { rule.mode };
            let first = self.next;
            self.next = LimitId(self.next.0.saturating_add(rule.limit_count()));
            let outcome = match (&part, ended) {
                (Some(_), _) => RuleOutcome::Skipped(SkipReason::PolicySkipped),
                (
                    None,
                    Some(
                        PolicyEnd::Decided { by: rule }
                        | PolicyEnd::Denied { by: rule }
                        | PolicyEnd::Undecided { at: rule },
                    ),
                ) => RuleOutcome::Skipped(SkipReason::After { rule }),
                (None, _) => self.rule(rule, first),
            };
            if part.is_none() && ended.is_none() {
                ended = end(policy, rule, mode, &outcome);
            }
            rules.push(ExplainedRule { rule, mode, outcome });
        }
        let part =
            part.unwrap_or_else(|| PolicyOutcome::TakesPart(ended.unwrap_or(PolicyEnd::Otherwise(policy.otherwise))));
        match part {
            PolicyOutcome::TakesPart(PolicyEnd::Denied { .. }) => *denied_by = Some(&policy.name),
            PolicyOutcome::TakesPart(PolicyEnd::Otherwise(Otherwise::Deny)) if policy.mode == Mode::Enforce => {
                *denied_by = Some(&policy.name);
            }
            _ => {}
        }
        ExplainedPolicy { policy, part, matched, rules }
    }

    fn exemption(&mut self, exempt: &'a [Vec<Condition>]) -> Exemption<'a> {
        let mut unknown = Vec::new();
        for conditions in exempt {
            match self.conditions(conditions) {
                ConditionsOutcome::Hold(_) => return Exemption::By(conditions),
                ConditionsOutcome::Fail(_) => {}
                ConditionsOutcome::Unknown(attributes) => unknown.extend(attributes),
            }
        }
        if unknown.is_empty() { Exemption::None } else { Exemption::Undecidable(unknown) }
    }

    /// All of them must hold. The first that fails decides, even if others are not known.
    fn conditions(&mut self, conditions: &'a [Condition]) -> ConditionsOutcome<'a> {
        let (mut unknown, mut matched) = (Vec::new(), Vec::new());
        for condition in conditions {
            let found = (self.see)(&condition.attribute);
            match self.known.evaluate(&condition.expectation, &condition.attribute, &found) {
                Some(true) => self.match_elements(condition, &found, &mut matched),
                Some(false) => {
                    // A network is compared with the whole address, of which the attribute has only the prefix.
                    let compares = condition.expectation.compares_networks() && found != Observation::Missing;
                    let whole = self.known.client.filter(|_| compares);
                    let found =
                        whole.map_or(found, |client| Observation::Value(client.to_string().into_bytes().into()));
                    return ConditionsOutcome::Fail(Failure::Condition { condition, found });
                }
                None => unknown.push(&condition.attribute),
            }
        }
        if unknown.is_empty() { ConditionsOutcome::Hold(matched) } else { ConditionsOutcome::Unknown(unknown) }
    }

    /// Adds the elements of a list that fulfil a condition: for each operator the first.
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

    fn rule(&mut self, rule: &'a Rule, first: LimitId) -> RuleOutcome<'a> {
        if let Some(since) = rule.until.filter(|until| *until <= self.known.at) {
            return RuleOutcome::Fails(Failure::Over { since });
        }
        let (mut unknown, matched) = match self.conditions(&rule.conditions) {
            ConditionsOutcome::Hold(matched) => (Vec::new(), matched),
            ConditionsOutcome::Fail(failure) => return RuleOutcome::Fails(failure),
            ConditionsOutcome::Unknown(attributes) => (attributes, Vec::new()),
        };
        let mut picked = Vec::with_capacity(rule.keys.len());
        for key in rule.sorted_keys() {
            match self.pick(key) {
                Pick::Value(value) => picked.push(value),
                Pick::Missing => return RuleOutcome::Fails(Failure::Key(key)),
                Pick::Unknown(attribute) => unknown.push(attribute),
            }
        }
        if !unknown.is_empty() {
            return RuleOutcome::Undecidable(unknown);
        }
        match &rule.action {
            Action::Allow | Action::Deny => RuleOutcome::Applies { picked, charges: RuleCharges::default(), matched },
            Action::Charge(limits) => match self.charges(limits, first, &picked) {
                Ok(charges) => RuleOutcome::Applies { picked, charges, matched },
                Err(attribute) => RuleOutcome::Undecidable(vec![attribute]),
            },
        }
    }

    /// The first alternative that has a value.
    fn pick(&mut self, key: &'a LimitKey) -> Pick<'a> {
        for (alternative, part) in (0u8..).zip(&key.alternatives) {
            let value = match ((self.see)(&part.attribute), part.fold) {
                // A list is no value to count by.
                (Observation::Missing | Observation::List(_), _) => continue,
                // The pseudonym of a folded value does not follow from that of the value.
                (Observation::Unknown, _) | (Observation::Named(_), Fold::Lower) => {
                    return Pick::Unknown(&part.attribute);
                }
                (Observation::Value(value), Fold::Lower) => Observation::Value(value.to_ascii_lowercase().into()),
                (seen, Fold::Exact) => seen,
            };
            return Pick::Value(PickedKey { key, alternative, part, value });
        }
        Pick::Missing
    }
}

/// Whether all conditions of a rule or policy hold.
enum ConditionsOutcome<'a> {
    /// All hold; of lists, because of these elements.
    Hold(Vec<MatchedElement<'a>>),
    Fail(Failure<'a>),
    Unknown(Vec<&'a Attribute>),
}

enum Pick<'a> {
    Value(PickedKey<'a>),
    Missing,
    Unknown(&'a Attribute),
}

/// How a policy ends with this rule; `None` if it goes on with the next rule.
fn end<'a>(policy: &Policy, rule: &'a Rule, mode: Mode, outcome: &RuleOutcome<'a>) -> Option<PolicyEnd<'a>> {
    // A shadow rule changes nothing for the rules after it; in a shadow policy they are all shadows.
    let ends = rule.mode == Mode::Enforce || policy.mode == Mode::Shadow;
    match outcome {
        RuleOutcome::Applies { .. } if matches!(rule.action, Action::Deny) && mode == Mode::Enforce => {
            Some(PolicyEnd::Denied { by: &rule.name })
        }
        RuleOutcome::Applies { .. } if ends => Some(PolicyEnd::Decided { by: &rule.name }),
        RuleOutcome::Undecidable(_) if ends => Some(PolicyEnd::Undecided { at: &rule.name }),
        _ => None,
    }
}
