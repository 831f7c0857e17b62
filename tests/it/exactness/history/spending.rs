//! Computes the spent amount of a bucket, only for the check. It shares no code with the algorithms.

use super::{GrantLifetime, LeakyLimit, Limit, Numbers};

/// A lower and an upper bound of the spent amount. Both are equal as long as every request was answered.
#[derive(Clone)]
pub enum SpentBounds {
    /// The bucket is refilled continuously.
    Refilled { numbers: Numbers, low: i128, high: i128, since: i64 },
    /// Each grant stops counting at its own time.
    Counted { low: Charges, high: Charges, now: i64 },
}

impl SpentBounds {
    pub fn new(limit: &Limit) -> SpentBounds {
        match limit {
            Limit::TokenBucket(numbers) | Limit::Leaky(LeakyLimit { places: numbers, .. }) => {
                SpentBounds::Refilled { numbers: *numbers, low: 0, high: 0, since: i64::MIN }
            }
            Limit::Window(window) => {
                let charges = Charges { counting: window.counting, list: Vec::new() };
                SpentBounds::Counted { low: charges.clone(), high: charges, now: i64::MIN }
            }
        }
    }

    pub fn advance(&mut self, to: i64) {
        match self {
            SpentBounds::Refilled { numbers, low, high, since } => {
                if *since != i64::MIN && to > *since {
                    let back = numbers.refill(*since, to);
                    (*low, *high) = ((*low - back).max(0), (*high - back).max(0));
                }
                *since = to.max(*since);
            }
            SpentBounds::Counted { now, .. } => *now = to.max(*now),
        }
    }

    pub fn now(&self) -> i64 {
        match self {
            SpentBounds::Refilled { since, .. } => *since,
            SpentBounds::Counted { now, .. } => *now,
        }
    }

    pub fn bounds(&self) -> (i128, i128) {
        match self {
            SpentBounds::Refilled { low, high, .. } => (*low, *high),
            SpentBounds::Counted { low, high, now } => (low.spent(*now), high.spent(*now)),
        }
    }

    pub fn pay(&mut self, amount: i128) {
        match self {
            SpentBounds::Refilled { low, high, .. } => (*low, *high) = (*low + amount, *high + amount),
            SpentBounds::Counted { low, high, now } => {
                low.add(*now, amount);
                high.add(*now, amount);
            }
        }
    }

    /// Narrows the bounds to these values.
    pub fn narrow(&mut self, least: i128, most: i128) {
        match self {
            SpentBounds::Refilled { low, high, .. } => (*low, *high) = (least, most),
            // When a request without an answer was charged is not known: at the latest now.
            SpentBounds::Counted { high, now, .. } => {
                let missing = least - high.spent(*now);
                if missing > 0 {
                    high.add(*now, missing);
                }
            }
        }
    }

    /// Sets the bounds to these values, whatever they were.
    pub fn correct(&mut self, least: i128, most: i128) {
        match self {
            SpentBounds::Refilled { low, high, .. } => (*low, *high) = (least, most),
            SpentBounds::Counted { low, high, now } => {
                for (charges, spent) in [(low, least), (high, most)] {
                    let difference = spent - charges.spent(*now);
                    // Even a charge of nothing begins a period.
                    if difference != 0 {
                        charges.add(*now, difference);
                    }
                }
            }
        }
    }

    /// Returns the most that is spent at a later time, if `high` was spent at an earlier one and nothing was charged since
    /// then.
    pub fn later(&self, high: i128, at: i64, moment: i64) -> i128 {
        match self {
            SpentBounds::Refilled { numbers, .. } => (high - numbers.refill(at, moment)).max(0),
            SpentBounds::Counted { high, .. } => high.spent(moment),
        }
    }
}

/// Charges in order, each with the time from which it no longer counts.
#[derive(Clone)]
pub struct Charges {
    counting: GrantLifetime,
    list: Vec<CountedGrant>,
}

#[derive(Clone, Copy)]
struct CountedGrant {
    at: i64,
    until: i64,
    /// The sum of this charge and all charges before it.
    total: i128,
}

impl Charges {
    fn add(&mut self, at: i64, amount: i128) {
        let last = self.list.last();
        let until = self.counting.until(at, last.map(|last| last.until));
        let total = last.map_or(0, |last| last.total) + amount;
        self.list.push(CountedGrant { at, until, total });
    }

    fn spent(&self, at: i64) -> i128 {
        let charged = self.list.partition_point(|charge| charge.at <= at);
        let ended = self.list.partition_point(|charge| charge.until <= at).min(charged);
        let total = |count: usize| count.checked_sub(1).map_or(0, |last| self.list[last].total);
        total(charged) - total(ended)
    }
}

mod tests {
    use super::{Charges, GrantLifetime};

    fn charges(counting: GrantLifetime, at: &[(i64, i128)]) -> Charges {
        let mut charges = Charges { counting, list: Vec::new() };
        at.iter().for_each(|(at, amount)| charges.add(*at, *amount));
        charges
    }

    #[test]
    fn a_grant_counts_as_long_as_its_window_says() {
        let at = [(10, 1), (35, 2), (95, 4), (104, 8)];
        let spent = |counting: GrantLifetime| {
            let charges = charges(counting, &at);
            [9, 10, 40, 99, 100, 109, 110, 134, 135, 140, 195, 204, 300].map(|moment| charges.spent(moment))
        };
        assert_eq!(spent(GrantLifetime::Epoch(100)), [0, 1, 3, 7, 0, 8, 8, 8, 8, 8, 8, 0, 0]);
        assert_eq!(spent(GrantLifetime::FirstGrant(100)), [0, 1, 3, 7, 7, 15, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(spent(GrantLifetime::Log(100)), [0, 1, 3, 7, 7, 15, 14, 14, 12, 12, 8, 0, 0]);
        // Steps of ten: until 120, 140, 200 and 210.
        assert_eq!(
            spent(GrantLifetime::Steps { window: 100, steps: 10 }),
            [0, 1, 3, 7, 7, 15, 15, 14, 14, 12, 12, 8, 0]
        );
    }
}
