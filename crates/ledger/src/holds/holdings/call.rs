//! Defines a call of an owner, its reports, and the store's answers to them.

use crate::algorithm::Algorithm;
#[cfg(doc)]
use crate::algorithm::concurrency::Concurrency;
use crate::bucket_key::BucketKey;
use crate::cost::Cost;
use crate::holds::report::{Owner, Report, SettledSums};
use crate::holds::slots::SlotTerms;
use base::time::Micros;

/// A call of an owner to the store. It says how much the owner holds of several buckets, and asks for more.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Call {
    pub owner: Owner,
    pub sequence: u64,
    /// How long the reports count: [`LIFE`](super::super::LIFE), or the time of a timed hold.
    pub life: Micros,
    /// One report for each bucket. The buckets of which the call asks something come first.
    pub reports: Vec<BucketReport>,
}

/// What a call says about one bucket, and how much it asks of this bucket.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BucketReport {
    pub bucket: BucketKey,
    /// The limit of the first ask about the bucket. If nothing is asked, this is the last limit of the budget, or
    /// [`Concurrency::MOST`] for slots.
    pub limit: Algorithm,
    pub held: Cost,
    /// The costs that the owner has settled of this bucket.
    pub settled: SettledSums,
    /// The amount that all requests of the call ask for, in addition to `held`.
    pub asked: Cost,
}

impl Call {
    /// Returns the report that the call sends to the store about a bucket.
    pub fn report(&self, about: &BucketReport) -> Report {
        let Call { owner, sequence, life, .. } = *self;
        Report { owner, sequence, held: about.held, settled: about.settled, life }
    }
}

/// The store's answer to a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportAnswer<'g> {
    /// The report was accepted. These slots were granted in the same call.
    Accepted { granted: &'g [SlotTerms] },
    /// The store has ignored the report, because it was not newer than the owner's last report.
    Old,
    /// The call named a calendar period that does not contain the store's time, so the store has not read the report.
    /// The requests that asked for the bucket can be sent again.
    OutsidePeriod,
}
