//! Counts what one file decided about the requests of a log.

use std::collections::HashMap;

use super::open_question::{OpenPart, OpenQuestion};
use super::result::{Cause, SimulatedResult};
use ledger::charge::LimitId;
use ledger::outcome::Outcome;
use request::attribute::Attribute;
use rules::rule::RuleSource;

/// The counts of one file.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    pub allowed: u64,
    pub refused: u64,
    pub undecided: u64,
    /// The number of refused requests that would be undecided if a rule that could be decided had not refused them.
    pub refused_anyway: u64,
    pub causes: HashMap<Cause, u64>,
    pub shadows: HashMap<LimitId, ShadowCount>,
    pub open: HashMap<OpenQuestion, OpenCount>,
    /// The attributes that logs lack and that the open questions depend on, including those that no request has needed so far.
    pub lacking: Vec<Attribute>,
    /// For each attribute, the number of requests that lack it although the log would have recorded it.
    pub missing: HashMap<Attribute, u64>,
    /// The number of requests that followed the rule named by the log, for each policy by its index.
    pub as_logged: HashMap<usize, u64>,
}

/// The number of times that a shadow was checked, and the number of times that it would have refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShadowCount {
    pub asked: u64,
    pub would_refuse: u64,
}

/// The number of requests that left a question open, and the attributes that they lack.
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

    /// Notes the attributes that the request lacks and that decide its open questions, for the first request of each question.
    /// `lacks` says whether the request lacks an attribute.
    pub(crate) fn note_lacking(
        &mut self,
        rules: &RuleSource,
        open: &[OpenPart<'_>],
        lacks: impl Fn(&Attribute) -> bool,
    ) {
        for part in open.iter().filter(|part| !self.open.contains_key(&part.question)) {
            for attribute in part.readable(rules).filter(|attribute| lacks(attribute)) {
                // Other attributes of a claim are read from it.
                let field = match attribute {
                    Attribute::Words(claim) | Attribute::ClaimedAmount(claim) => Attribute::Claim(claim.clone()),
                    other => other.clone(),
                };
                if !self.lacking.contains(&field) {
                    self.lacking.push(field);
                }
            }
        }
    }

    pub(crate) fn count_shadow(&mut self, limit: LimitId, outcome: &Outcome) {
        let count = self.shadows.entry(limit).or_default();
        count.asked += 1;
        count.would_refuse += u64::from(outcome.verdict.is_refusal());
    }
}
