//! Makes the call of a timed hold, and reads its answer.
//!
//! A timed hold is an owner of its own, so its call has only its own reports. Nothing of it is kept here.

use smallvec::{SmallVec, smallvec};

use super::Connection;
use super::call::HeldByPlans;
use super::call_parts::CallParts;
use crate::error::Fault;
use crate::remote::holds::{HoldResult, OldReport};
use crate::remote::queue::Route;
use crate::remote::transport::{CallPart, CallReply, PartReply, ReportResult, Transport};
use crate::reservation::Reservation;
use crate::timed_settlement::TimedSettlement;
use ledger::charge::{Plan, Settlement};
use ledger::holds::Call;
use ledger::outcome::{Outcome, Verdict};

impl<T: Transport> Connection<T> {
    /// Makes the only part of the call of a timed hold.
    pub(super) fn timed_parts<'p>(&self, plans: &'p [&'p Plan], reports: Call, route: Route) -> CallParts<'p> {
        let index = match reports.reports.first() {
            Some(report) if T::CALLS.parted => self.transport.part_of(&report.bucket),
            _ => 0,
        };
        smallvec![CallPart { index, plans, route, reports: Some(reports) }]
    }
}

/// Returns for each part of the call of a timed hold whether its reports were accepted. If the call named another calendar period
/// than the present one, it is left without a settlement, so that it is sent again.
pub(super) fn conclude(parts: &[CallPart<'_>], outcome: &mut Result<CallReply, Fault>) -> SmallVec<[HeldByPlans; 1]> {
    let Ok(replies) = outcome else { return SmallVec::new() };
    let conclude = |(part, reply): (&CallPart<'_>, &mut PartReply)| {
        let reply = reply.reply.as_mut().ok()?;
        if reply.out_of_memory || reply.reports.contains(&ReportResult::OutsidePeriod) {
            reply.settlements.fill(None);
            return None;
        }
        let settles = part.plans.iter().all(|plan| plan.is_empty());
        if settles {
            reply.settlements.fill(Some(results(&reply.reports)));
        }
        let has_run = settles || reply.reports.iter().all(|result| *result == ReportResult::Accepted);
        let held: HoldResult = if has_run { Ok(Reservation::default()) } else { Err(OldReport) };
        Some(vec![held].into_iter())
    };
    parts.iter().zip(replies).map(conclude).collect()
}

/// Returns the answer to a call that settles. Its plan is empty, so the answer has an outcome for each report instead, whose verdict
/// is the result.
fn results(reports: &[ReportResult]) -> Settlement {
    let outcome = |result: &ReportResult| {
        let verdict = match result {
            ReportResult::Accepted => Verdict::Allow,
            ReportResult::SettledBefore => Verdict::Deny,
            ReportResult::Old | ReportResult::OutsidePeriod => Verdict::Unasked,
        };
        Outcome { verdict, ..Outcome::UNASKED }
    };
    Settlement { verdict: Verdict::Allow, ..Settlement::refused(reports.iter().map(outcome).collect()) }
}

/// Reads the answer to a call that settles: the result at each bucket.
pub(in crate::remote) fn settled(answer: &Settlement) -> Vec<TimedSettlement> {
    let result = |outcome: &Outcome| match outcome.verdict {
        Verdict::Allow => TimedSettlement::Settled,
        Verdict::Deny => TimedSettlement::SettledBefore,
        Verdict::Held | Verdict::Never | Verdict::Banned | Verdict::Unasked => TimedSettlement::Ended,
    };
    answer.enforced.iter().map(result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bucket_of_a_settlement_has_its_own_result() {
        let answer = results(&[ReportResult::SettledBefore, ReportResult::Accepted, ReportResult::Old]);
        let expected = [TimedSettlement::SettledBefore, TimedSettlement::Settled, TimedSettlement::Ended];
        assert_eq!((settled(&answer), settled(&results(&[]))), (expected.to_vec(), Vec::new()));
    }
}
