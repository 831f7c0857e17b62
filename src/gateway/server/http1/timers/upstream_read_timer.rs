//! Enforces the upstream read timeout where the proxy has delegated it to the client's connection.
//!
//! [`crate::gateway::upstream::read_timeout`] decides that; this only keeps the time.

use std::task::{Context, Poll};

use super::reusable_timer::ReusableTimer;
use crate::base::time::{Clock, Micros, Timestamp};

#[derive(Debug)]
pub struct UpstreamReadTimer {
    /// Since when the upstream has been waited for; `None` if it is not.
    since: Option<Timestamp>,
    timer: ReusableTimer,
    clock: Clock,
}

impl UpstreamReadTimer {
    pub fn new(clock: Clock) -> UpstreamReadTimer {
        UpstreamReadTimer { since: None, timer: ReusableTimer::coarse(), clock }
    }

    /// The upstream has sent something, or a new request begins.
    pub fn restart(&mut self) {
        self.since = None;
    }

    /// Ready once the upstream has been waited for as long as `timeout`. The first poll after a restart begins the wait.
    pub fn poll(&mut self, timeout: Micros, cx: &mut Context<'_>) -> Poll<()> {
        let since = *self.since.get_or_insert_with(|| self.clock.now());
        self.timer.poll(since.plus(timeout), &self.clock, cx)
    }
}
