//! The policies of a file, their rules, and what each rule does.
//!
//! These are checked values with every number exact and every name valid. [`super::rule_set`] compiles them.

use std::fmt;
use std::sync::Arc;

use super::claimed_numbers::ClaimedNumbers;
pub use super::shadow::Mode;
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
    /// The exemptions, each a list of conditions that must all hold.
    pub exempt: Vec<Vec<Condition>>,
}

/// A named, ordered list of rules. The first rule that applies decides.
#[derive(Clone, Debug)]
pub struct Policy {
    pub name: String,
    /// The policy's own conditions. If a request does not meet them, the policy is skipped.
    pub conditions: Vec<Condition>,
    pub mode: Mode,
    pub otherwise: Otherwise,
    pub rules: Vec<Rule>,
    /// The position of the policy in the file.
    pub position: Position,
}

/// The treatment of a request to which no rule of a policy applies.
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
    /// The moment after which the rule is skipped. `None`: the rule does not expire.
    pub until: Option<Timestamp>,
    /// The position of the rule in the file.
    pub position: Position,
}

impl Rule {
    /// The number of compiled limits: the limits, and the candidates of those that have one.
    pub fn limit_count(&self) -> u32 {
        let Action::Charge(limits) = &self.action else { return 0 };
        limits.iter().map(|limit| if limit.candidate.is_some() { 2 } else { 1 }).sum()
    }

    /// The limit keys in the order of their printed names, which is their order in a bucket's identity.
    pub(crate) fn sorted_keys(&self) -> Vec<&LimitKey> {
        let mut keys: Vec<&LimitKey> = self.keys.iter().collect();
        keys.sort_by(|a, b| a.text.cmp(&b.text));
        keys
    }
}

/// One condition of a `match`: an attribute and what its value must be.
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

/// Whether a request meets all conditions. Long lists of rules and routes do not use this function: they resolve each attribute
/// only once.
pub fn hold(conditions: &[Condition], request: &Request<'_>) -> bool {
    conditions.iter().all(|condition| condition.holds(request))
}

/// One entry of `limit_keys`. Its value is that of the first alternative that has one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitKey {
    /// The printed form, without spaces: a part of the bucket's identity.
    pub text: String,
    pub alternatives: Vec<KeyPart>,
}

impl LimitKey {
    /// Whether this attribute is the only alternative.
    pub fn is_only(&self, attribute: &Attribute) -> bool {
        matches!(&self.alternatives[..], [only] if only.attribute == *attribute)
    }
}

/// An attribute of a limit key, with the folding of its value.
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

/// The change of a value before it is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fold {
    Exact,
    /// ASCII letters become lower case. Whether other names are equal is not for a gateway to decide.
    Lower,
}

/// The effect of a rule on a request to which it applies.
#[derive(Clone, Debug)]
pub enum Action {
    /// Ends its policy without a charge.
    Allow,
    /// Refuses before any bucket is charged.
    Deny,
    /// Charges these limits together.
    Charge(Vec<Limit>),
}

/// One limit of a rule.
#[derive(Clone, Debug)]
pub struct Limit {
    /// The name of the limit; empty unless the rule has several.
    pub name: String,
    /// The meter that the limit shares with limits of other rules of the policy. `None`: the limit has its own buckets.
    pub meter: Option<String>,
    /// The algorithm, with the default numbers for a limit whose numbers come from credentials.
    pub algorithm: Algorithm,
    /// The numbers that come from credentials, if any.
    pub claimed: Option<ClaimedNumbers>,
    pub price: Price,
    /// The overrides, in the order of the file. The first one that matches a request applies.
    pub overrides: Vec<Override>,
    /// Other numbers, which are tried as a shadow while the limit's own are enforced.
    pub candidate: Option<Algorithm>,
    /// The numbers of the candidate that come from credentials, if any.
    pub candidate_claimed: Option<ClaimedNumbers>,
    /// Whether clients see the name and the numbers of the limit.
    pub expose: Expose,
    pub refusal: RefusalStatus,
    pub on_store_failure: OnStoreFailure,
}

/// Other numbers of a limit, for one value of one alternative of a limit key. They do not apply to the same value of another
/// alternative, so that an unverified value never gets the numbers of a verified one.
#[derive(Clone, Debug)]
pub struct Override {
    pub part: Arc<KeyPart>,
    /// The overridden value, folded as the values of the alternative are.
    pub value: Arc<str>,
    pub numbers: OverrideNumbers,
    /// The index in the rule's `overrides`, whose entries may be for several limits; or [`Override::IN_FILE`].
    pub index: usize,
}

impl Override {
    /// The index that stands for overrides in a separate file.
    pub const IN_FILE: usize = usize::MAX;
}

/// The numbers for an overridden value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverrideNumbers {
    Limited(Algorithm),
    /// Nothing is charged.
    Unlimited,
}

/// Whether clients see a limit in headers and refusals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expose {
    Yes,
    No,
}

/// The status of a refusal, by what the limit protects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalStatus {
    /// 429: the caller has used up its own quota.
    QuotaExceeded,
    /// 503: all callers together have used up the shared capacity.
    ReducedCapacity,
}

/// The treatment of a request for which the store gives no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnStoreFailure {
    /// It is charged in this gateway, to its share of the limit.
    Local,
    /// It is let through without a charge.
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

/// The price of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Price {
    Fixed(Cost),
    /// The request names its own cost, within bounds.
    FromRequest {
        /// The header or query parameter with the cost.
        attribute: Attribute,
        /// The cost of a request that names none, or no positive decimal.
        default: Cost,
        min: Cost,
        max: Option<Cost>,
    },
}

impl Price {
    /// The smallest cost of a request.
    pub fn least(&self) -> Cost {
        match self {
            Price::Fixed(cost) => *cost,
            Price::FromRequest { default, min, .. } => *default.min(min),
        }
    }
}
