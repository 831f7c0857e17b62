//! Says why a request has to pay what it pays: what every policy and every rule made of it.
//!
//! It walks the rules as they are written, one after the other, beside [`RuleSet::plan`], which need not look at all of
//! them; a property test holds that both give the same answer. It costs more, and takes what is known of a request rather
//! than a request.
//!
//! Where something is not known, what hangs on it is [`RuleOutcome::Undecidable`], and the answer is made of the rest: see
//! [`Explanation::undecided`].

mod charging;
#[cfg(test)]
mod plan_parity;
mod words;

use super::attribute::Attribute;
use super::charge::{Charge, LimitId, Plan};
use super::partial::{Knowledge, Observed};
use super::rule::{Action, Condition, Fold, KeyPart, LimitKey, Mode, Otherwise, Policy, Rule};
use super::rule_set::{Answer, RuleSet};
use crate::base::time::Timestamp;
use charging::Walk;
pub use words::Date;

/// What the rules make of a request, and why.
#[derive(Clone, Debug)]
pub struct Explanation<'a> {
    /// Each of the file, in its order.
    pub policies: Vec<ExplainedPolicy<'a>>,
    pub exemption: Exemption<'a>,
    /// What [`RuleSet::plan`] gives.
    pub answer: Answer,
}

/// A policy, and what came of its rules.
#[derive(Clone, Debug)]
pub struct ExplainedPolicy<'a> {
    pub policy: &'a Policy,
    pub part: Part<'a>,
    pub rules: Vec<ExplainedRule<'a>>,
}

/// Whether a policy takes part.
#[derive(Clone, Debug)]
pub enum Part<'a> {
    /// Its own conditions hold, and this is what it came to.
    Takes(Ended<'a>),
    Fails(Failure<'a>),
    Undecidable(Vec<&'a Attribute>),
    /// A policy before it has refused the request.
    NotAsked {
        denied_by: &'a str,
    },
}

/// How a policy that takes part ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Ended<'a> {
    /// The first rule that applies decides.
    Decided { by: &'a str },
    /// This rule's `deny`.
    Denied { by: &'a str },
    /// No rule applies: the policy's `otherwise` holds.
    Otherwise(Otherwise),
    /// Whether this rule applies is not known, and so whether any after it is asked.
    Undecided { at: &'a str },
}

/// A rule, and what came of it.
#[derive(Clone, Debug)]
pub struct ExplainedRule<'a> {
    pub rule: &'a Rule,
    /// Its own, or its policy's.
    pub mode: Mode,
    pub trial: RuleOutcome<'a>,
}

/// Whether a rule applies.
#[derive(Clone, Debug)]
pub enum RuleOutcome<'a> {
    Applies {
        /// What the limit keys picked, in the order of the bucket's identity.
        picked: Vec<Picked<'a>>,
        /// Empty for an `action`.
        charges: Vec<ExplainedCharge<'a>>,
    },
    Fails(Failure<'a>),
    NotTried(NotTried<'a>),
    Undecidable(Vec<&'a Attribute>),
}

/// Why a rule was not looked at.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum NotTried<'a> {
    /// A rule before it in its policy decided, or cannot be decided.
    Behind { rule: &'a str },
    /// Its policy takes no part.
    Aside,
}

/// What kept a policy or a rule from applying: the first that did.
#[derive(Clone, Debug)]
pub enum Failure<'a> {
    Condition {
        condition: &'a Condition,
        found: Observed<'a>,
    },
    /// None of its alternatives has a value.
    Key(&'a LimitKey),
    /// It held until this moment.
    Over {
        since: Timestamp,
    },
}

/// A limit key with the value that it picked.
#[derive(Clone, Debug, PartialEq)]
pub struct Picked<'a> {
    pub key: &'a LimitKey,
    /// The place among the key's alternatives of the one that had a value.
    pub alternative: u8,
    pub part: &'a KeyPart,
    /// Folded as the key says; a value or a name.
    pub value: Observed<'a>,
}

/// What one limit is asked to pay.
#[derive(Clone, Debug)]
pub struct ExplainedCharge<'a> {
    /// The rule's name; of several limits in one rule, `rule.limit`.
    pub name: &'a str,
    pub mode: Mode,
    pub charge: Charge,
}

/// Whether the request pays nothing anywhere.
#[derive(Clone, Debug)]
pub enum Exemption<'a> {
    None,
    By(&'a [Condition]),
    Undecidable(Vec<&'a Attribute>),
    /// The request is refused, exempt or not.
    NotAsked,
}

impl RuleSet {
    /// `see` says what is known of an attribute's value; it may be asked for the same one again.
    pub fn explain<'a>(
        &'a self,
        see: &mut dyn FnMut(&'a Attribute) -> Observed<'a>,
        known: Knowledge<'a>,
    ) -> Explanation<'a> {
        let mut walk = Walk { rules: self, see, known, plan: Plan::default(), next: LimitId(0) };
        let mut denied_by = None;
        let policies: Vec<_> =
            self.source().policies.iter().map(|policy| walk.policy(policy, &mut denied_by)).collect();
        let exemption = match denied_by {
            Some(_) => Exemption::NotAsked,
            None => walk.exemption(&self.source().exempt),
        };
        let plan = walk.plan;
        let answer = match (denied_by, &exemption) {
            (Some(_), _) => Answer::Denied,
            (None, Exemption::By(_)) => Answer::Exempt,
            _ => Answer::for_plan(plan),
        };
        Explanation { policies, exemption, answer }
    }
}

impl<'a> Explanation<'a> {
    /// What hangs on something that is not known: a policy or, in it, a rule, with the attributes. Empty when the answer is
    /// the gateway's. A request that is denied is so whatever else is not known; one that is exempt might yet be denied.
    pub fn undecided(&self) -> Vec<Undecided<'_, 'a>> {
        if matches!(self.answer, Answer::Denied) {
            return Vec::new();
        }
        let mut undecided = Vec::new();
        for explained in &self.policies {
            let policy = Some(explained.policy);
            if let Part::Undecidable(attributes) = &explained.part {
                undecided.push(Undecided { policy, rule: None, attributes });
            }
            for rule in &explained.rules {
                if let RuleOutcome::Undecidable(attributes) = &rule.trial {
                    undecided.push(Undecided { policy, rule: Some(rule), attributes });
                }
            }
        }
        if let Exemption::Undecidable(attributes) = &self.exemption {
            undecided.push(Undecided { policy: None, rule: None, attributes });
        }
        undecided
    }

    /// The policies none of whose rules applied, and which let such requests pass.
    pub fn unmatched(&self) -> impl Iterator<Item = &'a Policy> {
        let unmatched = |explained: &&ExplainedPolicy<'a>| {
            matches!(explained.part, Part::Takes(Ended::Otherwise(Otherwise::Allow)))
                && !matches!(self.answer, Answer::Exempt)
        };
        self.policies.iter().filter(unmatched).map(|explained| explained.policy)
    }
}

/// What cannot be decided, and for want of what.
#[derive(Clone, Copy, Debug)]
pub struct Undecided<'e, 'a> {
    /// None: whether the request is exempt.
    pub policy: Option<&'a Policy>,
    /// None: whether the policy takes part.
    pub rule: Option<&'e ExplainedRule<'a>>,
    pub attributes: &'e [&'a Attribute],
}

