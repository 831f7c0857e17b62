//! Replays every reply of Redis, in the order of its clock, on reference buckets.
//!
//! The spent amount of a bucket is known exactly if every request was answered. A request without an answer may have been
//! charged once at any time since then. So its cost may be spent too, until a level shows whether it is.
//!
//! Replies with the same time come from one call, in the order of the worker's requests. If two calls have the same time, any
//! order in which they fit is accepted.

use stores::Source;

use super::spending::SpentBounds;
use super::{Answer, Findings, History, Kind, Limit, Record};

#[derive(Clone)]
struct Bucket {
    limit: Limit,
    spending: SpentBounds,
    /// The amount that may additionally be spent, because of requests without an answer.
    doubtful: i128,
    /// The largest amount that may have been spent, at each time at which it increased.
    past: Vec<SpentRecord>,
}

#[derive(Clone, Copy)]
struct SpentRecord {
    at: i64,
    high: i128,
    doubtful: i128,
}

impl Bucket {
    fn new(limit: &Limit) -> Bucket {
        Bucket { limit: *limit, spending: SpentBounds::new(limit), doubtful: 0, past: Vec::new() }
    }

    fn must_fit(&self, cost: u64) -> bool {
        self.spending.bounds().1 + self.doubtful <= self.limit.room(cost)
    }

    fn may_fit(&self, cost: u64) -> bool {
        self.spending.bounds().0 <= self.limit.room(cost)
    }

    /// Records that `paid` was charged and `remaining` was left. Returns false if that is impossible.
    fn shows(&mut self, paid: u64, remaining: Option<u64>) -> bool {
        if paid > 0 {
            self.spending.pay(self.limit.price(paid));
        }
        let Some(remaining) = remaining else { return true };
        if remaining == 0 && matches!(self.limit, Limit::Leaky(_)) {
            // More than its places for requests of cost 1 may be taken.
            return self.spending.bounds().1 + self.doubtful > self.limit.capacity() - self.limit.price(1);
        }
        // Told in whole thousandths, rounded down.
        let most = self.limit.capacity() - self.limit.price(remaining);
        let least = (most - self.limit.price(1) + 1).max(0);
        let (first_low, first_high) = self.spending.bounds();
        let (low, high) = (first_low.max(least), (first_high + self.doubtful).min(most));
        self.doubtful -= (low - first_high).clamp(0, self.doubtful);
        let agrees = low <= high;
        if agrees {
            self.spending.narrow(low, high);
        } else {
            self.spending.correct(least, most);
        }
        agrees
    }

    /// Whether a request may have this delay.
    fn may_wait(&self, delay: i64) -> bool {
        let Limit::Leaky(leaky) = self.limit else { return delay == 0 };
        let (low, high) = self.spending.bounds();
        (leaky.delay(low)..=leaky.delay(high + self.doubtful)).contains(&delay)
    }

    fn note(&mut self) {
        let high = self.spending.bounds().1;
        self.past.push(SpentRecord { at: self.spending.now(), high, doubtful: self.doubtful });
    }

    /// Whether the bucket may have held less than `cost` at some time from `from` to `to`.
    fn was_short(&self, cost: u64, from: i64, to: i64) -> bool {
        let next = self.past.partition_point(|spent| spent.at <= from);
        let before = next.checked_sub(1).map_or(0, |last| {
            let SpentRecord { at, high, doubtful } = self.past[last];
            self.spending.later(high, at, from) + doubtful
        });
        let within = self.past[next..].iter().take_while(|spent| spent.at <= to);
        let most = within.map(|spent| spent.high + spent.doubtful).fold(before, i128::max);
        most > self.limit.room(cost)
    }
}

pub fn check(history: &History, findings: &mut Findings) {
    let mut buckets: Vec<Bucket> = history.buckets.iter().map(Bucket::new).collect();
    // When it was decided, or when it may first have been.
    let moment = |record: &Record| match record.answer {
        Answer::Granted { now, .. } | Answer::Refused { now, source: Source::Store, .. } => Some(now),
        Answer::Unknown => Some(history.clock.bounds(record.sent, record.answered).0),
        Answer::Refused { source: Source::Cached | Source::Fallback, .. } | Answer::Unasked => None,
    };
    let mut decided: Vec<(i64, &Record)> =
        history.records.iter().filter_map(|record| Some((moment(record)?, record))).collect();
    decided.sort_by_key(|(now, record)| (*now, record.worker, record.number));
    for together in decided.chunk_by(|one, other| one.0 == other.0) {
        let mut calls: Vec<_> = together.chunk_by(|one, other| one.1.worker == other.1.worker).collect();
        while !calls.is_empty() {
            let fits = |call: &&[(i64, &Record)]| {
                let (mut tried, mut found) = (buckets.clone(), Findings::default());
                call.iter().for_each(|(now, record)| step(&mut tried, *now, record, &mut found));
                found.is_empty()
            };
            let next = if calls.len() > 1 { calls.iter().position(fits).unwrap_or(0) } else { 0 };
            calls.remove(next).iter().for_each(|(now, record)| step(&mut buckets, *now, record, findings));
        }
    }
    for record in &history.records {
        let (from, to) = history.clock.bounds(record.sent, record.answered);
        match record.answer {
            Answer::Granted { now, .. } | Answer::Refused { now, source: Source::Store, .. } => {
                if now < from || now > to {
                    findings.add(Kind::OutOfTime, || format!("not within {from}..={to}: {record:?}"));
                }
            }
            Answer::Refused { source: Source::Cached | Source::Fallback, .. } => {
                if !record.charges.iter().any(|(index, cost)| buckets[*index].was_short(*cost, from, to)) {
                    findings.add(Kind::Unjustified, || format!("refused without asking: {record:?}"));
                }
            }
            Answer::Unknown | Answer::Unasked => {}
        }
    }
}

fn step(buckets: &mut [Bucket], now: i64, record: &Record, findings: &mut Findings) {
    for (index, _) in &record.charges {
        buckets[*index].spending.advance(now);
    }
    let (granted, remaining) = match &record.answer {
        Answer::Granted { remaining, .. } => (true, remaining),
        Answer::Refused { remaining, .. } => (false, remaining),
        Answer::Unknown => {
            for (index, cost) in &record.charges {
                let bucket = &mut buckets[*index];
                bucket.doubtful += bucket.limit.price(*cost);
                bucket.note();
            }
            return;
        }
        Answer::Unasked => return,
    };
    if granted && !record.charges.iter().all(|(index, cost)| buckets[*index].may_fit(*cost)) {
        findings.add(Kind::WrongGrant, || format!("{record:?}"));
    }
    if let Answer::Granted { delay, .. } = record.answer {
        // At most one of the limits of a request is a queue.
        let queue = record.charges.iter().find(|(index, _)| matches!(buckets[*index].limit, Limit::Leaky(_)));
        if !queue.map_or(delay == 0, |(index, _)| buckets[*index].may_wait(delay)) {
            findings.add(Kind::OtherDelay, || format!("{record:?}"));
        }
    }
    if !granted && record.charges.iter().all(|(index, cost)| buckets[*index].must_fit(*cost)) {
        findings.add(Kind::Unjustified, || format!("refused by Redis: {record:?}"));
    }
    for ((index, cost), remaining) in record.charges.iter().zip(remaining) {
        let bucket = &mut buckets[*index];
        let before = (bucket.spending.bounds(), bucket.doubtful);
        if !bucket.shows(if granted { *cost } else { 0 }, *remaining) {
            findings.add(Kind::OtherLevel, || format!("{before:?} units of bucket {index} were spent: {record:?}"));
        }
        bucket.note();
    }
}
