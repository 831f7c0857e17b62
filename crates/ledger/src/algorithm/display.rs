//! Displays the settings of a limit as an operator would write them.

use std::fmt;

use super::Algorithm;
use super::budget::SpentLimit;
use crate::money::AmountFormat;

/// The settings of a limit, and the format in which their amounts are displayed: see [`Algorithm::display`].
#[derive(Clone, Copy, Debug)]
pub struct DisplayedAlgorithm {
    algorithm: Algorithm,
    format: AmountFormat,
}

impl Algorithm {
    /// Returns the settings for display with amounts in this format, such as `250.00 USD/month Europe/Berlin`.
    pub const fn display(self, format: AmountFormat) -> DisplayedAlgorithm {
        DisplayedAlgorithm { algorithm: self, format }
    }
}

impl fmt::Display for DisplayedAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.algorithm {
            Algorithm::TokenBucket(bucket) => bucket.write(f, self.format),
            Algorithm::FixedWindow(window) => window.write(f, self.format),
            Algorithm::Budget(budget) => {
                match budget.limit() {
                    SpentLimit::TokenBucket(bucket) => bucket.write(f, self.format),
                    SpentLimit::FixedWindow(window) => window.write(f, self.format),
                }?;
                budget.ban().map_or(Ok(()), |ban| write!(f, "; {ban}"))
            }
            // Limits with these algorithms never count money.
            Algorithm::SlidingLog(log) => log.fmt(f),
            Algorithm::SlidingWindow(window) => window.fmt(f),
            Algorithm::LeakyBucket(bucket) => bucket.fmt(f),
            Algorithm::Concurrency(slots) => slots.fmt(f),
        }
    }
}

/// Displays the settings with amounts as numbers: `10/s burst 20`, `10000/month Europe/Berlin`.
impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.display(AmountFormat::Number).fmt(f)
    }
}
