//! Makes the two calls of a timed hold: one that takes, and one that settles.

use super::holdings::{BucketReport, Call};
use super::report::{LONGEST_HOLD, Owner, SETTLE, SettledSums};
use crate::algorithm::Algorithm;
use crate::bucket_key::BucketKey;
use crate::charge::Plan;
use crate::cost::Cost;
use base::time::Micros;

/// The sequence of the call that takes.
const TAKE: u64 = 1;

/// What one take holds of buckets, for a time that is known beforehand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimedHold {
    pub owner: Owner,
    /// How long the hold lasts from the take, by the clock of the store. At most [`LONGEST_HOLD`].
    pub life: Micros,
}

/// The cost that a timed hold settles of one bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimedHoldCost {
    pub bucket: BucketKey,
    pub limit: Algorithm,
    /// Zero for slots.
    pub cost: Cost,
}

impl TimedHold {
    /// Returns the hold for this plan: no longer than `max_hold` of its limits.
    #[must_use]
    pub fn within(&self, plan: &Plan) -> TimedHold {
        let longest = plan.asks().filter_map(|(_, charge, _)| charge.algorithm.max_hold());
        TimedHold { life: longest.fold(self.life, Micros::min), ..*self }
    }

    /// Returns the call that takes what a plan asks for.
    pub fn take(&self, plan: &Plan) -> Call {
        let mut reports: Vec<BucketReport> = Vec::new();
        for (_, charge, terms) in plan.asks() {
            match reports.iter_mut().find(|report| report.bucket == charge.key) {
                Some(report) => report.asked = report.asked.plus(terms.amount),
                None => reports.push(report(charge.key, charge.algorithm, SettledSums::default(), terms.amount)),
            }
        }
        Call { owner: self.owner, sequence: TAKE, life: self.life.min(LONGEST_HOLD), reports }
    }

    /// Returns the call that settles these costs, one for each bucket.
    pub fn settle(owner: Owner, costs: &[TimedHoldCost]) -> Call {
        let settled = |one: &TimedHoldCost| {
            let sums = SettledSums { to: one.cost, ..SettledSums::default() };
            report(one.bucket, one.limit, sums, Cost::default())
        };
        Call { owner, sequence: SETTLE, life: Micros(0), reports: costs.iter().map(settled).collect() }
    }
}

fn report(bucket: BucketKey, limit: Algorithm, settled: SettledSums, asked: Cost) -> BucketReport {
    BucketReport { bucket, limit, held: Cost::default(), settled, asked }
}
