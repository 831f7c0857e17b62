//! Limits the log lines about a frequent fault: one line a second, with the number of faults that it reports.

use std::sync::atomic::{AtomicU64, Ordering};

use base::time::{Micros, Timestamp};

#[derive(Debug, Default)]
pub(crate) struct LogThrottle {
    /// The number of the interval in which the last line was logged, counted from the epoch.
    last_logged: AtomicU64,
    /// The number of lines that were suppressed since the last line.
    held_back: AtomicU64,
}

impl LogThrottle {
    /// Decides whether to log a line about a fault: at most one line per second. Returns the number of faults that the line
    /// reports, including this fault. Returns `None` if no line must be logged.
    pub(crate) fn admit(&self, now: Timestamp) -> Option<u64> {
        self.admit_every(Micros(1_000_000), now)
    }

    /// Decides whether to log a line, like [`LogThrottle::admit`], but allows at most one line in each `interval`.
    pub(crate) fn admit_every(&self, interval: Micros, now: Timestamp) -> Option<u64> {
        let current = now.0 / interval.0;
        let held_back = self.held_back.fetch_add(1, Ordering::Relaxed) + 1;
        let last = self.last_logged.load(Ordering::Relaxed);
        let first = last != current
            && self.last_logged.compare_exchange(last, current, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        first.then(|| self.held_back.swap(0, Ordering::Relaxed).max(held_back))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_second_counts_all_since_the_previous_one() {
        let throttle = LogThrottle::default();
        let second = |second: u64, more: u64| Timestamp(second * 1_000_000 + more);
        assert_eq!(throttle.admit(second(10, 0)), Some(1));
        for more in 1..=5 {
            assert_eq!(throttle.admit(second(10, more)), None);
        }
        assert_eq!(throttle.admit(second(11, 0)), Some(6));
        assert_eq!(throttle.admit(second(12, 0)), Some(1));
    }
}
