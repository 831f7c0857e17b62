//! Clocks, and timers for the thread of a request. This is the only file that reads a clock.
//!
//! Code that makes a decision takes the time as an argument, a [`Timestamp`]. Code that needs the present time has a
//! [`Clock`]. Timestamps are microseconds since the Unix epoch, so that windows can be aligned to the epoch. They
//! advance with the monotonic clock, so setting the wall clock never refills a bucket.

/// Timers that a separate thread drives. They may be up to 20 ms late, but cost little. A timer of the request thread
/// would make the kernel set an alarm whenever the thread is idle.
pub use pingora_timeout::{sleep, timeout};

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use serde::{Deserialize, Serialize};

/// How late [`sleep`] and [`timeout`] can end. Both round a time up to a multiple of 10 ms, and check it every 10 ms.
const LATE: Duration = Duration::from_millis(20);

/// Sleeps for `span`, more precisely than [`sleep`]. It begins with [`sleep`], which is cheap, and ends with a timer of
/// tokio, which is precise.
pub async fn sleep_precisely(span: Duration) {
    let end = tokio::time::Instant::now() + span;
    // For a short span only the precise timer is used, because `sleep` could end after the span.
    if let Some(most) = span.checked_sub(LATE).filter(|most| *most >= LATE) {
        sleep(most).await;
    }
    tokio::time::sleep_until(end).await;
}

/// Waits until `work` ends, but at most for `span`, as precisely as [`sleep_precisely`]. `None` if `work` has not
/// ended.
pub async fn timeout_precisely<T>(span: Duration, work: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        done = work => Some(done),
        () = sleep_precisely(span) => None,
    }
}

/// A moment, in microseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// Returns the time from `earlier` to `self`. Zero if `earlier` is in fact the later moment.
    pub fn since(self, earlier: Timestamp) -> Micros {
        Micros(self.0.saturating_sub(earlier.0))
    }

    pub fn plus(self, span: Micros) -> Timestamp {
        Timestamp(self.0.saturating_add(span.0))
    }
}

/// A length of time in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Micros(pub u64);

impl Micros {
    pub fn plus(self, other: Micros) -> Micros {
        Micros(self.0.saturating_add(other.0))
    }

    /// Returns this length of time in seconds, the unit of metrics.
    #[expect(clippy::cast_precision_loss, reason = "a duration beyond 2^53 µs is 285 years")]
    pub fn seconds(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// Returns this length of time in whole seconds, rounded up. Used for the fields of responses.
    pub fn ceil_seconds(self) -> u64 {
        self.0.div_ceil(1_000_000)
    }
}

impl From<Duration> for Micros {
    fn from(duration: Duration) -> Micros {
        Micros(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX))
    }
}

impl From<Micros> for Duration {
    fn from(span: Micros) -> Duration {
        Duration::from_micros(span.0)
    }
}

/// The source of the present time: the machine's clock, or a clock that is set by hand.
#[derive(Clone, Debug)]
pub enum Clock {
    System {
        epoch: Timestamp,
        start: Instant,
        /// The microseconds by which the wall clock was ahead of this clock at the last comparison.
        ahead: Arc<AtomicI64>,
    },
    Manual(Arc<AtomicU64>),
}

impl Clock {
    /// Makes a clock that starts with the wall clock's time, and advances with the machine's monotonic clock.
    #[expect(clippy::disallowed_methods, reason = "this file is where clocks are read")]
    pub fn system() -> Clock {
        let epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Clock::System { epoch: Timestamp(Micros::from(epoch).0), start: Instant::now(), ahead: Arc::default() }
    }

    /// Makes a clock whose time changes only when [`Clock::set`] sets it, forwards or backwards.
    pub fn manual(now: Timestamp) -> Clock {
        Clock::Manual(Arc::new(AtomicU64::new(now.0)))
    }

    pub fn now(&self) -> Timestamp {
        match self {
            Clock::System { epoch, start, .. } => epoch.plus(Micros::from(start.elapsed())),
            Clock::Manual(now) => Timestamp(now.load(Ordering::Acquire)),
        }
    }

    /// Returns the time of the machine's wall clock, to compare it with the times in tokens. Unlike [`Clock::now`],
    /// this time changes when an operator sets the clock.
    #[expect(clippy::disallowed_methods, reason = "this file is where clocks are read")]
    pub fn wall(&self) -> Timestamp {
        match self {
            Clock::System { .. } => {
                let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
                Timestamp(Micros::from(since_epoch).0)
            }
            Clock::Manual(_) => self.now(),
        }
    }

    /// Converts a moment of [`Clock::now`] to the time of the wall clock, to compare it with a date that a person
    /// wrote. Uses the difference that [`Clock::compare`] found last.
    pub fn date(&self, moment: Timestamp) -> Timestamp {
        match self {
            Clock::System { ahead, .. } => Timestamp(moment.0.saturating_add_signed(ahead.load(Ordering::Relaxed))),
            Clock::Manual(_) => moment,
        }
    }

    /// Compares this clock with the wall clock, which may have been set. Keeps the difference for [`Clock::date`].
    pub fn compare(&self) {
        if let Clock::System { ahead, .. } = self {
            let (wall, now) = (self.wall().0, self.now().0);
            let difference = i64::try_from(wall.abs_diff(now)).unwrap_or(i64::MAX);
            ahead.store(if wall < now { -difference } else { difference }, Ordering::Relaxed);
        }
    }

    /// Returns the time of a manual clock. `None` for the machine's clock.
    pub fn injected(&self) -> Option<Timestamp> {
        match self {
            Clock::System { .. } => None,
            Clock::Manual(_) => Some(self.now()),
        }
    }

    /// Sets this clock to `moment` if it is a manual clock. Does nothing if this clock reads the time of the machine.
    pub fn set(&self, moment: Timestamp) {
        if let Clock::Manual(now) = self {
            now.store(moment.0, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_for_clients_are_rounded_up() {
        assert_eq!(Micros(0).ceil_seconds(), 0);
        assert_eq!(Micros(1).ceil_seconds(), 1);
        assert_eq!(Micros(1_000_000).ceil_seconds(), 1);
        assert_eq!(Micros(1_000_001).ceil_seconds(), 2);
    }

    #[test]
    fn a_date_follows_the_wall_clock_as_last_compared() {
        let clock = Clock::system();
        let Clock::System { epoch, start, ahead } = &clock else { panic!("{clock:?}") };
        let hour = 3_600_000_000;
        // The wall clock was set an hour ahead. `compare` has not noticed this yet.
        let late = Clock::System { epoch: Timestamp(epoch.0 - hour), start: *start, ahead: Arc::clone(ahead) };
        let now = late.now();
        assert_eq!(late.date(now), now);
        late.compare();
        let reported = late.date(now).since(now).0;
        assert!((hour - 1_000_000..hour + 1_000_000).contains(&reported), "{reported}");
        let early = Clock::System { epoch: Timestamp(epoch.0 + hour), start: *start, ahead: Arc::clone(ahead) };
        early.compare();
        let now = early.now();
        assert!(now.since(early.date(now)).0 > hour - 1_000_000);
    }

    #[test]
    fn the_system_clock_never_steps_back() {
        let clock = Clock::system();
        let first = clock.now();
        assert!(clock.now() >= first);
    }
}
