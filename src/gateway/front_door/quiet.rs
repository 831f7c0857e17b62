//! Knows when nothing has been said for too long between two requests, and when the process leaves meanwhile.
//!
//! Both are asked for at every request and hardly ever come true. So they live as long as the connection: setting and
//! forgetting a timer takes 1300 of the 90 000 instructions of a request without rules (docs/performance.md).

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::Sleep;

use crate::time::{Clock, Timestamp};

/// What ends a connection between requests.
pub struct Quiet<L> {
    leaving: L,
    /// When it rings, which may be earlier than is of interest by now.
    alarm: Option<(Timestamp, Pin<Box<Sleep>>)>,
}

impl<L: Future<Output = ()> + Unpin> Quiet<L> {
    pub fn new(leaving: L) -> Quiet<L> {
        Quiet { leaving, alarm: None }
    }

    /// Ready once the process leaves, or when it is `end`. Not to be asked again after that.
    pub fn poll(&mut self, end: Timestamp, clock: &Clock, cx: &mut Context<'_>) -> Poll<()> {
        if Pin::new(&mut self.leaving).poll(cx).is_ready() {
            return Poll::Ready(());
        }
        loop {
            match &mut self.alarm {
                Some((rings, sleep)) if *rings <= end => {
                    ready!(sleep.as_mut().poll(cx));
                    if clock.now() >= end {
                        return Poll::Ready(());
                    }
                    self.alarm = None;
                }
                // None yet, or the timeout is shorter since a reload.
                _ => {
                    let left = Duration::from(end.since(clock.now()));
                    self.alarm = Some((end, Box::pin(tokio::time::sleep(left))));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, poll_fn};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_alarm_set_for_an_earlier_request_rings_at_the_end_that_counts_now() {
        let clock = Clock::manual(Timestamp(0));
        let mut quiet = Quiet::new(pending());
        for second in 0..=17 {
            // Something comes after 4, 8 and 12 seconds. The last end is nearer than the one before.
            let end = match second {
                0..4 => 10,
                4..8 => 14,
                8..12 => 18,
                _ => 17,
            };
            let rang = poll_fn(|cx| Poll::Ready(quiet.poll(Timestamp(end * 1_000_000), &clock, cx))).await;
            assert_eq!(rang.is_ready(), second == 17, "{second}");
            tokio::time::advance(Duration::from_secs(1)).await;
            clock.set(clock.now().plus(Duration::from_secs(1).into()));
        }
    }
}
