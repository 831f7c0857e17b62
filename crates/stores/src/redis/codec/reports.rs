//! Encodes the reports of a call, and decodes which of them were accepted. A report says how much its owner holds of a
//! bucket and has settled of a budget.

use redis::Value;

use super::{Tables, add, add_amount};
use crate::error::StoreError;
use crate::remote::transport::ReportResult;
use base::time::Timestamp;
use ledger::algorithm::{Algorithm, State};
use ledger::holds::{self, BucketReport, MOST_HELD, Resets, SettledSums};

/// The reports in a call: how much its connection holds of each bucket.
#[derive(Debug)]
pub(super) struct Reports<'p> {
    call: &'p holds::Call,
    /// The first reports are about buckets of the call's requests. Each has two indices here: the index of its bucket
    /// in the list of keys, and the index of its limit in the list of limits.
    places: Vec<(usize, usize)>,
    /// The other reports are about buckets that no request of the call charges. This is the index of the first such
    /// bucket in the list of keys. They are the last keys, in the order of the reports.
    pub first_other: usize,
    /// For each report about a bucket that no request charges, the index of its limit in the list of limits.
    limits: Vec<usize>,
}

impl<'p> Reports<'p> {
    /// Adds the keys and limits of the reports to the tables, which contain the keys of the requests.
    pub(super) fn new(call: &'p holds::Call, tables: &mut Tables) -> Reports<'p> {
        let first_other = tables.keys.len();
        let of_requests = |report: &&BucketReport| tables.indices.contains_key(&report.bucket);
        let count = call.reports.iter().take_while(of_requests).count();
        let (of_requests, others) = call.reports.split_at(count);
        let place = |report: &BucketReport| (tables.key(&report.bucket), tables.limit(&report.limit));
        let places = of_requests.iter().map(place).collect();
        // A request can only ask for a ban of such a bucket. Even so, the bucket has another key here, because the script
        // takes the last keys in the order of the reports.
        let limit = |report: &BucketReport| {
            tables.keys.push(report.bucket);
            tables.limit(&report.limit)
        };
        let limits = others.iter().map(limit).collect();
        Reports { call, places, first_other, limits }
    }

    /// Returns the reports in the encoding that `take.lua` describes.
    pub(super) fn text(&self) -> Vec<u8> {
        let Reports { call: holds::Call { owner, sequence, life, reports }, places, first_other, limits } = self;
        let (of_requests, others) = reports.split_at(places.len().min(reports.len()));
        let mut text = Vec::with_capacity(28 + 10 * of_requests.len());
        add_amount(&mut text, owner.0);
        add_short_amount(&mut text, *sequence);
        add(&mut text, [of_requests.len()]);
        if owner.is_timed() {
            add_short_amount(&mut text, life.0);
        }
        for (report, (key, limit)) in of_requests.iter().zip(places) {
            // Lua counts from 1.
            add(&mut text, [key + 1, limit + 1]);
            add_amounts(&mut text, report);
        }
        if !others.is_empty() {
            add(&mut text, [first_other + 1]);
        }
        let others: Vec<(&BucketReport, &usize)> = others.iter().zip(limits).collect();
        let is_same = |(one, limit): &(&BucketReport, &usize), (other, other_limit): &(&BucketReport, &usize)| {
            limit == other_limit && (one.held, one.settled) == (other.held, other.settled)
        };
        for run in others.chunk_by(is_same) {
            for (report, limit) in run.iter().take(1) {
                add(&mut text, [run.len(), **limit + 1]);
                add_amounts(&mut text, report);
            }
        }
        text
    }

    /// Applies the reports about the requests' buckets to the states of these buckets. `found` are the buckets in the
    /// reply. Returns the result of each of these reports.
    pub(super) fn accept(
        &self,
        limits: &[Algorithm],
        found: &[Value],
        states: &mut [Option<State>],
        now: Timestamp,
    ) -> Vec<ReportResult> {
        let accept = |(report, (key, limit)): (&BucketReport, &(usize, usize))| {
            if found.get(*key) == Some(&OUTSIDE_PERIOD) {
                return ReportResult::OutsidePeriod;
            }
            let (Some(state), Some(limit)) = (states.get_mut(*key), limits.get(*limit)) else {
                return ReportResult::Old;
            };
            match limit.accept(state.as_deref(), self.call.report(report), now) {
                Some(entry) => {
                    *state = Some(entry.state);
                    ReportResult::Accepted
                }
                None => ReportResult::Old,
            }
        };
        self.call.reports.iter().zip(&self.places).map(accept).collect()
    }
}

/// The value in the reply for a bucket that was not read. The call named another period than the present one for the
/// limit of the bucket's report.
pub(super) const OUTSIDE_PERIOD: Value = Value::Int(-1);

/// Decodes the results of the reports about buckets of no request. If the server had no memory to write them, none was
/// accepted.
///
/// # Errors
///
/// [`StoreError::UnexpectedReply`] for a reply that the script cannot have given.
pub(super) fn results_of_others(replies: &[Value], is_unwritten: bool) -> Result<Vec<ReportResult>, StoreError> {
    let result = |reply: &Value| match reply {
        _ if is_unwritten => Ok(ReportResult::Old),
        Value::Int(1) => Ok(ReportResult::Accepted),
        Value::Int(2) => Ok(ReportResult::SettledBefore),
        Value::Int(0) => Ok(ReportResult::Old),
        reply if *reply == OUTSIDE_PERIOD => Ok(ReportResult::OutsidePeriod),
        _ => Err(StoreError::UnexpectedReply),
    };
    replies.iter().map(result).collect()
}

/// Appends what the owner holds, has settled and has reset.
fn add_amounts(text: &mut Vec<u8>, report: &BucketReport) {
    add_short_amount(text, report.held.min(MOST_HELD).thousandths());
    if let Algorithm::Budget(budget) = report.limit {
        let SettledSums { from, to, resets: Resets { accepted, count, sum } } = report.settled;
        [from, to].into_iter().for_each(|sum| add_amount(text, sum.thousandths()));
        if budget.resets() {
            [accepted, count, sum.thousandths()].into_iter().for_each(|number| add_amount(text, number));
        }
    }
}

/// Appends an amount below 2^48 in six bytes.
fn add_short_amount(text: &mut Vec<u8>, amount: u64) {
    text.extend(amount.to_le_bytes().into_iter().take(6));
}
