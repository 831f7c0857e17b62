//! Defines the parts of an explanation: the outcome of each policy and each rule, and the undecided parts.

use crate::claimed_numbers::{ClaimResult, ClaimedNumber};
use crate::partial_evaluation::Observation;
use crate::rule::{Condition, LimitKey, Mode, Otherwise, Policy, Rule};
use crate::rule_set::Answer;
use crate::settled_price::SettledPrice;
use base::time::Timestamp;
use ledger::charge::Charge;
use ledger::cost::Cost;
use request::attribute::Attribute;

/// What the rules decide about a request, with the outcome of every policy and rule.
#[derive(Clone, Debug)]
pub struct Explanation<'a> {
    /// All policies of the file, in the order of the file.
    pub policies: Vec<ExplainedPolicy<'a>>,
    pub exemption: Exemption<'a>,
    /// The answer of the rules. If all attributes are known, `RuleSet::plan` gives the same answer.
    pub answer: Answer,
}

/// A policy, with the outcomes of its rules.
#[derive(Clone, Debug)]
pub struct ExplainedPolicy<'a> {
    pub policy: &'a Policy,
    pub part: PolicyOutcome<'a>,
    /// The list elements that meet the policy's own conditions.
    pub matched: Vec<MatchedElement<'a>>,
    pub rules: Vec<ExplainedRule<'a>>,
}

/// Whether a policy takes part in the decision about a request.
#[derive(Clone, Debug)]
pub enum PolicyOutcome<'a> {
    /// The policy's own conditions hold. The value is the result of the policy.
    TakesPart(PolicyEnd<'a>),
    Fails(Failure<'a>),
    Undecidable(Vec<&'a Attribute>),
    /// The policy was not checked, because an earlier policy has denied the request.
    NotChecked {
        denied_by: &'a str,
    },
}

/// The result of a policy that takes part.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PolicyEnd<'a> {
    /// This rule is the first rule that applies, so it decides.
    Decided { by: &'a str },
    /// This rule applies and denies the request.
    Denied { by: &'a str },
    /// No rule applies, so the `otherwise` of the policy decides.
    Otherwise(Otherwise),
    /// It is unknown whether this rule applies. So it is also unknown whether the rules after this rule are checked.
    Undecided { at: &'a str },
}

/// A rule, and whether it applies to the request.
#[derive(Clone, Debug)]
pub struct ExplainedRule<'a> {
    pub rule: &'a Rule,
    /// `Shadow` if the rule or its policy is in shadow mode (a dry run), otherwise `Enforce`.
    pub mode: Mode,
    pub outcome: RuleOutcome<'a>,
}

/// Whether a rule applies to the request, and why.
#[derive(Clone, Debug)]
pub enum RuleOutcome<'a> {
    Applies {
        /// The values that the limit keys picked, in the order of the bucket's identity.
        picked: Vec<PickedKey<'a>>,
        /// The charges of the rule's limits. Empty for a rule with an `action`, because such a rule has no limits.
        charges: RuleCharges<'a>,
        /// The list elements that meet the rule's conditions.
        matched: Vec<MatchedElement<'a>>,
    },
    Fails(Failure<'a>),
    Skipped(SkipReason<'a>),
    Undecidable(Vec<&'a Attribute>),
}

/// The reason why a rule was not checked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SkipReason<'a> {
    /// An earlier rule of the policy has decided, or it is unknown whether this earlier rule applies.
    After { rule: &'a str },
    /// The policy of the rule takes no part.
    PolicySkipped,
}

/// The first reason why a policy or a rule does not apply.
#[derive(Clone, Debug)]
pub enum Failure<'a> {
    Condition {
        condition: &'a Condition,
        found: Observation<'a>,
    },
    /// No alternative of this limit key has a value.
    Key(&'a LimitKey),
    /// The rule no longer applies, because it expired at this moment (`until`).
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

/// A limit key, with the value that it has for a request.
#[derive(Clone, Debug, PartialEq)]
pub struct PickedKey<'a> {
    pub key: &'a LimitKey,
    /// The index of the alternative that has the value.
    pub alternative: u8,
    pub part: &'a Attribute,
    /// The value after the attribute's functions, such as `lower`, or the pseudonym if only that is known.
    pub value: Observation<'a>,
}

/// The charges that the limits of one rule make for a request.
#[derive(Clone, Debug, Default)]
pub struct RuleCharges<'a> {
    pub charged: Vec<ExplainedCharge<'a>>,
    /// The limits that charge nothing because of an override.
    pub unlimited: Vec<&'a str>,
    /// The concurrency limits and budgets that charge nothing, because another proxy forwards the request.
    pub not_at_door: Vec<&'a str>,
}

/// The charge of one limit, with the settings that come from credentials.
#[derive(Clone, Debug)]
pub struct ExplainedCharge<'a> {
    /// The name of the rule; `rule.limit` if the rule has several limits.
    pub name: &'a str,
    pub mode: Mode,
    /// The name of the meter whose buckets the limit shares with other limits. `None` if the limit has its own buckets.
    pub meter: Option<&'a str>,
    /// The price of a budget. `None` if the cost is known before the response.
    pub settled: Option<&'a SettledPrice>,
    pub charge: Charge,
    /// The limit's settings that come from credentials.
    pub claimed: Vec<ExplainedNumber<'a>>,
}

/// A setting of a limit that comes from credentials, with its value for the request.
#[derive(Clone, Debug)]
pub struct ExplainedNumber<'a> {
    pub number: &'a ClaimedNumber,
    pub found: Observation<'a>,
    /// The value that applies: the value from the credentials, limited to the allowed range, or the default.
    pub amount: Cost,
    pub result: ClaimResult,
}

/// Whether the request is exempt from all limits.
#[derive(Clone, Debug)]
pub enum Exemption<'a> {
    None,
    By(&'a [Condition]),
    Undecidable(Vec<&'a Attribute>),
    /// Exemptions were not checked, because a rule or policy denies the request. A denial also applies to exempt
    /// requests.
    NotChecked,
}
