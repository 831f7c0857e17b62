//! Judges the refusals of a store that charges the buckets of a request one by one, and undoes the charges when a later
//! bucket refuses.
//!
//! Before this, a bucket can be short although nothing was granted: the request that is being refused has charged it, and the
//! payment is not yet given back. (The refill since the charge is not given back.) So a refusal is right if a bucket could be
//! short because of three amounts together: what was granted, what other requests may just have paid, and what each refused
//! request may have lost. Any other refusal is wrong.

use stores::Source;

use super::{Answer, Findings, History, Kind, Limit, Numbers, Record};

/// The longest time for which a refused request may keep its payment, in microseconds. Its charges are undone after its
/// answer, and a refusal from the deny cache may be as old as the cache's entries.
pub const KEPT: i64 = 350_000;

/// The amount that a request may have taken from a bucket.
struct Charge {
    /// The last time at which it can have been taken.
    last: i64,
    /// The amount, in units of the limit.
    spent: i128,
}

/// Finds refusals although every bucket of the request could pay. `late` is how much later than usual charges are undone.
pub fn check(history: &History, late: i64, findings: &mut Findings) {
    for refused in refused_for_nothing(history, Some(KEPT + late)) {
        findings.add(Kind::Unjustified, || format!("{refused:?}"));
    }
}

/// The number of refused requests, and the numbers of those whose buckets could have paid according to the grants.
#[derive(Clone, Copy, Debug)]
pub struct Refusals {
    pub all: usize,
    /// Refusals by a node whose bucket was charged by another request that later got its payment back.
    pub wrong_by_node: usize,
    /// Refusals without a call, because of a level that a node had reported at such a time.
    pub wrong_by_cache: usize,
}

impl Refusals {
    pub fn of(history: &History) -> Refusals {
        let all = history.count(|answer| matches!(answer, Answer::Refused { .. }));
        let wrong = refused_for_nothing(history, None);
        let is_cached = |record: &&&Record| matches!(record.answer, Answer::Refused { source: Source::Cached, .. });
        let wrong_by_cache = wrong.iter().filter(is_cached).count();
        Refusals { all, wrong_by_node: wrong.len() - wrong_by_cache, wrong_by_cache }
    }
}

/// Returns the refused requests whose buckets could pay. `kept` is how long refused requests keep what they paid; `None` if
/// they never pay.
fn refused_for_nothing(history: &History, kept: Option<i64>) -> Vec<&Record> {
    let numbers = |bucket: usize| match &history.buckets[bucket] {
        Limit::TokenBucket(numbers) => numbers,
        other => panic!("{other:?} is not judged here"),
    };
    let could_pay = |(number, refused): &(usize, &Record)| {
        !refused.charges.iter().any(|(bucket, cost)| {
            let numbers = numbers(*bucket);
            let others = history.records.iter().enumerate().filter(|(other, _)| other != number);
            let charges = others.filter_map(|(_, other)| charge(other, *bucket, numbers, refused, kept)).collect();
            most_spent(charges, numbers, refused) + numbers.price(*cost) > numbers.capacity()
        })
    };
    let refused = history.records.iter().enumerate();
    let refused = refused.filter(|(_, record)| matches!(record.answer, Answer::Refused { .. }));
    refused.filter(could_pay).map(|(_, record)| record).collect()
}

/// Returns what `other` may have taken from a bucket at the time of the request `refused`.
fn charge(other: &Record, bucket: usize, numbers: &Numbers, refused: &Record, kept: Option<i64>) -> Option<Charge> {
    let (_, cost) = other.charges.iter().find(|(index, _)| *index == bucket)?;
    if other.sent > refused.answered {
        return None;
    }
    let price = numbers.price(*cost);
    let until = other.answered + kept.unwrap_or_default();
    let spent = match other.answer {
        Answer::Granted { .. } | Answer::Unknown => price,
        Answer::Unasked => return None,
        Answer::Refused { .. } if kept.is_none() => return None,
        // Nothing was sent.
        Answer::Refused { source: Source::Cached, .. } => return None,
        // A request for this bucket alone is refused before anything is charged.
        Answer::Refused { .. } if other.charges.len() == 1 => return None,
        Answer::Refused { .. } if until >= refused.sent => price,
        // What was refilled between its charge and its being undone.
        Answer::Refused { .. } => price.min(numbers.refill(other.sent, until)),
    };
    Some(Charge { last: other.answered.min(refused.answered), spent })
}

/// Returns the largest amount that may be spent of a bucket during a request: the charges since some time, less the refill
/// since then.
fn most_spent(mut charges: Vec<Charge>, numbers: &Numbers, refused: &Record) -> i128 {
    // The later its last moment, the more of it is left.
    charges.sort_by_key(|charge| std::cmp::Reverse(charge.last));
    let (mut sum, mut most) = (0, 0);
    for charge in charges {
        sum += charge.spent;
        let refilled = numbers.refill(charge.last.min(refused.sent), refused.sent);
        most = most.max(sum - refilled);
    }
    most
}
