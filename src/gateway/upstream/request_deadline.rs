//! Holds the deadline of the current request of a client connection (`timeouts.total`), which the connection enforces.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use base::time::Timestamp;

const NONE: u64 = u64::MAX;

/// The deadline of the current request on one client connection. Only the task of that connection uses it.
#[derive(Debug)]
pub struct RequestDeadline(AtomicU64);

impl Default for RequestDeadline {
    fn default() -> RequestDeadline {
        RequestDeadline(AtomicU64::new(NONE))
    }
}

impl RequestDeadline {
    pub fn set(&self, deadline: Timestamp) {
        self.0.store(deadline.0, Ordering::Relaxed);
    }

    /// Removes the deadline.
    pub fn clear(&self) {
        self.0.store(NONE, Ordering::Relaxed);
    }

    pub fn get(&self) -> Option<Timestamp> {
        match self.0.load(Ordering::Relaxed) {
            NONE => None,
            deadline => Some(Timestamp(deadline)),
        }
    }
}

/// The request has taken longer than it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpstreamTimedOut;

impl From<UpstreamTimedOut> for io::Error {
    fn from(timed_out: UpstreamTimedOut) -> io::Error {
        io::Error::new(io::ErrorKind::TimedOut, timed_out)
    }
}

impl fmt::Display for UpstreamTimedOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the request took too long")
    }
}

impl std::error::Error for UpstreamTimedOut {}
