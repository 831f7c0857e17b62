//! Reads and sets the thresholds of a limit of any algorithm.

use super::Algorithm;
use super::budget::SpentLimit;
use super::thresholds::Thresholds;

impl Algorithm {
    /// Returns the thresholds of the limit. Only fixed windows have some.
    pub fn thresholds(&self) -> Thresholds {
        match self {
            Algorithm::FixedWindow(window) => window.thresholds(),
            Algorithm::Budget(budget) => match budget.limit() {
                SpentLimit::FixedWindow(window) => window.thresholds(),
                SpentLimit::TokenBucket(_) => Thresholds::default(),
            },
            Algorithm::TokenBucket(_)
            | Algorithm::SlidingLog(_)
            | Algorithm::SlidingWindow(_)
            | Algorithm::LeakyBucket(_)
            | Algorithm::Concurrency(_)
            | Algorithm::Purse(_)
            | Algorithm::Home(_) => Thresholds::default(),
        }
    }

    /// Returns a fixed window with these thresholds. Any other limit stays as it is.
    #[must_use]
    pub fn with_thresholds(&self, thresholds: Thresholds) -> Algorithm {
        match self {
            Algorithm::FixedWindow(window) => Algorithm::FixedWindow(window.with_thresholds(thresholds)),
            Algorithm::Budget(budget) => Algorithm::Budget(budget.with_thresholds(thresholds)),
            other => *other,
        }
    }
}
