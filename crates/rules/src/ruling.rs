//! Defines the decision of the rules about one request.

use smallvec::SmallVec;

use super::claimed_numbers::ClaimResults;
use super::denier::{DenierId, DenierIds};
use ledger::charge::{Charge, LimitId, Plan};

/// The decision of the rules about a request, before any bucket is charged.
#[derive(Clone, Debug)]
pub struct Ruling {
    pub answer: Answer,
    /// Whether a rule with `action: allow`, an unlimited override or `exempt` applied. Other policies may still limit
    /// the request.
    pub is_unlimited: bool,
    /// The policies that let the request pass, because none of their rules applied.
    pub unmatched: SmallVec<[PolicyId; 2]>,
    /// The rules and policies in shadow mode (dry runs) that would have denied the request. Empty if the request was
    /// denied.
    pub shadow_denials: DenierIds,
    /// The results of reading settings of limits from the request's credentials. Empty if the request pays nothing.
    pub claims: ClaimResults,
    /// The concurrency limits and budgets that do not apply, because another proxy forwards the request. Empty if the
    /// request pays nothing.
    pub not_at_door: SmallVec<[LimitId; 0]>,
}

/// What happens to the request: denied, exempt, or charged.
#[derive(Clone, Debug)]
pub enum Answer {
    /// A rule, or the `otherwise` of a policy, denies the request.
    Denied(DenierId),
    /// The request is exempt and pays nothing.
    Exempt,
    /// The cost is larger than a full bucket of a limit, so the store is not asked. The plan has the charges that were
    /// checked.
    TooLarge(Plan),
    /// The request has to pay the charges of this plan. The plan is empty if no limit applies.
    Charge(Plan),
}

impl Answer {
    /// Returns the answer for a request that has to pay this plan.
    pub(crate) fn for_plan(plan: Plan) -> Answer {
        match plan.enforced.iter().any(Charge::is_too_large) {
            true => Answer::TooLarge(plan),
            false => Answer::Charge(plan),
        }
    }
}

/// The index of a policy in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PolicyId(pub u32);

#[cfg(test)]
mod tests {
    use super::*;
    use ledger::cost::Cost;

    fn plan(charges: impl IntoIterator<Item = Charge>) -> Plan {
        let mut plan = Plan::default();
        charges.into_iter().for_each(|charge| plan.enforce(charge));
        plan
    }

    #[test]
    fn a_sum_that_a_bucket_can_never_hold_is_too_large() {
        assert!(matches!(
            Answer::for_plan(plan([Charge::of_token_bucket(1, 5, 3), Charge::of_token_bucket(1, 5, 2)])),
            Answer::Charge(_)
        ));
        assert!(matches!(
            Answer::for_plan(plan([Charge::of_token_bucket(1, 5, 3), Charge::of_token_bucket(1, 9, 3)])),
            Answer::TooLarge(_)
        ));
        assert!(matches!(
            Answer::for_plan(plan([Charge::of_token_bucket(1, 5, 3), Charge::of_token_bucket(2, 5, 3)])),
            Answer::Charge(_)
        ));
        let saturated = Charge { cost: Cost::from_thousandths(u64::MAX), ..Charge::of_token_bucket(1, 5, 1) };
        assert!(matches!(Answer::for_plan(plan([saturated, Charge::of_token_bucket(1, 5, 1)])), Answer::TooLarge(_)));
    }
}
