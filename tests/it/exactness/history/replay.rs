//! Takes every answer of Redis, in the order of its clock, through buckets of its own.
//!
//! The units that a bucket has spent are known exactly as long as every request was answered. A request without an answer may
//! have been charged at any time since, once: by so much more may be spent, until a level shows that it was.
//!
//! Answers of one moment come from one call, in the order in which its worker was asked; where two calls share a moment,
//! the order is one in which they fit, if there is one.

use tollgate::store::Source;

use super::{Answer, Findings, History, Kind, Numbers, Record};

#[derive(Clone)]
struct Bucket {
    numbers: Numbers,
    /// Between these is what has been spent, and by `doubtful` it may be more.
    low: i128,
    high: i128,
    doubtful: i128,
    since: i64,
    /// The most that was spent, each time that it may have become more.
    past: Vec<Spent>,
}

#[derive(Clone, Copy)]
struct Spent {
    at: i64,
    high: i128,
    doubtful: i128,
}

impl Bucket {
    fn new(numbers: &Numbers) -> Bucket {
        Bucket { numbers: *numbers, low: 0, high: 0, doubtful: 0, since: i64::MIN, past: Vec::new() }
    }

    fn advance(&mut self, now: i64) {
        if self.since != i64::MIN && now > self.since {
            let back = self.numbers.refill(self.since, now);
            (self.low, self.high) = ((self.low - back).max(0), (self.high - back).max(0));
        }
        self.since = self.since.max(now);
    }

    fn must_fit(&self, cost: u64) -> bool {
        self.high + self.doubtful + self.numbers.price(cost) <= self.numbers.capacity()
    }

    fn may_fit(&self, cost: u64) -> bool {
        self.low + self.numbers.price(cost) <= self.numbers.capacity()
    }

    /// `paid` was charged, and this is what was left then. False when it cannot be.
    fn shows(&mut self, paid: u64, remaining: Option<u64>) -> bool {
        let paid = self.numbers.price(paid);
        (self.low, self.high) = (self.low + paid, self.high + paid);
        let Some(remaining) = remaining else { return true };
        // Told in whole thousandths, rounded down.
        let most = self.numbers.capacity() - self.numbers.price(remaining);
        let least = (most - self.numbers.price(1) + 1).max(0);
        let (low, high) = (self.low.max(least), (self.high + self.doubtful).min(most));
        let agrees = low <= high;
        self.doubtful -= (low - self.high).clamp(0, self.doubtful);
        (self.low, self.high) = if agrees { (low, high) } else { (least, most) };
        agrees
    }

    fn note(&mut self) {
        self.past.push(Spent { at: self.since, high: self.high, doubtful: self.doubtful });
    }

    /// Whether at some instant from `from` to `to` it may have held less than this.
    fn was_short(&self, cost: u64, from: i64, to: i64) -> bool {
        let next = self.past.partition_point(|spent| spent.at <= from);
        let before = next.checked_sub(1).map_or(0, |last| {
            let Spent { at, high, doubtful } = self.past[last];
            (high - self.numbers.refill(at, from)).max(0) + doubtful
        });
        let within = self.past[next..].iter().take_while(|spent| spent.at <= to);
        let most = within.map(|spent| spent.high + spent.doubtful).fold(before, i128::max);
        most + self.numbers.price(cost) > self.numbers.capacity()
    }
}

pub fn check(history: &History, findings: &mut Findings) {
    let mut buckets: Vec<Bucket> = history.buckets.iter().map(Bucket::new).collect();
    // When it was decided, or when it may first have been.
    let moment = |record: &Record| match record.answer {
        Answer::Granted { now, .. } | Answer::Refused { now, source: Source::Store, .. } => Some(now),
        Answer::Unknown => Some(record.sent + history.offset - history.tolerance),
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
        let from = record.sent + history.offset - history.tolerance;
        let to = record.answered + history.offset + history.tolerance;
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
        buckets[*index].advance(now);
    }
    let (granted, remaining) = match &record.answer {
        Answer::Granted { remaining, .. } => (true, remaining),
        Answer::Refused { remaining, .. } => (false, remaining),
        Answer::Unknown => {
            for (index, cost) in &record.charges {
                let bucket = &mut buckets[*index];
                bucket.doubtful += bucket.numbers.price(*cost);
                bucket.note();
            }
            return;
        }
        Answer::Unasked => return,
    };
    if granted && !record.charges.iter().all(|(index, cost)| buckets[*index].may_fit(*cost)) {
        findings.add(Kind::WrongGrant, || format!("{record:?}"));
    }
    if !granted && record.charges.iter().all(|(index, cost)| buckets[*index].must_fit(*cost)) {
        findings.add(Kind::Unjustified, || format!("refused by Redis: {record:?}"));
    }
    for ((index, cost), remaining) in record.charges.iter().zip(remaining) {
        let bucket = &mut buckets[*index];
        let before = (bucket.low, bucket.high, bucket.doubtful);
        if !bucket.shows(if granted { *cost } else { 0 }, *remaining) {
            findings.add(Kind::OtherLevel, || format!("{before:?} units of bucket {index} were spent: {record:?}"));
        }
        bucket.note();
    }
}
