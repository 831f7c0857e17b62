//! The policies of a file, their rules, and what each rule does.
//!
//! These are checked values with every number exact and every name valid. [`super::rule_set`] compiles them.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::claimed_numbers::ClaimedNumbers;
use base::position::Position;
use base::time::Timestamp;
use ledger::algorithm::Algorithm;
use ledger::cost::Cost;
use request::attribute::Attribute;
use request::matcher::Expectation;
use request::request::Request;

/// The policies and exemptions of a file, in the order of the file: what a rule set is compiled from.
#[derive(Clone, Debug, Default)]
pub struct RuleSource {
    pub policies: Vec<Policy>,
    /// Each member is one set of conditions.
    pub exempt: Vec<Vec<Condition>>,
}

/// A named, ordered list of rules: the first that applies decides.
#[derive(Clone, Debug)]
pub struct Policy {
    pub name: String,
    /// A policy whose own conditions fail takes no part.
    pub conditions: Vec<Condition>,
    pub mode: Mode,
    pub otherwise: Otherwise,
    pub rules: Vec<Rule>,
    /// Where the file defines it.
    pub position: Position,
}

/// Whether a policy or rule refuses requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    Enforce,
    /// Charged to buckets of its own and counted; never seen by a client.
    Shadow,
}

impl Mode {
    pub fn name(self) -> &'static str {
        match self {
            Mode::Enforce => "enforce",
            Mode::Shadow => "shadow",
        }
    }
}

/// What holds when no rule of a policy applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Otherwise {
    Allow,
    Deny,
}

/// One entry of a policy. It applies when all its conditions hold and every limit key has a value.
#[derive(Clone, Debug)]
pub struct Rule {
    pub name: String,
    pub conditions: Vec<Condition>,
    pub keys: Vec<LimitKey>,
    pub mode: Mode,
    pub action: Action,
    /// From then on the rule is skipped, as if it did not exist; `None`: it has no end.
    pub until: Option<Timestamp>,
    /// Where the file defines it.
    pub position: Position,
}

impl Rule {
    /// How many limits it is compiled to: each of its own and, where that has one, its candidate.
    pub fn limit_count(&self) -> u32 {
        let Action::Charge(limits) = &self.action else { return 0 };
        limits.iter().map(|limit| if limit.candidate.is_some() { 2 } else { 1 }).sum()
    }

    /// The limit keys in the order of the bucket's identity: that of their printed names.
    pub fn sorted_keys(&self) -> Vec<&LimitKey> {
        let mut keys: Vec<&LimitKey> = self.keys.iter().collect();
        keys.sort_by(|a, b| a.text.cmp(&b.text));
        keys
    }
}

/// One line of a `match`.
#[derive(Clone, Debug)]
pub struct Condition {
    pub attribute: Attribute,
    pub expectation: Expectation,
}

impl Condition {
    fn holds(&self, request: &Request<'_>) -> bool {
        self.expectation.holds_for(&self.attribute.resolve_for_match(request), request.client.address())
    }
}

/// Whether all of them hold. Rules and routes, of which there may be a thousand, resolve each attribute only once.
pub fn hold(conditions: &[Condition], request: &Request<'_>) -> bool {
    conditions.iter().all(|condition| condition.holds(request))
}

/// One entry of `limit_keys`: the first of these that has a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitKey {
    /// As printed, without spaces: a part of the bucket's identity.
    pub text: String,
    pub alternatives: Vec<KeyPart>,
}

impl LimitKey {
    /// Whether it has this attribute and no alternative.
    pub fn is_only(&self, attribute: &Attribute) -> bool {
        matches!(&self.alternatives[..], [only] if only.attribute == *attribute)
    }
}

/// An attribute, as it is written or folded to lower case.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KeyPart {
    pub attribute: Attribute,
    pub fold: Fold,
}

