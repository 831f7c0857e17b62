//! Defines the policies of a file, their rules, and the effect of each rule.
//!
//! These values have been checked: every number is exact and every name is valid. [`super::rule_set`] compiles them.

use std::sync::Arc;

use super::claimed_numbers::ClaimedNumbers;
pub use super::rule_mode::Mode;
use super::settled_price::SettledPrice;
use base::position::Position;
use base::time::Timestamp;
use ledger::algorithm::Algorithm;
use ledger::algorithm::ban::Ban;
use ledger::cost::Cost;
use request::attribute::Attribute;
use request::matcher::Expectation;
use request::request::Request;

/// The policies and exemptions of a file, in the order of the file. A rule set is compiled from a rule source.
#[derive(Clone, Debug, Default)]
pub struct RuleSource {
    pub policies: Vec<Policy>,
    /// The exemptions. Each is a list of conditions that must all hold.
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

/// One entry of a policy. The rule applies to a request if all its conditions hold and every limit key has a value.
#[derive(Clone, Debug)]
pub struct Rule {
    pub name: String,
    pub conditions: Vec<Condition>,
    pub keys: Vec<LimitKey>,
    pub mode: Mode,
    pub action: Action,
    /// The moment after which the rule is skipped. `None` if the rule does not expire.
    pub until: Option<Timestamp>,
    /// The position of the rule in the file.
    pub position: Position,
}

impl Rule {
    /// Returns the number of limits to which the rule is compiled: its limits, and the `candidate` of each that has one.
    pub fn limit_count(&self) -> u32 {
        let Action::Charge(limits) = &self.action else { return 0 };
        limits.iter().map(|limit| if limit.candidate.is_some() { 2 } else { 1 }).sum()
    }

    /// Returns the limit keys, sorted by their printed names as in a bucket's identity.
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

/// Returns whether a request meets all conditions. Only for short lists, because each condition resolves its attribute
/// again.
pub fn hold(conditions: &[Condition], request: &Request<'_>) -> bool {
    conditions.iter().all(|condition| condition.holds(request))
}

/// One entry of `limit_keys`: one or several attributes. The first that has a value is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitKey {
    /// The printed form, without spaces: a part of the bucket's identity.
    pub text: String,
    pub alternatives: Vec<Attribute>,
}

impl LimitKey {
    /// Returns whether the limit key consists of this attribute alone, without other alternatives.
    pub fn is_only(&self, attribute: &Attribute) -> bool {
        matches!(&self.alternatives[..], [only] if only == attribute)
    }
}

/// The effect of a rule on a request to which it applies.
#[derive(Clone, Debug)]
pub enum Action {
    /// Ends the policy of the rule without a charge.
    Allow,
    /// Denies the request before any bucket is charged.
    Deny,
    /// Charges the buckets of these limits together.
    Charge(Vec<Limit>),
}

/// One limit of a rule, as the file defines it.
#[derive(Clone, Debug)]
pub struct Limit {
    /// The name of the limit. Empty unless the rule has several limits.
    pub name: String,
    /// The meter whose buckets the limit shares with other rules. `None` if the limit has its own buckets.
    pub meter: Option<String>,
    /// The algorithm with the limit's settings. If settings come from credentials, the algorithm has their default
    /// values.
    pub algorithm: Algorithm,
    /// The settings that come from credentials. `None` if all settings are fixed.
    pub claimed: Option<ClaimedNumbers>,
    pub price: Price,
    /// The overrides, in the order of the file. The first one that matches a request applies.
    pub overrides: Vec<Override>,
    /// Other settings that are tried in shadow mode (as a dry run), while the limit's own settings are enforced.
    pub candidate: Option<Algorithm>,
    /// The candidate's settings that come from credentials. `None` if all settings are fixed.
    pub candidate_claimed: Option<ClaimedNumbers>,
    /// Whether clients see the name and the settings of the limit.
    pub expose: Expose,
    pub refusal: RefusalStatus,
    /// The status with which a ban of the limit refuses a request. It has no effect without a ban.
    pub ban_status: BanStatus,
    pub on_store_failure: OnStoreFailure,
}

impl Limit {
    /// Makes the limit hold in one region alone, with its overrides and its candidate.
    pub(crate) fn set_in_one_region(&mut self) {
        let claimed = self.claimed.iter_mut().chain(&mut self.candidate_claimed).map(|claimed| &mut claimed.base);
        let overridden = self.overrides.iter_mut().filter_map(|one| match &mut one.numbers {
            OverrideNumbers::Limited(numbers) => Some(numbers),
            OverrideNumbers::Unlimited => None,
        });
        let all = std::iter::once(&mut self.algorithm).chain(&mut self.candidate).chain(claimed).chain(overridden);
        all.for_each(|numbers| *numbers = numbers.in_one_region());
    }
}

/// Other settings of a limit, for one value of one attribute. If a limit key has several attributes to choose from,
/// only a value of this attribute gets the settings. So an unverified value never gets the settings of a verified
/// value.
#[derive(Clone, Debug)]
pub struct Override {
    pub part: Arc<Attribute>,
    /// The value to which the override applies, after the attribute's functions, such as `lower`.
    pub value: Arc<str>,
    pub numbers: OverrideNumbers,
    /// The index of the override in the rule's `overrides`, one list for all limits of the rule. For an override in a
    /// separate file, [`Override::IN_FILE`].
    pub index: usize,
}

impl Override {
    /// The value of `index` for an override in a separate file. Such an override has no index of its own.
    pub const IN_FILE: usize = usize::MAX;
}

/// The settings for an overridden value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverrideNumbers {
    Limited(Algorithm),
    /// The limit charges nothing for the value.
    Unlimited,
}

