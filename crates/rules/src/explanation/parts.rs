//! Defines the parts of an explanation: the outcome of each policy and each rule, and the undecided parts.

use crate::claimed_numbers::{ClaimResult, ClaimedNumber};
use crate::partial::Observation;
use crate::rule::{Condition, KeyPart, LimitKey, Mode, Otherwise, Policy, Rule};
use crate::rule_set::Answer;
use base::time::Timestamp;
use ledger::charge::Charge;
use ledger::cost::Cost;
use request::attribute::Attribute;

/// The outcome of the rules for a request, with the reasons.
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
    /// The elements of lists that meet the policy's own conditions.
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

/// The end of a policy that takes part.
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

/// An element of a claim's list that meets a condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatchedElement<'a> {
    pub attribute: &'a Attribute,
    /// The element's value or pseudonym.
    pub element: Observation<'a>,
}

/// A limit key with the value that it picked.
#[derive(Clone, Debug, PartialEq)]
pub struct PickedKey<'a> {
    pub key: &'a LimitKey,
    /// The index of the alternative that had a value.
    pub alternative: u8,
    pub part: &'a KeyPart,
    /// The value, folded as the limit key says, or its pseudonym.
    pub value: Observation<'a>,
}

/// The charges of the limits of one rule.
#[derive(Clone, Debug, Default)]
pub struct RuleCharges<'a> {
    pub charged: Vec<ExplainedCharge<'a>>,
    /// The limits that charge nothing because of an override.
    pub unlimited: Vec<&'a str>,
}

/// The charge of one limit.
#[derive(Clone, Debug)]
pub struct ExplainedCharge<'a> {
    /// The name of the rule; `rule.limit` if the rule has several limits.
    pub name: &'a str,
    pub mode: Mode,
    /// The meter, whose buckets the limit shares with others.
    pub meter: Option<&'a str>,
    pub charge: Charge,
    /// The numbers that come from credentials.
    pub claimed: Vec<ExplainedNumber<'a>>,
}

/// A number of a limit that comes from credentials.
#[derive(Clone, Debug)]
pub struct ExplainedNumber<'a> {
    pub number: &'a ClaimedNumber,
    pub found: Observation<'a>,
    /// The number, after it was limited to the allowed range, or the default.
    pub amount: Cost,
    pub result: ClaimResult,
}

/// Whether the request is exempt from all limits.
#[derive(Clone, Debug)]
pub enum Exemption<'a> {
    None,
    By(&'a [Condition]),
    Undecidable(Vec<&'a Attribute>),
    /// The request is refused, exempt or not.
    NotChecked,
}
