//! Enforces the upstream read timeout of a stream.
//!
//! A timer for every stream would cost much. So a stream borrows a timer of its connection.

use std::task::{Context, Poll, ready};

use super::streams::StreamGuard;
use crate::gateway::server::http1::grace_turns::GraceTurns;
use crate::gateway::server::http1::reusable_timer::ReusableTimer;
use base::time::{Micros, Timestamp};

#[derive(Debug, Default)]
pub(super) struct UpstreamWait {
    /// The time at which the current wait for the upstream began; `None` if there is no wait.
    since: Option<Timestamp>,
    timer: Option<ReusableTimer>,
    grace: GraceTurns,
}

impl UpstreamWait {
    /// Restarts the wait for the upstream, because the upstream has sent or accepted bytes.
    pub(super) fn restart(&mut self) {
        self.since = None;
        self.grace.restart();
    }

    /// Becomes ready when the wait for the upstream has lasted for `timeout`. The wait begins with the first poll after
    /// [`UpstreamWait::restart`].
    pub(super) fn poll(&mut self, timeout: Micros, stream: &StreamGuard, cx: &mut Context<'_>) -> Poll<()> {
        let clock = stream.clock();
        let since = *self.since.get_or_insert_with(|| clock.now());
        let timer = self.timer.get_or_insert_with(|| stream.borrow_timer());
        ready!(timer.poll(since.plus(timeout), clock, cx));
        self.grace.poll(cx)
    }

    /// Gives the borrowed timer back to the connection, at the end of the stream.
    pub(super) fn end(&mut self, stream: &StreamGuard) {
        if let Some(timer) = self.timer.take() {
            stream.return_timer(timer);
        }
    }
}
