//! Defines the parts of an explanation: the outcome of each policy and each rule, and the undecided parts.

use crate::claimed_numbers::{ClaimResult, ClaimedNumber};
use crate::partial::Observation;
use crate::rule::{Condition, KeyPart, LimitKey, Mode, Otherwise, Policy, Rule};
use crate::rule_set::Answer;
use base::time::Timestamp;
use ledger::charge::Charge;
use ledger::cost::Cost;
use request::attribute::Attribute;

/// The outcome of the rules for a request, and why.
#[derive(Clone, Debug)]
pub struct Explanation<'a> {
    /// All policies of the file, in its order.
    pub policies: Vec<ExplainedPolicy<'a>>,
    pub exemption: Exemption<'a>,
    /// The answer that `RuleSet::plan` gives.
    pub answer: Answer,
}

/// A policy, with the outcomes of its rules.
#[derive(Clone, Debug)]
pub struct ExplainedPolicy<'a> {
    pub policy: &'a Policy,
    pub part: PolicyOutcome<'a>,
    /// The elements of lists that fulfil its own conditions.
    pub matched: Vec<MatchedElement<'a>>,
    pub rules: Vec<ExplainedRule<'a>>,
}

/// Whether a policy takes part.
#[derive(Clone, Debug)]
pub enum PolicyOutcome<'a> {
    /// Its own conditions hold; the policy ends like this.
    TakesPart(PolicyEnd<'a>),
    Fails(Failure<'a>),
    Undecidable(Vec<&'a Attribute>),
    /// A policy before it has denied the request.
    NotChecked {
        denied_by: &'a str,
    },
}

/// How a policy that takes part ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PolicyEnd<'a> {
    /// The first rule that applies decides.
    Decided { by: &'a str },
    /// The `deny` of this rule.
    Denied { by: &'a str },
    /// No rule applies: the policy's `otherwise` holds.
    Otherwise(Otherwise),
    /// It is not known whether this rule applies, nor whether any rule after it is reached.
    Undecided { at: &'a str },
}

/// A rule, with its outcome.
#[derive(Clone, Debug)]
pub struct ExplainedRule<'a> {
    pub rule: &'a Rule,
    /// The mode of the rule, or else of its policy.
    pub mode: Mode,
    pub outcome: RuleOutcome<'a>,
}

/// Whether a rule applies.
#[derive(Clone, Debug)]
pub enum RuleOutcome<'a> {
    Applies {
        /// The values that the limit keys picked, in the order of the bucket's identity.
        picked: Vec<PickedKey<'a>>,
        /// The charges of its limits; empty for an `action`.
        charges: RuleCharges<'a>,
        /// The elements of lists that fulfil its conditions.
        matched: Vec<MatchedElement<'a>>,
    },
    Fails(Failure<'a>),
    Skipped(SkipReason<'a>),
    Undecidable(Vec<&'a Attribute>),
}

/// The reason why a rule was not checked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SkipReason<'a> {
    /// A rule before it in its policy has decided, or cannot be decided.
    After { rule: &'a str },
    /// Its policy takes no part.
    PolicySkipped,
}

/// The first reason why a policy or a rule does not apply.
#[derive(Clone, Debug)]
pub enum Failure<'a> {
    Condition {
        condition: &'a Condition,
        found: Observation<'a>,
    },
    /// None of its alternatives has a value.
    Key(&'a LimitKey),
    /// The rule ended at this moment (`until`).
    Over {
        since: Timestamp,
    },
}

/// An element of a claim's list that fulfils a condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatchedElement<'a> {
    pub attribute: &'a Attribute,
    /// Its value or its pseudonym.
    pub element: Observation<'a>,
}

/// A limit key with the value that it picked.
#[derive(Clone, Debug, PartialEq)]
pub struct PickedKey<'a> {
    pub key: &'a LimitKey,
    /// The index of the alternative that had a value.
    pub alternative: u8,
    pub part: &'a KeyPart,
    /// Folded as the key says; a value or a pseudonym.
    pub value: Observation<'a>,
}

/// The charges of the limits of one rule.
#[derive(Clone, Debug, Default)]
pub struct RuleCharges<'a> {
    pub charged: Vec<ExplainedCharge<'a>>,
    /// The limits that charge nothing, since an override says so.
    pub unlimited: Vec<&'a str>,
}

/// The charge of one limit.
#[derive(Clone, Debug)]
pub struct ExplainedCharge<'a> {
    /// The rule's name; of several limits in one rule, `rule.limit`.
    pub name: &'a str,
    pub mode: Mode,
    /// The counter whose buckets the limit shares.
    pub meter: Option<&'a str>,
    pub charge: Charge,
    /// The numbers from the request.
    pub claimed: Vec<ExplainedNumber<'a>>,
}

/// A number of a limit that comes from the request's credentials.
#[derive(Clone, Debug)]
pub struct ExplainedNumber<'a> {
    pub number: &'a ClaimedNumber,
    pub found: Observation<'a>,
    /// The number, after it was cut, or the default.
    pub amount: Cost,
    pub result: ClaimResult,
}

/// Whether the request pays nothing anywhere.
#[derive(Clone, Debug)]
pub enum Exemption<'a> {
    None,
    By(&'a [Condition]),
    Undecidable(Vec<&'a Attribute>),
    /// The request is refused, exempt or not.
    NotChecked,
}
