//! Defines what an owner keeps of one bucket.

use smallvec::SmallVec;

use super::NEW_SUM;
use super::turns::Turn;
use crate::algorithm::budget::Budget;
use crate::cost::Cost;
use crate::holds::report::SettledSums;

/// Whether a settled cost or a reset will be reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a lost cost should be counted"]
pub enum SettledCost {
    /// The next report about the bucket includes it.
    Kept,
    /// The costs and resets of too many buckets wait for the store, so this one is lost.
    Lost,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct HeldBucket {
    /// The amount held by slots.
    pub held: Cost,
    /// The amounts asked for in calls without an answer, with the sequences of these calls.
    pub asked: SmallVec<[(u64, Cost); 1]>,
    /// The sequence of the newest call whose report about this bucket was accepted.
    pub newest: u64,
    /// The amount that the store counts since the call `newest`. `None` if this amount is unknown.
    pub acknowledged: Option<Cost>,
    /// What is settled, if the bucket belongs to a budget. `None` for slots, of which nothing is settled.
    pub budget: Option<Box<HeldBudget>>,
    /// How many calls have had a report about this bucket, without those that are proved not to have run.
    pub reported: ReportCount,
    pub turn: Turn,
}

/// What an owner keeps in addition if the bucket belongs to a budget.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct HeldBudget {
    /// The limit that was asked or held last.
    pub limit: Budget,
    /// The sum of the settled costs, and the largest such sum that the store has accepted.
    pub settled: SettledSums,
    /// The part of the settled sum that decisions without the store have counted already. It ends at the last reset or
    /// later.
    pub counted: Cost,
    /// The number of slots that have not ended. Some of them may hold nothing, but all of them end with a cost.
    pub slots: usize,
    /// The sequence of the owner's last call when the owner began to keep the bucket.
    pub began: u64,
    /// Whether the store has accepted a report since `began`. Until then the reports give 0 as the sum, because the
    /// store may know an older sum.
    pub has_begun: bool,
}

/// A number of calls: none, one, or more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum ReportCount {
    None,
    One,
    More,
}

impl HeldBucket {
    /// Returns the held amount in the next report. Until the store has accepted a first report, the reports give no
    /// settled sum, and settled costs count as held.
    pub(super) fn said(&self) -> Cost {
        let unsaid = self.budget.as_ref().filter(|budget| !budget.has_begun);
        let unsaid = unsaid.map_or(Cost::default(), |budget| budget.settled.to.less(budget.settled.resets.sum));
        self.held.plus(self.unanswered()).plus(unsaid)
    }

    pub(super) fn unanswered(&self) -> Cost {
        self.asked.iter().fold(Cost::default(), |sum, (_, amount)| sum.plus(*amount))
    }

    /// Returns the sums in the next report. They are zero for slots.
    pub(super) fn settled(&self) -> SettledSums {
        let begun = self.budget.as_ref().filter(|budget| budget.has_begun);
        begun.map_or(SettledSums::default(), |budget| budget.settled)
    }

    /// Returns whether nothing is held, asked for or to be settled, now or when a slot ends.
    pub(super) fn is_idle(&self) -> bool {
        let has_slots = self.budget.as_ref().is_some_and(|budget| budget.slots > 0);
        self.held == Cost::default() && self.asked.is_empty() && !has_slots && self.has_charged_all()
    }

    /// Returns whether the store counts exactly what is held, and has charged all that is settled.
    pub(super) fn is_known(&self) -> bool {
        self.acknowledged == Some(self.held) && self.has_charged_all()
    }

    /// Returns whether the store has charged all that is settled, and has accepted all resets.
    pub(super) fn has_charged_all(&self) -> bool {
        self.budget.as_ref().is_none_or(|budget| budget.settled.are_accepted())
    }

    /// Begins a new sum if the store has charged all that is settled, and the sum is large. The next report says 0, as if
    /// the owner had forgotten its sum. `sequence` is that of the owner's last call.
    pub(super) fn begin_new_sum(&mut self, sequence: u64) {
        if let Some(budget) = &mut self.budget
            && budget.settled.are_accepted()
            && budget.settled.to >= NEW_SUM
        {
            (budget.settled, budget.counted) = (SettledSums::default(), Cost::default());
            (budget.began, budget.has_begun) = (sequence, false);
        }
    }

    pub(super) fn is_known_to_be_idle(&self) -> bool {
        self.is_idle() && self.is_known()
    }

    /// Counts a report to the store.
    pub(super) fn count_report(&mut self) {
        self.reported = if self.reported == ReportCount::None { ReportCount::One } else { ReportCount::More };
    }

    /// Merges the amounts asked for in calls up to this sequence into one.
    pub(super) fn join_asked(&mut self, sequence: u64) {
        let later: SmallVec<[(u64, Cost); 1]> =
            self.asked.iter().filter(|(call, _)| *call > sequence).copied().collect();
        let earlier = self.asked.iter().filter(|(call, _)| *call <= sequence);
        let sum = earlier.fold(Cost::default(), |sum, (_, amount)| sum.plus(*amount));
        if self.asked.len() > later.len() + 1 {
            self.asked = std::iter::once((sequence, sum)).chain(later).collect();
        }
    }
}