/// `jwt:sub`, `lower(query:username)`.
impl fmt::Display for KeyPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.fold {
            Fold::Exact => write!(f, "{}", self.attribute),
            Fold::Lower => write!(f, "lower({})", self.attribute),
        }
    }
}

/// How a value is changed before it is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fold {
    Exact,
    /// ASCII letters only: which other names are equal is not for a gateway to decide.
    Lower,
}

/// What a rule does with a request to which it applies.
#[derive(Clone, Debug)]
pub enum Action {
    /// Ends its policy without a charge.
    Allow,
    /// Refuses before any bucket is charged.
    Deny,
    /// Charges these, together.
    Charge(Vec<Limit>),
}

/// One limit of a rule.
#[derive(Clone, Debug)]
pub struct Limit {
    /// Empty unless the rule has several.
    pub name: String,
    /// The counter that it shares with limits of other rules of its policy. `None`: it has buckets of its own.
    pub meter: Option<String>,
    /// Of numbers that each request may have of its own, these have the defaults.
    pub algorithm: Algorithm,
    /// The numbers that each request may have of its own, if there are any.
    pub claimed: Option<ClaimedNumbers>,
    pub price: Price,
    /// In the order of the file: the first that fits a request holds.
    pub overrides: Vec<Override>,
    /// Other numbers to try next to the enforced ones.
    pub candidate: Option<Algorithm>,
    /// Those of the candidate.
    pub candidate_claimed: Option<ClaimedNumbers>,
    /// Whether clients see its name and numbers.
    pub expose: Expose,
    pub refusal: RefusalStatus,
    pub on_store_failure: OnStoreFailure,
}

/// Other numbers of a limit, for one value that one of the rule's limit keys picked. The same value of another alternative
/// keeps the limit's own: what is not verified never takes the numbers of what is.
#[derive(Clone, Debug)]
pub struct Override {
    pub part: Arc<KeyPart>,
    /// Folded as the part says.
    pub value: Arc<str>,
    pub numbers: OverrideNumbers,
    /// Its index in the rule's `overrides`, whose entries may be for several limits; or [`Override::IN_FILE`].
    pub index: usize,
}

impl Override {
    /// The index of those that stand in a file of their own.
    pub const IN_FILE: usize = usize::MAX;
}

/// What holds for an overridden value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverrideNumbers {
    Limited(Algorithm),
    /// Nothing is charged.
    Unlimited,
}

/// Whether a limit shows in headers and refusals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expose {
    Yes,
    No,
}

/// What a refusal by a limit means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalStatus {
    /// 429: the caller has used up its own quota.
    QuotaExceeded,
    /// 503: all callers together have used up the shared capacity.
    ReducedCapacity,
}

/// What a limit does with a request for which the store gives no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnStoreFailure {
    /// It is charged here, to this gateway's share of the limit.
    Local,
    /// It passes, uncharged.
    Allow,
    /// 503.
    Deny,
}

impl OnStoreFailure {
    pub const ALL: [OnStoreFailure; 3] = [OnStoreFailure::Local, OnStoreFailure::Allow, OnStoreFailure::Deny];

    /// The word in gateway.yaml and in metrics.
    pub fn name(self) -> &'static str {
        match self {
            OnStoreFailure::Local => "local",
            OnStoreFailure::Allow => "allow",
            OnStoreFailure::Deny => "deny",
        }
    }
}

/// What a request costs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Price {
    Fixed(Cost),
    /// The request names its own cost, within bounds.
    FromRequest {
        /// A header or a query parameter.
        attribute: Attribute,
        /// If the request names no cost, or no positive decimal.
        default: Cost,
        min: Cost,
        max: Option<Cost>,
    },
}

impl Price {
    /// The least that a request can be asked to pay.
    pub fn least(&self) -> Cost {
        match self {
            Price::Fixed(cost) => *cost,
            Price::FromRequest { default, min, .. } => *default.min(min),
        }
    }
}
