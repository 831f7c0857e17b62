//! Describes the decision of the rules about one request.

use smallvec::SmallVec;

use super::charge::{Charge, Plan};
use super::claimed_numbers::ClaimResults;
use super::denier::{DenierId, DenierIds};

/// What the rules decide about a request, before any bucket is asked.
#[derive(Clone, Debug)]
pub struct Ruling {
    pub answer: Answer,
    /// A rule that allows, an override without a limit or `exempt` applied. Other policies may limit the request all the same.
    pub is_unlimited: bool,
    /// The policies that let the request pass because none of their rules applied.
    pub unmatched: SmallVec<[PolicyId; 2]>,
    /// The shadows that would have denied the request. Empty if it was denied: shadows see what is let pass.
    pub shadow_denials: DenierIds,
    /// What was read for numbers that the request brings. Empty if it pays nothing.
    pub claims: ClaimResults,
}

/// The part of a [`Ruling`] that decides.
#[derive(Clone, Debug)]
pub enum Answer {
    /// A rule, or a policy's `otherwise`, refuses outright.
    Denied(DenierId),
    /// Pays nothing anywhere.
    Exempt,
    /// A limit can never meet its cost. The plan has the limits that were asked; the store is not asked.
    TooLarge(Plan),
    /// The charges to pay; the plan is empty if no limit applies.
    Charge(Plan),
}

impl Answer {
    /// The answer to a request that is to pay this.
    pub fn for_plan(plan: Plan) -> Answer {
        match plan.enforced.iter().any(Charge::is_too_large) {
            true => Answer::TooLarge(plan),
            false => Answer::Charge(plan),
        }
    }
}

/// The index of a policy in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PolicyId(pub u32);
