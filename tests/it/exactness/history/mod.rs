//! Records the requests to several gateways with their responses, and checks them afterwards.
//!
//! There are two checks, and both are independent of the store's code. [`windows`] looks only at grants: any window has at
//! most what the [`Limit`] promises. [`replay`] replays all replies of Redis in the order of its clock on a reference bucket
//! in exact integers: each reported level must be that of the reference, each grant must be payable, and for each refusal
//! there must be a moment between request and response at which some bucket held less than its cost.

#[cfg(feature = "test-hooks")]
pub mod gateways;
mod limit;
#[cfg(feature = "test-hooks")]
pub mod replay;
#[cfg(feature = "test-hooks")]
pub mod spending;
#[cfg(feature = "test-hooks")]
pub mod undone;
pub mod windows;

use std::time::{Duration, Instant};

use base::time::Clock;

pub use limit::{
    CalendarPeriods, GrantLifetime, LeakyLimit, Limit, Sample, WindowLimit, long_samples, rules, short_samples, utc,
};

/// Returns the microseconds since `start`, on the test's clock.
pub fn micros(start: Instant) -> i64 {
    i64::try_from(start.elapsed().as_micros()).unwrap()
}

/// How far the store's clock is ahead of the test's, and the possible error of this number, in microseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct ClockOffset {
    pub ahead: i64,
    pub tolerance: i64,
}

impl ClockOffset {
    /// Measures the offset of a Redis server on a port of this machine, for a test that began at `start`. Both clocks run at
    /// the same rate, so the shortest of several round trips is valid for the whole test.
    pub fn measure(port: u16, start: Instant) -> ClockOffset {
        let client = ::redis::Client::open(format!("redis://127.0.0.1:{port}/")).unwrap();
        let mut connection = client.get_connection_with_timeout(Duration::from_secs(5)).unwrap();
        let mut measure = || {
            let before = micros(start);
            let (seconds, rest): (i64, i64) = ::redis::cmd("TIME").query(&mut connection).unwrap();
            let after = micros(start) + 1;
            (after - before, seconds * 1_000_000 + rest - i64::midpoint(before, after))
        };
        let (round_trip, ahead) = (0..200).map(|_| measure()).min().unwrap();
        // Beyond half a round trip, for roundings and for clocks that are adjusted meanwhile: 1 µs more than 2 has been seen.
        ClockOffset { ahead, tolerance: round_trip / 2 + 5 }
    }

    /// Returns the offset of a store that uses the clock of this machine, for a test that began at `start`.
    pub fn of_this_machine(start: Instant) -> ClockOffset {
        let wall = i64::try_from(Clock::system().now().0).unwrap();
        ClockOffset { ahead: wall - micros(start), tolerance: 5_000 }
    }

    /// Returns the first and the last time on the store's clock that an event between these two times can have.
    pub fn bounds(&self, sent: i64, answered: i64) -> (i64, i64) {
        (sent + self.ahead - self.tolerance, answered + self.ahead + self.tolerance)
    }
}

/// The numbers of a bucket: `amount` is refilled in each `period`. Amounts are in thousandths of a token, times in
/// microseconds. The spent amount is counted in units: a thousandth has `period` units, so in each microsecond `amount` units
/// are refilled.
#[derive(Clone, Copy, Debug)]
pub struct Numbers {
    pub burst: u64,
    pub amount: u64,
    pub period: u64,
}

impl Numbers {
    pub const fn per_second(tokens: u64, burst: u64) -> Numbers {
        Numbers { burst, amount: tokens * 1000, period: 1_000_000 }
    }

    pub fn capacity(&self) -> i128 {
        self.price(self.burst * 1000)
    }

    /// Converts thousandths to units.
    pub fn price(&self, cost: u64) -> i128 {
        i128::from(cost) * i128::from(self.period)
    }

    pub fn refill(&self, from: i64, to: i64) -> i128 {
        i128::from(to - from) * i128::from(self.amount)
    }

    /// Formats units as tokens, rounded up; empty for zero.
    pub fn tokens(&self, units: i128) -> String {
        let period = i128::from(self.period);
        let thousandths = (units.max(0) + period - 1) / period;
        format!("{}.{:03}", thousandths / 1000, thousandths % 1000)
    }
}

#[cfg(feature = "test-hooks")]
pub use checks::{Answer, Findings, History, Kind, Record};

#[cfg(feature = "test-hooks")]
mod checks {
    use std::collections::BTreeMap;
    use std::fmt;

    use stores::Source;

    use super::{ClockOffset, Limit, replay, undone, windows};

    /// One request. Times are in microseconds of the test's clock. The beginning is rounded down and the end is rounded up.
    #[derive(Clone, Debug)]
    pub struct Record {
        /// The indexes of the gateway and of its worker, and the number of the request there.
        pub worker: (usize, usize),
        pub number: u64,
        pub sent: i64,
        pub answered: i64,
        /// The charges: buckets by their index in [`History::buckets`], and costs.
        pub charges: Vec<(usize, u64)>,
        pub answer: Answer,
    }

