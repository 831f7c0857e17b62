//! Rings when something has not come for too long, though what it waits for is another with every request.
//!
//! A timer that is set and forgotten with every request takes 1300 of its 90 000 instructions (docs/performance.md). So there
//! is one for a connection's life, set for an end that may be earlier than is of interest by now.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use super::poll_on_wake::PollOnWake;
use crate::base::time;
use crate::base::time::{Clock, Micros, Timestamp};

/// A timer that nobody waits for any more is held until it rings.
const LONGEST: Micros = Micros(60_000_000);
/// Pingora's timers are late by up to 20 ms, and one that rang while it was first asked would not be heard.
const SHORTEST: Micros = Micros(20_000);

pub struct ReusableTimer {
    /// When it rings.
    set: Option<(Timestamp, Timer)>,
    woken: PollOnWake,
    timer: fn(Duration) -> Timer,
}

pub type Timer = Pin<Box<dyn Future<Output = ()> + Send + Sync>>;

impl ReusableTimer {
    /// One that rings from another thread, as [`time::sleep`] does.
    pub fn coarse() -> ReusableTimer {
        ReusableTimer::by(|left| Box::pin(time::sleep(left)))
    }

    pub fn by(timer: fn(Duration) -> Timer) -> ReusableTimer {
        ReusableTimer { set: None, woken: PollOnWake::default(), timer }
    }

    /// Ready when it is `end`.
    pub fn poll(&mut self, end: Timestamp, clock: &Clock, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            match &mut self.set {
                Some((rings, timer)) if *rings <= end => {
                    ready!(self.woken.poll(cx, |cx| timer.as_mut().poll(cx)));
                    self.set = None;
                }
                // None yet, or the timeout is shorter since a reload.
                _ => {
                    let now = clock.now();
                    if now >= end {
                        return Poll::Ready(());
                    }
                    // Never set for later than `end`: it would be set again and again.
                    let left = end.since(now).min(LONGEST);
                    self.set = Some((now.plus(left), (self.timer)(left.max(SHORTEST).into())));
                    self.woken.rearm();
                }
            }
        }
    }
}

impl fmt::Debug for ReusableTimer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rings = self.set.as_ref().map(|(rings, _)| rings);
        f.debug_struct("ReusableTimer").field("rings", &rings).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    /// Asked every second for the end that counts then, it rings at `rings` and not before.
    async fn check(end: fn(u64) -> u64, rings: u64) {
        let clock = Clock::manual(Timestamp(0));
        let mut alarm = ReusableTimer::by(|left| {
            assert!(left <= Duration::from(LONGEST), "{left:?}");
            Box::pin(tokio::time::sleep(left))
        });
        for second in 0..=rings {
            let end = Timestamp(end(second) * 1_000_000);
            let rang = poll_fn(|cx| Poll::Ready(alarm.poll(end, &clock, cx))).await;
            assert_eq!(rang.is_ready(), second == rings, "{second}");
            tokio::time::advance(Duration::from_secs(1)).await;
            clock.set(clock.now().plus(Duration::from_secs(1).into()));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_alarm_set_for_an_earlier_request_rings_at_the_end_that_counts_now() {
        // Something comes after 4, 8 and 12 seconds. The last end is nearer than the one before.
        let end = |second| match second {
            0..4 => 10,
            4..8 => 14,
            8..12 => 18,
            _ => 17,
        };
        check(end, 17).await;
    }

    #[tokio::test(start_paused = true)]
    async fn an_end_that_has_passed_is_not_waited_for() {
        let clock = Clock::manual(Timestamp(20_000_000));
        let ready = async |alarm: &mut ReusableTimer, end| {
            poll_fn(|cx| Poll::Ready(alarm.poll(end, &clock, cx))).await.is_ready()
        };
        let alarm = || ReusableTimer::by(|left| Box::pin(tokio::time::sleep(left)));
        assert!(ready(&mut alarm(), Timestamp(19_000_000)).await);
        assert!(ready(&mut alarm(), clock.now()).await);
        let mut set = alarm();
        // Nearer than the shortest time for which a timer is set.
        assert!(!ready(&mut set, Timestamp(20_000_001)).await);
        assert!(!ready(&mut set, Timestamp(30_000_000)).await);
        assert!(ready(&mut set, Timestamp(19_000_000)).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_time_is_waited_for_in_parts() {
        check(|_| 250, 250).await;
    }
}
