//! Enforces the upstream read timeout of a stream, if the proxy has delegated it: [`crate::gateway::upstream::read_timeout`].
//!
//! A timer that is set and dropped with every stream costs three clock readings, two allocations and a search among all timers
//! of the thread. So a stream borrows a timer of its connection, which is still set for an earlier stream.

use std::task::{Context, Poll, ready};
use std::time::Duration;

use super::streams::StreamGuard;
use crate::gateway::server::http1::grace_turns::GraceTurns;
use crate::gateway::server::http1::reusable_timer::ReusableTimer;
use base::time::{Micros, Timestamp};

#[derive(Debug, Default)]
pub struct UpstreamWait {
    /// The timeout; `None`: nothing was delegated, or it has expired.
    timeout: Option<Micros>,
    /// Whether no wait has begun since the timeout was set.
    is_first: bool,
    /// The beginning of the present wait for the upstream; `None` without one.
    since: Option<Timestamp>,
    timer: Option<ReusableTimer>,
    grace: GraceTurns,
}

impl UpstreamWait {
    pub fn delegate(&mut self, timeout: Option<Duration>) {
        self.timeout = timeout.map(Micros::from);
        self.is_first = true;
        self.restart();
    }

    /// Restarts the wait, because the upstream has sent something.
    pub fn restart(&mut self) {
        self.since = None;
        self.grace.restart();
    }

    /// Ready, once, when the upstream has sent nothing for too long. The first poll after a restart begins the wait.
    pub fn poll(&mut self, stream: &StreamGuard, cx: &mut Context<'_>) -> Poll<()> {
        let Some(timeout) = self.timeout else { return Poll::Pending };
        let clock = stream.clock();
        let is_first = std::mem::take(&mut self.is_first);
        let since = *self.since.get_or_insert_with(|| {
            // The first wait begins when the request has been sent.
            let forwarded = if is_first { stream.handle().take_forwarded() } else { None };
            forwarded.unwrap_or_else(|| clock.now())
        });
        let timer = self.timer.get_or_insert_with(|| stream.borrow_timer());
        ready!(timer.poll(since.plus(timeout), clock, cx));
        ready!(self.grace.poll(cx));
        self.timeout = None;
        Poll::Ready(())
    }

    /// Returns the timer at the end of the stream.
    pub fn end(&mut self, stream: &StreamGuard) {
        if let Some(timer) = self.timer.take() {
            stream.return_timer(timer);
        }
    }
}
