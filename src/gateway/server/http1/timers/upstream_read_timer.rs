//! Knows when the upstream has said nothing for too long to a request of which nothing is left to be read.
//!
//! Pingora's own timer is a new one for every time that it begins to wait, one and a half for a request. Where a request has a
//! body, both sides may be waited for, and it is Pingora's that counts.

use std::fmt;
use std::io;
use std::task::{Context, Poll, ready};

use super::reusable_timer::ReusableTimer;
use crate::base::time::{Clock, Micros, Timestamp};

#[derive(Debug)]
pub struct UpstreamReadTimeout {
    /// How long it may last; none if nobody is waited for.
    most: Option<Micros>,
    since: Option<Timestamp>,
    alarm: ReusableTimer,
    clock: Clock,
}

/// It has lasted too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpstreamTimedOut;

impl UpstreamReadTimeout {
    pub fn new(clock: Clock) -> UpstreamReadTimeout {
        UpstreamReadTimeout { most: None, since: None, alarm: ReusableTimer::from_afar(), clock }
    }

    /// A request begins. The silence does once an upstream is waited for.
    pub fn begin(&mut self, most: Option<Micros>) {
        self.most = most;
        self.since = None;
    }

    /// The upstream has said something.
    pub fn end(&mut self) {
        self.since = None;
    }

    /// Ready with an error once it has lasted too long.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        let Some(most) = self.most else { return Poll::Pending };
        let since = *self.since.get_or_insert_with(|| self.clock.now());
        ready!(self.alarm.poll(since.plus(most), &self.clock, cx));
        Poll::Ready(UpstreamTimedOut.into())
    }
}

impl From<UpstreamTimedOut> for io::Error {
    fn from(too_long: UpstreamTimedOut) -> io::Error {
        io::Error::new(io::ErrorKind::TimedOut, too_long)
    }
}

impl fmt::Display for UpstreamTimedOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("nothing from the upstream in time")
    }
}

impl std::error::Error for UpstreamTimedOut {}