    #[derive(Clone, Debug)]
    pub enum Answer {
        /// The store's time of the decision, and what was left of each bucket; `None` for a bucket that was not asked.
        Granted {
            now: i64,
            remaining: Vec<Option<u64>>,
            /// How long the request waits before it is forwarded.
            delay: i64,
        },
        Refused {
            now: i64,
            remaining: Vec<Option<u64>>,
            source: Source,
        },
        /// The request may have been charged, or may still be charged.
        Unknown,
        /// The request was not charged and never will be.
        Unasked,
    }

    #[derive(Debug)]
    pub struct History {
        pub buckets: Vec<Limit>,
        pub records: Vec<Record>,
        pub clock: ClockOffset,
    }

    /// The mistake that an answer shows.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Kind {
        /// Some window has more grants than the limit promises.
        OverGrant,
        /// In Redis' order, the bucket could not pay for the grant.
        WrongGrant,
        /// The request was refused although all buckets could pay.
        Unjustified,
        /// The reported level differs from that of the reference.
        OtherLevel,
        /// The time of the decision is before the request or after the response.
        OutOfTime,
        /// The request is forwarded at another time than in the reference.
        OtherDelay,
    }

    #[derive(Default)]
    pub struct Findings {
        pub counts: BTreeMap<Kind, u64>,
        first: BTreeMap<Kind, String>,
    }

    impl Findings {
        pub fn add(&mut self, kind: Kind, what: impl FnOnce() -> String) {
            *self.counts.entry(kind).or_default() += 1;
            self.first.entry(kind).or_insert_with(what);
        }

        pub fn of(&self, kind: Kind) -> u64 {
            self.counts.get(&kind).copied().unwrap_or(0)
        }

        pub fn is_empty(&self) -> bool {
            self.counts.is_empty()
        }
    }

    /// Formats the number of each kind, and the first finding of each kind.
    impl fmt::Debug for Findings {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            let reported = self.counts.iter().map(|(kind, count)| (kind, (count, self.first.get(kind))));
            f.debug_map().entries(reported).finish()
        }
    }

    impl History {
        pub fn check(&self) -> Findings {
            let mut findings = self.check_from_outside();
            replay::check(self, &mut findings);
            findings
        }

        /// Checks the history of a store that undoes the charges of refused requests, `late` microseconds later than usual.
        pub fn check_undone(&self, late: i64) -> Findings {
            let mut findings = self.check_from_outside();
            undone::check(self, late, &mut findings);
            findings
        }

        fn check_from_outside(&self) -> Findings {
            let mut findings = Findings::default();
            for (index, limit) in self.buckets.iter().enumerate() {
                let mut excess = windows::excess(limit, &self.grants(index), &self.clock);
                if let Limit::Leaky(leaky) = limit {
                    let moments = Limit::TokenBucket(leaky.moments());
                    excess = excess.max(windows::excess(&moments, &self.moments(index), &self.clock));
                }
                if excess > 0 {
                    findings.add(Kind::OverGrant, || format!("bucket {index}: {} too much", limit.tokens(excess)));
                }
            }
            findings
        }

        /// Returns the grants of one bucket.
        pub fn grants(&self, bucket: usize) -> Vec<windows::Grant> {
            let granted = self.records.iter().filter(|record| matches!(record.answer, Answer::Granted { .. }));
            let grant = |record: &Record| {
                let (_, cost) = record.charges.iter().find(|(index, _)| *index == bucket)?;
                Some(windows::Grant { sent: record.sent, answered: record.answered, cost: *cost })
            };
            granted.filter_map(grant).collect()
        }

        /// Returns when the requests that one bucket granted are forwarded, by the store's clock. Each counts as one,
        /// whatever its cost. Waits were rounded up to a microsecond.
        fn moments(&self, bucket: usize) -> Vec<windows::Grant> {
            let moment = |record: &Record| match record.answer {
                Answer::Granted { now, delay, .. } if record.charges.iter().any(|(index, _)| *index == bucket) => {
                    let exact = now + delay - i64::from(delay > 0);
                    Some(windows::Grant { sent: exact, answered: now + delay, cost: 1000 })
                }
                _ => None,
            };
            self.records.iter().filter_map(moment).collect()
        }

        /// Whether some decision has a time outside of its request by less than a millisecond. No mistake of a store explains
        /// this: a clock of this machine was moved for a moment, by more than the measured error. Levels do not agree then
        /// either, because the clock determines the order of decisions.
        pub fn shows_a_moved_clock(&self) -> bool {
            self.records.iter().any(|record| match record.answer {
                Answer::Granted { now, .. } | Answer::Refused { now, source: Source::Store, .. } => {
                    let (from, to) = self.clock.bounds(record.sent, record.answered);
                    (1..1000).contains(&(from - now).max(now - to))
                }
                _ => false,
            })
        }

        /// Returns the longest time in microseconds that a request took, or that passed between two requests. If the machine
        /// stands still, this shows it.
        pub fn longest_pause(&self) -> i64 {
            let mut sent: Vec<i64> = self.records.iter().map(|record| record.sent).collect();
            sent.sort_unstable();
            let between = sent.windows(2).map(|pair| pair[1] - pair[0]);
            self.records.iter().map(|record| record.answered - record.sent).chain(between).max().unwrap_or_default()
        }

        pub fn count(&self, which: impl Fn(&Answer) -> bool) -> usize {
            self.records.iter().filter(|record| which(&record.answer)).count()
        }
    }
}
