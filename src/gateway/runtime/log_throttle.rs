//! Keeps a fault that every request meets from flooding the log: one line a second or so, saying how many it stands for.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::base::time::{Micros, Timestamp};

#[derive(Debug, Default)]
pub struct LogThrottle {
    /// In which second, or other span, the last line was.
    said_in: AtomicU64,
    unsaid: AtomicU64,
}

impl LogThrottle {
    /// How many lines this one stands for, itself included; none when it is not to be said.
    pub fn say(&self, now: Timestamp) -> Option<u64> {
        self.say_each(Micros(1_000_000), now)
    }

    /// The same at another pace.
    pub fn say_each(&self, pace: Micros, now: Timestamp) -> Option<u64> {
        let span = now.0 / pace.0;
        let unsaid = self.unsaid.fetch_add(1, Ordering::Relaxed) + 1;
        let last = self.said_in.load(Ordering::Relaxed);
        let first =
            last != span && self.said_in.compare_exchange(last, span, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        first.then(|| self.unsaid.swap(0, Ordering::Relaxed).max(unsaid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_second_stands_for_all_since_the_last() {
        let sampled = LogThrottle::default();
        let second = |second: u64, more: u64| Timestamp(second * 1_000_000 + more);
        assert_eq!(sampled.say(second(10, 0)), Some(1));
        for more in 1..=5 {
            assert_eq!(sampled.say(second(10, more)), None);
        }
        assert_eq!(sampled.say(second(11, 0)), Some(6));
        assert_eq!(sampled.say(second(12, 0)), Some(1));
    }
}
