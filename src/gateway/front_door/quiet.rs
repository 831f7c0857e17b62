//! Knows when nothing has been said for too long between two requests, and when the process leaves meanwhile.

use std::pin::Pin;
use std::task::{Context, Poll};

use super::alarm::Alarm;
use crate::time::{Clock, Timestamp};

/// What ends a connection between requests. Both are asked for at every request, and live as long as the connection.
pub struct Quiet<L> {
    leaving: L,
    alarm: Alarm,
}

impl<L: Future<Output = ()> + Unpin> Quiet<L> {
    pub fn new(leaving: L) -> Quiet<L> {
        Quiet { leaving, alarm: Alarm::from_afar() }
    }

    /// Ready once the process leaves, or when it is `end`. Not to be asked again after that.
    pub fn poll(&mut self, end: Timestamp, clock: &Clock, cx: &mut Context<'_>) -> Poll<()> {
        if Pin::new(&mut self.leaving).poll(cx).is_ready() {
            return Poll::Ready(());
        }
        self.alarm.poll(end, clock, cx)
    }
}
