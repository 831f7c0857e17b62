//! Counts the decisions of one file about the requests of a log.

use std::collections::HashMap;

use super::open_question::{OpenPart, OpenQuestion};
use super::result::{Cause, SimulatedResult};
use ledger::charge::LimitId;
use ledger::outcome::Outcome;
use request::attribute::Attribute;
use rules::rule::RuleSource;

/// The counts of what one file decides about the requests of the logs.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    pub allowed: u64,
    pub refused: u64,
    pub undecided: u64,
    /// The part of `refused` that leaves a question about an enforced rule open. A limit refuses these requests,
    /// whatever the answer.
    pub refused_anyway: u64,
    pub causes: HashMap<Cause, u64>,
    pub shadows: HashMap<LimitId, ShadowCount>,
    /// For each budget, the number of requests that it could not count, because their lines do not tell their cost.
    pub left_out: HashMap<LimitId, u64>,
    pub open: HashMap<OpenQuestion, OpenCount>,
    /// The attributes that the logs lack and that could answer the questions in `open`.
    pub lacking: Vec<Attribute>,
    /// For each attribute, the number of requests that were decided as if they lacked it, because their lines have no
    /// value.
    pub missing: HashMap<Attribute, u64>,
    /// For each policy, by its index, the requests whose rule was taken from the gateway's own log.
    pub as_logged: HashMap<usize, AsLoggedCount>,
}

/// The number of requests for which the rule that was logged is taken again, and the attributes that would choose the rule.
#[derive(Clone, Debug, Default)]
pub struct AsLoggedCount {
    pub lines: u64,
    pub lacking: Vec<Attribute>,
}

/// How often a limit in shadow mode was checked, and how often it would have refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShadowCount {
    pub asked: u64,
    pub would_refuse: u64,
}

/// The number of requests that leave a question open, and the attributes that would answer the question.
#[derive(Clone, Debug, Default)]
pub struct OpenCount {
    pub lines: u64,
    pub attributes: Vec<Attribute>,
}

impl Counts {
    pub(crate) fn count_result(&mut self, result: SimulatedResult) {
        match result {
            SimulatedResult::Allowed => self.allowed += 1,
            SimulatedResult::Refused => self.refused += 1,
            SimulatedResult::Undecided => self.undecided += 1,
        }
    }

    pub(crate) fn count_cause(&mut self, cause: Cause) {
        *self.causes.entry(cause).or_default() += 1;
    }

    pub(crate) fn count_missing(&mut self, attributes: &[&Attribute]) {
        for attribute in attributes {
            match self.missing.get_mut(*attribute) {
                Some(lines) => *lines += 1,
                None => drop(self.missing.insert((*attribute).clone(), 1)),
            }
        }
    }

    pub(crate) fn count_open(&mut self, open: &[OpenPart<'_>]) {
        for OpenPart { question, attributes, .. } in open {
            let count = self.open.entry(*question).or_default();
            count.lines += 1;
            for attribute in *attributes {
                if !count.attributes.contains(attribute) {
                    count.attributes.push((*attribute).clone());
                }
            }
        }
    }

    /// Adds to `lacking` the attributes that the request lacks and that could answer the questions in `open`. Skips
    /// questions that an earlier request has left open. `lacks` returns whether the request lacks an attribute.
    pub(crate) fn note_lacking(
        &mut self,
        rules: &RuleSource,
        open: &[OpenPart<'_>],
        lacks: impl Fn(&Attribute) -> bool,
    ) {
        for part in open.iter().filter(|part| !self.open.contains_key(&part.question)) {
            for attribute in part.readable(rules).filter(|attribute| lacks(attribute)) {
                // The words and the amount of a claim are read from the same field as the claim.
                let field = match attribute.source() {
                    Attribute::Words(claim) | Attribute::ClaimedAmount(claim) => Attribute::Claim(claim.clone()),
                    other => other.clone(),
                };
                if !self.lacking.contains(&field) {
                    self.lacking.push(field);
                }
            }
        }
    }

    /// Counts a request for which the rule of a policy was taken from the log, because attributes for these questions are lacking.
    pub(crate) fn count_as_logged(
        &mut self,
        rules: &RuleSource,
        policy: usize,
        answered: &[OpenPart<'_>],
        lacks: impl Fn(&Attribute) -> bool,
    ) {
        let count = self.as_logged.entry(policy).or_default();
        count.lines += 1;
        if count.lines > 1 {
            // Later requests lack the same attributes.
            return;
        }
        let of_policy = answered.iter().filter(|part| part.question.is_of(policy));
        for attribute in of_policy.flat_map(|part| part.readable(rules)).filter(|attribute| lacks(attribute)) {
            if !count.lacking.contains(attribute.source()) {
                count.lacking.push(attribute.source().clone());
            }
        }
    }

    pub(crate) fn count_shadow(&mut self, limit: LimitId, outcome: &Outcome) {
        let count = self.shadows.entry(limit).or_default();
        count.asked += 1;
        count.would_refuse += u64::from(outcome.verdict.is_refusal());
    }
}
