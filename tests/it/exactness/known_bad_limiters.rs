//! Forms of sliding windows that are known to be wrong, written here. The judge of windows finds each of them.

use std::collections::BTreeSet;

use super::history::spending::SpentBounds;
use super::history::windows::{Grant, excess};
use super::history::{ClockOffset, GrantLifetime, Limit};
use super::random_events::gap;
use crate::support::print_measured;

const LIMIT: u64 = 100;
const WINDOW: i64 = 10_000_000;
const STEPS: i64 = 10;

/// Decides about one request for one unit at a time.
trait Limiter {
    fn grants(&mut self, now: i64) -> bool;
}

/// The reference of the judge.
struct Right(Limit, SpentBounds);

impl Limiter for Right {
    fn grants(&mut self, now: i64) -> bool {
        let Right(limit, spending) = self;
        spending.advance(now);
        let fits = spending.bounds().1 <= limit.room(1000);
        if fits {
            spending.pay(limit.price(1000));
        }
        fits
    }
}

/// Two counters, one for this period and one for the period before, which counts in proportion to its rest in the window.
#[derive(Default)]
struct TwoCounters {
    period: i64,
    before: u64,
    present: u64,
}

impl Limiter for TwoCounters {
    fn grants(&mut self, now: i64) -> bool {
        let period = now / WINDOW;
        if period != self.period {
            self.before = if period == self.period + 1 { self.present } else { 0 };
            (self.period, self.present) = (period, 0);
        }
        let covered = u64::try_from(WINDOW - now % WINDOW).unwrap();
        let weighted = self.before * covered / u64::try_from(WINDOW).unwrap();
        let fits = weighted + self.present < LIMIT;
        self.present += u64::from(fits);
        fits
    }
}

/// As many counters as there are steps. The oldest counter is dropped before all of it has left the window.
struct OneStepTooFew(Vec<i64>);

impl Limiter for OneStepTooFew {
    fn grants(&mut self, now: i64) -> bool {
        let step = now / (WINDOW / STEPS);
        self.0.retain(|granted| *granted > step - STEPS);
        let fits = self.0.len() < usize::try_from(LIMIT).unwrap();
        if fits {
            self.0.push(step);
        }
        fits
    }
}

/// A log with one entry for each millisecond, so two grants in one millisecond count once.
struct OneForEachMillisecond(BTreeSet<i64>);

impl Limiter for OneForEachMillisecond {
    fn grants(&mut self, now: i64) -> bool {
        self.0 = self.0.split_off(&((now - WINDOW) / 1000 + 1));
        let fits = self.0.len() < usize::try_from(LIMIT).unwrap();
        if fits {
            self.0.insert(now / 1000);
        }
        fits
    }
}

/// Bursts at the end of a window, a steady stream after them, and random times.
fn moments() -> Vec<i64> {
    let begin = 1000 * WINDOW;
    let burst = (0..150).map(|number| begin + WINDOW - 1_000 + number);
    let stream = (0..1_000).map(|number| begin + WINDOW + number * (WINDOW / 1_000));
    let mut now = begin + 3 * WINDOW;
    let random = (0..20_000).map(move |_| {
        now += gap() / 4;
        now
    });
    burst.chain(stream).chain(random).collect()
}

fn beyond(limit: &Limit, limiter: &mut dyn Limiter) -> String {
    let grants: Vec<Grant> = moments()
        .into_iter()
        .filter(|now| limiter.grants(*now))
        .map(|now| Grant { sent: now, answered: now, cost: 1000 })
        .collect();
    assert!(grants.len() > 1000, "{}", grants.len());
    limit.tokens(excess(limit, &grants, &ClockOffset::default()))
}

#[test]
fn bad_forms_of_a_sliding_window_are_noticed() {
    let steps = Limit::window(LIMIT, GrantLifetime::Steps { window: WINDOW, steps: STEPS });
    let log = Limit::window(LIMIT, GrantLifetime::Log(WINDOW));
    for limit in [steps, log] {
        assert_eq!(beyond(&limit, &mut Right(limit, SpentBounds::new(&limit))), "0.000", "{limit:?}");
        for (name, limiter, least) in [
            ("two counters", &mut TwoCounters::default() as &mut dyn Limiter, 98.0),
            ("one step too few", &mut OneStepTooFew(Vec::new()), 1.0),
            ("one grant for each millisecond", &mut OneForEachMillisecond(BTreeSet::new()), 1.0),
        ] {
            let excess: f64 = beyond(&limit, limiter).parse().unwrap();
            print_measured(&format!("flaw: a sliding window of {LIMIT} by {name}: {excess} beyond it"));
            assert!(excess >= least, "{name}: {excess}");
        }
    }
}
