//! Encodes the reports of a call, which say how much its owner holds of several buckets, and decodes which of them were
//! accepted.

use std::collections::HashMap;

use redis::Value;

use super::{Run, Tables, add, add_amount};
use crate::error::StoreError;
use base::time::Timestamp;
use ledger::algorithm::concurrency::Concurrency;
use ledger::algorithm::{Algorithm, State};
use ledger::holds::{self, BucketReport, MOST_HELD};

/// The limit for a report about a bucket for which no request of the call asks. It matters only if the stored value is
/// invalid. Such a value means that all slots of the limit are held, and no limit has more slots than `ANY_SLOTS`.
static ANY_SLOTS: Algorithm = Algorithm::Concurrency(Concurrency::MOST);

/// The reports in a call: how much its connection holds of each bucket.
#[derive(Debug)]
pub(super) struct Reports<'p> {
    call: &'p holds::Call,
    /// For each of the first reports, which are about buckets of the call's requests, two indices: that of its bucket in
    /// the list of keys, and that of its limit in the list of limits.
    places: Vec<(usize, usize)>,
    /// The index of the first bucket of the other reports in the list of keys. These buckets are the last keys, in the
    /// order of the reports.
    pub first_other: usize,
    /// The index of the limit of the other reports in the list of limits. 0 if there are no other reports.
    limit: usize,
}

impl<'p> Reports<'p> {
    /// Adds the keys and limits of the reports to the tables, which contain those of the requests.
    pub(super) fn new(call: &'p holds::Call, runs: &[Run<'_>], tables: &mut Tables) -> Reports<'p> {
        let mut asked: HashMap<usize, &Algorithm> = HashMap::new();
        for run in runs {
            for (index, charge, _) in run.plan.asks() {
                if let Some(key) = run.indices.get(index) {
                    asked.entry(*key).or_insert(&charge.algorithm);
                }
            }
        }
        let first_other = tables.keys.len();
        let of_requests = |report: &&BucketReport| tables.indices.contains_key(&report.bucket);
        let count = call.reports.iter().take_while(of_requests).count();
        let (of_requests, others) = call.reports.split_at(count);
        let place = |report: &BucketReport| {
            let key = tables.key(&report.bucket);
            let limit = asked.get(&key).copied().unwrap_or(&ANY_SLOTS);
            (key, tables.limit(limit))
        };
        let places = of_requests.iter().map(place).collect();
        others.iter().for_each(|report| {
            tables.key(&report.bucket);
        });
        let limit = if others.is_empty() { 0 } else { tables.limit(&ANY_SLOTS) };
        Reports { call, places, first_other, limit }
    }

    /// Returns the reports in the encoding that `take.lua` describes.
    pub(super) fn text(&self) -> Vec<u8> {
        let Reports { call: holds::Call { owner, sequence, reports }, places, first_other, limit } = self;
        let (of_requests, others) = reports.split_at(places.len().min(reports.len()));
        let mut text = Vec::with_capacity(28 + 10 * of_requests.len());
        add_amount(&mut text, owner.0);
        add_short_amount(&mut text, *sequence);
        add(&mut text, [of_requests.len()]);
        for (report, (key, limit)) in of_requests.iter().zip(places) {
            // Lua counts from 1.
            add(&mut text, [key + 1, limit + 1]);
            add_held(&mut text, report);
        }
        if !others.is_empty() {
            add(&mut text, [first_other + 1, limit + 1]);
        }
        for run in others.chunk_by(|one, other| one.held == other.held) {
            add(&mut text, [run.len()]);
            run.iter().take(1).for_each(|report| add_held(&mut text, report));
        }
        text
    }

    /// Changes the states of the requests' buckets as the reports about them do. Returns for each of these reports whether it was
    /// newer than the last one about its bucket.
    pub(super) fn accept(&self, limits: &[Algorithm], states: &mut [Option<State>], now: Timestamp) -> Vec<bool> {
        let accept = |(report, (key, limit)): (&BucketReport, &(usize, usize))| {
            let (Some(state), Some(limit)) = (states.get_mut(*key), limits.get(*limit)) else { return false };
            let entry = limit.accept(state.as_deref(), self.call.report(report), now);
            let is_accepted = entry.is_some();
            if let Some(entry) = entry {
                *state = Some(entry.state);
            }
            is_accepted
        };
        self.call.reports.iter().zip(&self.places).map(accept).collect()
    }
}

/// Decodes which reports about buckets of no request were accepted. If the server had no memory to write them, none was.
///
/// # Errors
///
/// [`StoreError::UnexpectedReply`] for a reply that the script cannot have given.
pub(super) fn accepted_others(replies: &[Value], is_unwritten: bool) -> Result<Vec<bool>, StoreError> {
    let accepted = |reply: &Value| match reply {
        _ if is_unwritten => Ok(false),
        Value::Int(1) => Ok(true),
        Value::Int(0) => Ok(false),
        _ => Err(StoreError::UnexpectedReply),
    };
    replies.iter().map(accepted).collect()
}

fn add_held(text: &mut Vec<u8>, report: &BucketReport) {
    add_short_amount(text, report.held.min(MOST_HELD).thousandths());
}

/// Appends an amount below 2^48 in six bytes.
fn add_short_amount(text: &mut Vec<u8>, amount: u64) {
    text.extend(amount.to_le_bytes().into_iter().take(6));
}