/// Whether clients see a limit in headers and refusals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expose {
    Yes,
    No,
}

/// The status with which a limit refuses a request. The choice depends on what the limit protects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalStatus {
    /// 429: the client has used up its own quota.
    QuotaExceeded,
    /// 503: all clients together have used up the shared capacity.
    ReducedCapacity,
}

/// A ban of a limit, and the status with which it refuses a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitBan {
    pub ban: Ban,
    pub status: BanStatus,
}

/// The status with which a ban refuses a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BanStatus {
    /// 429, with `Retry-After`.
    #[default]
    TooManyRequests,
    /// 403, without `Retry-After`.
    Forbidden,
}

impl BanStatus {
    pub fn code(self) -> u16 {
        match self {
            BanStatus::TooManyRequests => 429,
            BanStatus::Forbidden => 403,
        }
    }
}

/// The treatment of a request for which the store gives no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnStoreFailure {
    /// The request is charged in this gateway, to the gateway's share of the limit.
    Local,
    /// The request is let through without a charge.
    Allow,
    /// The request is refused with status 503.
    Deny,
}

impl OnStoreFailure {
    pub const ALL: [OnStoreFailure; 3] = [OnStoreFailure::Local, OnStoreFailure::Allow, OnStoreFailure::Deny];

    /// Returns the name of the treatment in gateway.yaml and in metrics.
    pub fn name(self) -> &'static str {
        match self {
            OnStoreFailure::Local => "local",
            OnStoreFailure::Allow => "allow",
            OnStoreFailure::Deny => "deny",
        }
    }
}

/// The cost of a request: fixed, or named by the request itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Price {
    Fixed(Cost),
    /// The request names its own cost, within bounds.
    FromRequest {
        /// The header or query parameter with the cost.
        attribute: Attribute,
        /// The cost of a request that names no cost, or whose cost is not a positive decimal.
        default: Cost,
        min: Cost,
        max: Option<Cost>,
    },
    /// The cost is known when the request has ended. The limit's algorithm is a budget.
    Settled(SettledPrice),
}

impl Price {
    /// Returns the attributes of a request that name its cost, or what is reserved for the request.
    pub fn attributes(&self) -> impl Iterator<Item = &Attribute> {
        let (of_request, settled) = match self {
            Price::Fixed(_) => (None, None),
            Price::FromRequest { attribute, .. } => (Some(attribute), None),
            Price::Settled(price) => (None, Some(price.reserve.attributes())),
        };
        of_request.into_iter().chain(settled.into_iter().flatten())
    }

    /// Returns the smallest cost of a request. For a budget, the smallest amount that a request reserves.
    pub fn least(&self) -> Cost {
        match self {
            Price::Fixed(cost) => *cost,
            Price::FromRequest { default, min, .. } => *default.min(min),
            Price::Settled(price) => price.reserve.least(),
        }
    }
}