impl<'a> Walk<'a, '_> {
    fn policy(&mut self, policy: &'a Policy, denied_by: &mut Option<&'a str>) -> ExplainedPolicy<'a> {
        let part = match *denied_by {
            Some(denied_by) => Some(Part::NotAsked { denied_by }),
            None => match self.conditions(&policy.conditions) {
                Held::Yes => None,
                Held::No(failure) => Some(Part::Fails(failure)),
                Held::Unknown(attributes) => Some(Part::Undecidable(attributes)),
            },
        };
        let mut ended = None;
        let mut rules = Vec::with_capacity(policy.rules.len());
        for rule in &policy.rules {
            let mode = if policy.mode == Mode::Shadow { Mode::Shadow } else { rule.mode };
            let first = self.next;
            self.next = LimitId(self.next.0.saturating_add(limits_of(rule)));
            let trial = match (&part, ended) {
                (Some(_), _) => RuleOutcome::NotTried(NotTried::Aside),
                (
                    None,
                    Some(Ended::Decided { by: rule } | Ended::Denied { by: rule } | Ended::Undecided { at: rule }),
                ) => RuleOutcome::NotTried(NotTried::Behind { rule }),
                (None, _) => self.rule(rule, first),
            };
            if part.is_none() && ended.is_none() {
                ended = end(policy, rule, mode, &trial);
            }
            rules.push(ExplainedRule { rule, mode, trial });
        }
        let part = part.unwrap_or_else(|| Part::Takes(ended.unwrap_or(Ended::Otherwise(policy.otherwise))));
        match part {
            Part::Takes(Ended::Denied { .. }) => *denied_by = Some(&policy.name),
            Part::Takes(Ended::Otherwise(Otherwise::Deny)) if policy.mode == Mode::Enforce => {
                *denied_by = Some(&policy.name);
            }
            _ => {}
        }
        ExplainedPolicy { policy, part, rules }
    }

    fn exemption(&mut self, exempt: &'a [Vec<Condition>]) -> Exemption<'a> {
        let mut unknown = Vec::new();
        for conditions in exempt {
            match self.conditions(conditions) {
                Held::Yes => return Exemption::By(conditions),
                Held::No(_) => {}
                Held::Unknown(attributes) => unknown.extend(attributes),
            }
        }
        if unknown.is_empty() { Exemption::None } else { Exemption::Undecidable(unknown) }
    }

    /// All of them must hold. The first that fails decides, whatever is not known of the others.
    fn conditions(&mut self, conditions: &'a [Condition]) -> Held<'a> {
        let mut unknown = Vec::new();
        for condition in conditions {
            let found = (self.see)(&condition.attribute);
            match condition.expectation.judge(&condition.attribute, &found, &self.known) {
                Some(true) => {}
                Some(false) => return Held::No(Failure::Condition { condition, found }),
                None => unknown.push(&condition.attribute),
            }
        }
        if unknown.is_empty() { Held::Yes } else { Held::Unknown(unknown) }
    }

    fn rule(&mut self, rule: &'a Rule, first: LimitId) -> RuleOutcome<'a> {
        if let Some(since) = rule.until.filter(|until| *until <= self.known.at) {
            return RuleOutcome::Fails(Failure::Over { since });
        }
        let mut unknown = match self.conditions(&rule.conditions) {
            Held::Yes => Vec::new(),
            Held::No(failure) => return RuleOutcome::Fails(failure),
            Held::Unknown(attributes) => attributes,
        };
        let mut picked = Vec::with_capacity(rule.keys.len());
        for key in keys_in_order(rule) {
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
            Action::Allow | Action::Deny => RuleOutcome::Applies { picked, charges: Vec::new() },
            Action::Charge(limits) => match self.charges(limits, first, &picked) {
                Ok(charges) => RuleOutcome::Applies { picked, charges },
                Err(attribute) => RuleOutcome::Undecidable(vec![attribute]),
            },
        }
    }

    /// The first alternative that has a value.
    fn pick(&mut self, key: &'a LimitKey) -> Pick<'a> {
        for (alternative, part) in (0u8..).zip(&key.alternatives) {
            let value = match ((self.see)(&part.attribute), part.fold) {
                (Observed::Missing, _) => continue,
                // What a folded value is called cannot be told from what it was called before.
                (Observed::Unknown, _) | (Observed::Named(_), Fold::Lower) => return Pick::Unknown(&part.attribute),
                (Observed::Value(value), Fold::Lower) => Observed::Value(value.to_ascii_lowercase().into()),
                (seen, Fold::Exact) => seen,
            };
            return Pick::Value(Picked { key, alternative, part, value });
        }
        Pick::Missing
    }
}

/// Whether all conditions hold.
enum Held<'a> {
    Yes,
    No(Failure<'a>),
    Unknown(Vec<&'a Attribute>),
}

enum Pick<'a> {
    Value(Picked<'a>),
    Missing,
    Unknown(&'a Attribute),
}

/// Whether a policy ends with this rule, and how.
fn end<'a>(policy: &Policy, rule: &'a Rule, mode: Mode, trial: &RuleOutcome<'a>) -> Option<Ended<'a>> {
    // A shadow rule changes nothing for the rules after it; in a shadow policy they are all shadows.
    let ends = rule.mode == Mode::Enforce || policy.mode == Mode::Shadow;
    match trial {
        RuleOutcome::Applies { .. } if matches!(rule.action, Action::Deny) && mode == Mode::Enforce => {
            Some(Ended::Denied { by: &rule.name })
        }
        RuleOutcome::Applies { .. } if ends => Some(Ended::Decided { by: &rule.name }),
        RuleOutcome::Undecidable(_) if ends => Some(Ended::Undecided { at: &rule.name }),
        _ => None,
    }
}

/// How many limits a rule was compiled to: each and, where it has one, its candidate.
fn limits_of(rule: &Rule) -> u32 {
    let Action::Charge(limits) = &rule.action else { return 0 };
    limits.iter().map(|limit| if limit.candidate.is_some() { 2 } else { 1 }).sum()
}

/// In the order of the bucket's identity.
fn keys_in_order(rule: &Rule) -> Vec<&LimitKey> {
    let mut keys: Vec<&LimitKey> = rule.keys.iter().collect();
    keys.sort_by(|a, b| a.text.cmp(&b.text));
    keys
}
