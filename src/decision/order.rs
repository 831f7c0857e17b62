//! The order in which the stages of a decision answer a request; the first stage that has an answer ends it.
//!
//! 1. A malformed head: the HTTP server answers it, before there is a request ([`Refusal::bad_request`]).
//! 2. A request with more than one reading: [`check_reading`].
//! 3. Credentials that do not verify, the token first: [`super::credentials`].
//! 4. A `deny`, then 5. a cost that a limit can never meet: [`RulesDecision`].
//! 6. The limits: [`super::refusing_limits`], or [`super::store_failure`] if the store gave no answer.
//! 7. The upstream.

use super::refusal::Refusal;
use crate::limit::charge::Plan;
use crate::limit::request::Request;
use crate::limit::rule_set::{Answer, RuleSet};

/// Refuses a request that could be read in more than one way. An ambiguous request is neither verified nor planned.
///
/// # Errors
/// Returns the refusal.
pub fn check_reading(rules: &RuleSet, request: &Request<'_>) -> Result<(), Refusal> {
    rules.read(request).map_err(Refusal::ambiguous)
}

/// What the rules decide about a request before any bucket is asked.
#[derive(Clone, Debug)]
pub enum RulesDecision {
    Refused {
        refusal: Refusal,
        /// The limits that were asked; `None` after a `deny`, which asks none.
        plan: Option<Plan>,
    },
    /// The request is exempt: it pays nothing.
    Exempt,
    /// No limit applies.
    Unlimited,
    /// The buckets of this plan decide; it is not empty.
    Charge(Plan),
}

impl From<Answer> for RulesDecision {
    fn from(answer: Answer) -> RulesDecision {
        match answer {
            Answer::Denied => RulesDecision::Refused { refusal: Refusal::denied(), plan: None },
            Answer::Exempt => RulesDecision::Exempt,
            Answer::TooLarge(plan) => RulesDecision::Refused { refusal: Refusal::cost_too_large(), plan: Some(plan) },
            Answer::Charge(plan) if plan.is_empty() => RulesDecision::Unlimited,
            Answer::Charge(plan) => RulesDecision::Charge(plan),
        }
    }
}
