//! Displays the settings of a limit as an operator would write them.

use std::fmt;

use super::Algorithm;
use super::budget::SpentLimit;
use super::fixed_window::Window;
use super::step::length_text;
use crate::money::AmountFormat;
use base::time::{Micros, Timestamp};

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

impl Algorithm {
    /// Returns the time in which an empty bucket becomes full, as gateway.yaml writes a window: `2s`, `1h`, or `month` for a
    /// calendar. Durations are rounded up to whole seconds. `None` for slots, which become free when requests end.
    pub fn window_text(&self) -> Option<String> {
        struct Length(Micros);
        impl fmt::Display for Length {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                length_text(f, self.0)
            }
        }
        if self.slots().is_some() {
            return None;
        }
        Some(match self.window() {
            Some(Window::Calendar(calendar)) => calendar.unit().name().to_owned(),
            // Only the quota of a calendar depends on the time.
            _ => {
                let seconds = self.quota(Timestamp(0)).window.ceil_seconds();
                Length(Micros(seconds.saturating_mul(1_000_000))).to_string()
            }
        })
    }
}

impl DisplayedAlgorithm {
    fn write_spent_limit(&self, f: &mut fmt::Formatter<'_>, limit: &SpentLimit) -> fmt::Result {
        match limit {
            SpentLimit::TokenBucket(bucket) => bucket.write(f, self.format),
            SpentLimit::FixedWindow(window) => window.write(f, self.format),
        }
    }
}

impl fmt::Display for DisplayedAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.algorithm {
            Algorithm::TokenBucket(bucket) => bucket.write(f, self.format),
            Algorithm::FixedWindow(window) => window.write(f, self.format),
            Algorithm::Budget(budget) => {
                self.write_spent_limit(f, budget.limit())?;
                budget.ban().map_or(Ok(()), |ban| write!(f, "; {ban}"))
            }
            Algorithm::Purse(purse) => {
                self.write_spent_limit(f, purse.limit())?;
                f.write_str("; over all regions")
            }
            Algorithm::Home(home) => {
                self.write_spent_limit(f, home.limit())?;
                f.write_str("; over all regions")
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
