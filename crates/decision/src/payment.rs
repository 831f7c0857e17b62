//! Holds what became of a request's plan: the outcome of each limit, and the limit that decided.

use smallvec::SmallVec;

use super::ratelimit_numbers::ceiling;
use super::speaking_limit::speaker_index;
use base::time::Timestamp;
use ledger::charge::{Charge, Plan, Settlement};
use ledger::outcome::{Outcome, Verdict, most_restrictive};
use rules::rule::OnStoreFailure;
use rules::rule_set::{CompiledLimit, RuleSet};
use stores::Source;

/// The plan of a request, with the result of charging it.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "it is made once for a request, and a box would be an allocation more")]
pub enum Payment {
    Settled {
        plan: Plan,
        settlement: Settlement,
        source: Source,
        /// The time of the decision on the store's clock.
        now: Timestamp,
    },
    /// The cost is more than a limit can ever hold, so the store was not asked.
    TooLarge(Plan),
    /// The store gave no answer, and a limit has `on_store_failure: deny`.
    StoreUnavailable(Plan),
}

/// The result of one limit in the plan of a request.
#[derive(Clone, Copy, Debug)]
pub struct LimitAnswer<'a> {
    pub charge: &'a Charge,
    pub limit: &'a CompiledLimit,
    pub verdict: Verdict,
    /// The outcome. `None` if the amount that is left in the bucket is unknown.
    pub outcome: Option<Outcome>,
}

impl Payment {
    pub fn plan(&self) -> &Plan {
        match self {
            Payment::Settled { plan, .. } | Payment::TooLarge(plan) | Payment::StoreUnavailable(plan) => plan,
        }
    }

    /// Returns the results of all limits in the plan, the enforced limits first. A limit in shadow mode is left out if
    /// it was not checked.
    pub fn answers<'a>(&'a self, rules: &'a RuleSet) -> SmallVec<[LimitAnswer<'a>; 2]> {
        let (enforced, shadow): (&[Outcome], &[Outcome]) = match self {
            Payment::Settled { settlement, .. } => (&settlement.enforced, &settlement.shadow),
            Payment::TooLarge(_) | Payment::StoreUnavailable(_) => (&[], &[]),
        };
        let plan = self.plan();
        let enforced = plan.enforced.iter().enumerate().map(|(index, charge)| (charge, enforced.get(index)));
        let shadow = plan.shadow.iter().zip(shadow).map(|(charge, outcome)| (charge, Some(outcome)));
        enforced.chain(shadow).filter_map(|(charge, outcome)| self.answer(rules, charge, outcome)).collect()
    }

    fn answer<'a>(&self, rules: &'a RuleSet, charge: &'a Charge, outcome: Option<&Outcome>) -> Option<LimitAnswer<'a>> {
        let verdict = match (outcome, self) {
            (Some(outcome), _) => outcome.verdict,
            (None, Payment::TooLarge(_)) if charge.is_too_large() => Verdict::Never,
            (None, _) => Verdict::Unasked,
        };
        let outcome = outcome.copied().filter(|outcome| outcome.verdict != Verdict::Unasked);
        Some(LimitAnswer { charge, limit: rules.limit(charge.limit)?, verdict, outcome })
    }

    /// Returns the index in `answers` (of [`Payment::answers`]) of the enforced limit that decided: the limit that
    /// refused the request, or the most restrictive limit of a granted request. `None` if no limit is enforced, or if all were
    /// only asked for a ban.
    pub fn deciding(&self, answers: &[LimitAnswer<'_>]) -> Option<usize> {
        let enforced = answers.get(..self.plan().enforced.len()).unwrap_or(answers);
        let index = match self {
            Payment::StoreUnavailable(_) => {
                enforced.iter().position(|answer| answer.limit.on_store_failure == OnStoreFailure::Deny)
            }
            Payment::TooLarge(_) => enforced.iter().position(|answer| answer.verdict == Verdict::Never),
            Payment::Settled { plan, settlement, .. } if !settlement.is_granted() => {
                speaker_index(&plan.enforced, settlement)
            }
            Payment::Settled { .. } => most_restrictive(
                enforced.iter().enumerate().filter(|(_, answer)| !answer.charge.only_asks_for_ban()).filter_map(
                    |(index, answer)| Some((index, answer.outcome?, ceiling(answer.charge, answer.outcome.as_ref()?))),
                ),
            )
            .map(|(index, _)| index),
        };
        index.or_else(|| enforced.iter().position(|answer| !answer.charge.only_asks_for_ban()))
    }
}
