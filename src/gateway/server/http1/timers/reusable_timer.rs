//! A timer that a connection uses for all its requests.
//!
//! To set and drop a timer takes 1300 of the 90 000 instructions of a request. The timer may fire before the current
//! deadline. It is then set again.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use super::poll_on_wake::PollOnWake;
use base::time;
use base::time::{Clock, Micros, Timestamp};

/// The longest time for which the timer is set. A timer that nobody waits for stays in memory until it fires.
const LONGEST: Micros = Micros(60_000_000);
/// The shortest time for which the timer is set. A timer that fires during its first poll wakes nobody.
const SHORTEST: Micros = Micros(20_000);

pub(crate) struct ReusableTimer {
    /// The timer, with the time at which it fires; `None` if it is not set.
    set: Option<(Timestamp, Timer)>,
    woken: PollOnWake,
    timer: fn(Duration) -> Timer,
}

pub(crate) type Timer = Pin<Box<dyn Future<Output = ()> + Send + Sync>>;

impl ReusableTimer {
    /// Makes a timer that uses Pingora's timer thread, like [`time::sleep`]. It is cheap, and up to 20 ms late.
    pub(crate) fn coarse() -> ReusableTimer {
        ReusableTimer::with(|left| Box::pin(time::sleep(left)))
    }

    pub(crate) fn with(timer: fn(Duration) -> Timer) -> ReusableTimer {
        ReusableTimer { set: None, woken: PollOnWake::default(), timer }
    }

    /// Becomes ready at `deadline`, which may differ from poll to poll.
    pub(crate) fn poll(&mut self, deadline: Timestamp, clock: &Clock, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            match &mut self.set {
                Some((fires_at, timer)) if *fires_at <= deadline => {
                    ready!(self.woken.poll(cx, |cx| timer.as_mut().poll(cx)));
                    self.set = None;
                }
                // The timer is not set, or fires too late, because a reload has made the timeout shorter.
                _ => {
                    let now = clock.now();
                    if now >= deadline {
                        return Poll::Ready(());
                    }
                    // The recorded time is never later than `deadline`. Otherwise each poll would set the timer again.
                    let left = deadline.since(now).min(LONGEST);
                    self.set = Some((now.plus(left), (self.timer)(left.max(SHORTEST).into())));
                    self.woken.rearm();
                }
            }
        }
    }
}

impl fmt::Debug for ReusableTimer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fires_at = self.set.as_ref().map(|(fires_at, _)| fires_at);
        f.debug_struct("ReusableTimer").field("fires_at", &fires_at).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    /// Polls every second with the deadline of that second. The timer is ready at `fires`, in seconds, and not before.
    async fn check(deadline: fn(u64) -> u64, fires: u64) {
        let clock = Clock::manual(Timestamp(0));
        let mut timer = ReusableTimer::with(|left| {
            assert!(left <= Duration::from(LONGEST), "{left:?}");
            Box::pin(tokio::time::sleep(left))
        });
        for second in 0..=fires {
            let deadline = Timestamp(deadline(second) * 1_000_000);
            let fired = poll_fn(|cx| Poll::Ready(timer.poll(deadline, &clock, cx))).await;
            assert_eq!(fired.is_ready(), second == fires, "{second}");
            tokio::time::advance(Duration::from_secs(1)).await;
            clock.set(clock.now().plus(Duration::from_secs(1).into()));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_timer_that_was_set_for_an_earlier_request_fires_at_the_current_deadline() {
        // The deadline moves after 4, 8 and 12 seconds. The last deadline is earlier than the one before.
        let deadline = |second| match second {
            0..4 => 10,
            4..8 => 14,
            8..12 => 18,
            _ => 17,
        };
        check(deadline, 17).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_deadline_that_has_passed_is_ready_at_once() {
        let clock = Clock::manual(Timestamp(20_000_000));
        let ready = async |timer: &mut ReusableTimer, deadline| {
            poll_fn(|cx| Poll::Ready(timer.poll(deadline, &clock, cx))).await.is_ready()
        };
        let timer = || ReusableTimer::with(|left| Box::pin(tokio::time::sleep(left)));
        assert!(ready(&mut timer(), Timestamp(19_000_000)).await);
        assert!(ready(&mut timer(), clock.now()).await);
        let mut set = timer();
        // This deadline is nearer than `SHORTEST`.
        assert!(!ready(&mut set, Timestamp(20_000_001)).await);
        assert!(!ready(&mut set, Timestamp(30_000_000)).await);
        assert!(ready(&mut set, Timestamp(19_000_000)).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_distant_deadline_is_waited_for_in_parts() {
        check(|_| 250, 250).await;
    }
}
