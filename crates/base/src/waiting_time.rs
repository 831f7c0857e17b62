//! Displays how long something takes: in seconds, beyond two hours also in hours, or beyond two days in days with the date of its end.

use std::fmt;

use crate::time::Micros;

/// The longest time that is displayed in seconds.
const LONGEST: u64 = 2 * DAY;
const DAY: u64 = 86_400;
const HOUR: u64 = 3_600;

/// A time until a moment. Displayed rounded up: `45s`, `39190s (10.9 h)`, `12.4 days`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitingTime(pub Micros);

impl WaitingTime {
    /// Whether the time is longer than two days, so that readers want the date of its end.
    pub fn is_long(self) -> bool {
        self.0.ceil_seconds() > LONGEST
    }

    /// Displays the time, and its end if it is long: `45s`, `12.4 days (2026-12-12T03:12:45Z)`.
    pub fn with_end_if_long(self, end: impl FnOnce() -> String) -> String {
        if self.is_long() { format!("{self} ({})", end()) } else { self.to_string() }
    }
}

impl fmt::Display for WaitingTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.ceil_seconds();
        if !self.is_long() {
            write!(f, "{seconds}s")?;
            let tenths = seconds.div_ceil(HOUR / 10);
            return match tenths % 10 {
                _ if seconds <= 2 * HOUR => Ok(()),
                0 => write!(f, " ({} h)", tenths / 10),
                tenth => write!(f, " ({}.{tenth} h)", tenths / 10),
            };
        }
        let tenths = seconds.div_ceil(DAY / 10);
        match tenths % 10 {
            0 => write!(f, "{} days", tenths / 10),
            tenth => write!(f, "{}.{tenth} days", tenths / 10),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_two_days_are_days_with_a_date() {
        let shown = |seconds: u64| WaitingTime(Micros(seconds * 1_000_000)).with_end_if_long(|| "then".to_owned());
        assert_eq!([0, 45, 7200, LONGEST].map(shown), ["0s", "45s", "7200s", "172800s (48 h)"]);
        assert_eq!(shown(39_190), "39190s (10.9 h)");
        assert_eq!(
            [LONGEST + 1, 3 * DAY, 1_071_360, 31 * DAY - 1].map(shown),
            ["2.1 days (then)", "3 days (then)", "12.4 days (then)", "31 days (then)"]
        );
        assert_eq!(WaitingTime(Micros(1)).to_string(), "1s");
    }
}
