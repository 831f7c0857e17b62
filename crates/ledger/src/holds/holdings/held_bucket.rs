//! Defines what an owner keeps of one bucket.

use smallvec::SmallVec;

use crate::cost::Cost;
use crate::holds::report::SettledSums;
use base::time::Timestamp;

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
    /// The sum of the settled costs, and the largest such sum that the store has accepted.
    pub settled: SettledSums,
    /// How many calls have had a report about this bucket, without those that are proved not to have run.
    pub reported: ReportCount,
    pub turn: Turn,
}

/// A number of calls: none, one, or more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum ReportCount {
    None,
    One,
    More,
}

/// The time of the next report about a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Turn {
    /// The bucket waits for a report in the next call, at this place in `waiting`.
    Waiting(u64),
    Due(Timestamp),
}

impl HeldBucket {
    /// Returns the amount in the next report.
    pub(super) fn said(&self) -> Cost {
        self.held.plus(self.unanswered())
    }

    pub(super) fn unanswered(&self) -> Cost {
        self.asked.iter().fold(Cost::default(), |sum, (_, amount)| sum.plus(*amount))
    }

    /// Returns whether nothing is held, asked for or to be settled.
    pub(super) fn is_idle(&self) -> bool {
        self.held == Cost::default() && self.asked.is_empty() && self.settled.from == self.settled.to
    }

    /// Returns whether the store counts exactly what is held, and has charged all that is settled.
    pub(super) fn is_known(&self) -> bool {
        self.acknowledged == Some(self.held) && self.settled.from == self.settled.to
    }

    pub(super) fn is_known_to_be_idle(&self) -> bool {
        self.is_idle() && self.is_known()
    }

    /// Counts a report to the store.
    pub(super) fn count_report(&mut self) {
        self.reported = if self.reported == ReportCount::None { ReportCount::One } else { ReportCount::More };
    }

    /// Joins the amounts that were asked for in calls up to this sequence to one amount.
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
