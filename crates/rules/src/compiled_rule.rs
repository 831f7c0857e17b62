//! Policies and rules, compiled: each attribute that they read has a slot.

use smallvec::SmallVec;

use super::denier::DenierId;
use super::index::Index;
use super::rule::{Condition, Fold, LimitKey, Mode};
use super::ruling::PolicyId;
use base::time::Timestamp;
use ledger::charge::LimitId;
use request::matcher::Expectation;

/// The index of an attribute among those that the file reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot(pub usize);

/// One condition.
#[derive(Clone, Debug)]
pub(crate) struct CompiledCondition {
    pub slot: Slot,
    pub condition: Condition,
}

/// A policy, with its rules.
#[derive(Clone, Debug)]
pub(crate) struct CompiledPolicy {
    pub id: PolicyId,
    pub conditions: Vec<CompiledCondition>,
    pub mode: Mode,
    /// The denier for the policy's `otherwise`, if that is `deny`.
    pub denies_unmatched: Option<DenierId>,
    pub rules: Vec<CompiledRule>,
    /// Finds the rules that may apply; `None` if there are few rules.
    pub index: Option<Index>,
}

/// A rule, with its limits.
#[derive(Clone, Debug)]
pub(crate) struct CompiledRule {
    /// The index of the rule in its policy.
    pub index: usize,
    pub conditions: Vec<CompiledCondition>,
    /// The limit keys in the order of their printed names, which is their order in a bucket's identity.
    pub keys: Vec<CompiledKey>,
    pub mode: Mode,
    pub action: CompiledAction,
    pub until: Option<Timestamp>,
}

/// A limit key, compiled.
#[derive(Clone, Debug)]
pub(crate) struct CompiledKey {
    pub key: LimitKey,
    /// The alternatives of the limit key, each with the folding of its value.
    pub parts: SmallVec<[(Slot, Fold); 1]>,
}

/// The effect of a rule that applies.
#[derive(Clone, Debug)]
pub(crate) enum CompiledAction {
    Allow,
    Deny(DenierId),
    Charge(Vec<LimitId>),
}

/// The conditions of a rule or policy, in the form that an index takes.
pub(crate) fn conditions_of(conditions: &[CompiledCondition]) -> impl Iterator<Item = (usize, &Expectation)> {
    conditions.iter().map(|condition| (condition.slot.0, &condition.condition.expectation))
}
