//! Enforces `read_timeout` and `timeouts.total` for a request over HTTP/1.x.

use std::task::{Context, Poll, ready};

use super::grace_turns::GraceTurns;
use super::reusable_timer::ReusableTimer;
use base::time::{Clock, Micros, Timestamp};

#[derive(Debug)]
pub(crate) struct ExchangeTimer {
    /// The time at which the current wait for the upstream began; `None` if there is no wait.
    since: Option<Timestamp>,
    timer: ReusableTimer,
    grace: GraceTurns,
    clock: Clock,
}

impl ExchangeTimer {
    pub(crate) fn new(clock: Clock) -> ExchangeTimer {
        ExchangeTimer { since: None, timer: ReusableTimer::coarse(), grace: GraceTurns::default(), clock }
    }

    /// Restarts the wait for the upstream, because the upstream has sent something or a new request begins.
    pub(crate) fn restart(&mut self) {
        self.since = None;
        self.grace.restart();
    }

    /// Becomes ready when the wait for the upstream has lasted for `timeout`. The wait begins with the first poll, or
    /// with the first poll after [`ExchangeTimer::restart`].
    pub(crate) fn poll(&mut self, timeout: Micros, cx: &mut Context<'_>) -> Poll<()> {
        let since = *self.since.get_or_insert_with(|| self.clock.now());
        ready!(self.timer.poll(since.plus(timeout), &self.clock, cx));
        self.grace.poll(cx)
    }

    /// Becomes ready at this deadline.
    pub(crate) fn poll_deadline(&mut self, deadline: Timestamp, cx: &mut Context<'_>) -> Poll<()> {
        self.timer.poll(deadline, &self.clock, cx)
    }
}
