//! Defines policies and rules after compilation. Each attribute has a [`Slot`], its index in a list.

use smallvec::SmallVec;

use super::denier::DenierId;
use super::index::Index;
use super::rule::{Condition, LimitKey, Mode};
use super::ruling::PolicyId;
use base::time::Timestamp;
use ledger::charge::LimitId;
use request::matcher::Expectation;

/// The index of an attribute in the list of attributes that the rules or the routes read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot(pub usize);

/// A condition, with the slot (index) of its attribute.
#[derive(Clone, Debug)]
pub(crate) struct CompiledCondition {
    pub slot: Slot,
    pub condition: Condition,
}

/// A policy, compiled: its attributes are replaced by their indexes, the slots.
#[derive(Clone, Debug)]
pub(crate) struct CompiledPolicy {
    pub id: PolicyId,
    pub conditions: Vec<CompiledCondition>,
    pub mode: Mode,
    /// The denier that is reported when the policy's `otherwise` denies a request. `None` if `otherwise` is `allow`.
    pub denies_unmatched: Option<DenierId>,
    pub rules: Vec<CompiledRule>,
    /// Finds the rules that may apply to a request. `None` if there are too few rules for an index.
    pub index: Option<Index>,
}

/// A rule, compiled: its attributes and limits are replaced by their indexes in the rule set.
#[derive(Clone, Debug)]
pub(crate) struct CompiledRule {
    /// The index of the rule in its policy.
    pub index: usize,
    pub conditions: Vec<CompiledCondition>,
    /// The limit keys, sorted by their printed names as in a bucket's identity.
    pub keys: Vec<CompiledKey>,
    pub mode: Mode,
    pub action: CompiledAction,
    pub until: Option<Timestamp>,
}

/// A limit key, compiled: each of its alternative attributes is replaced by a [`Slot`].
#[derive(Clone, Debug)]
pub(crate) struct CompiledKey {
    pub key: LimitKey,
    /// The alternatives of the limit key: the slot (index) of each attribute, and how its value is folded.
    pub parts: SmallVec<[Slot; 1]>,
}

/// The effect of a rule on a request to which the rule applies.
#[derive(Clone, Debug)]
pub(crate) enum CompiledAction {
    Allow,
    Deny(DenierId),
    Charge(Vec<LimitId>),
}

/// Returns the slot (index) of the attribute and the expected value of each condition, as an index takes them.
pub(crate) fn conditions_of(conditions: &[CompiledCondition]) -> impl Iterator<Item = (usize, &Expectation)> {
    conditions.iter().map(|condition| (condition.slot.0, &condition.condition.expectation))
}
