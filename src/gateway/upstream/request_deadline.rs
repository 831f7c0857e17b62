//! Holds the time by which the current request of a client connection has to have ended (`timeouts.total`).
//!
//! The proxy sets it, and the connection enforces it, as it does with the [read timeout](super::read_timeout).

use std::sync::atomic::{AtomicU64, Ordering};

use crate::base::time::Timestamp;

const NONE: u64 = u64::MAX;

/// The deadline of the current request on one client connection. Written and read by the tasks of that connection only.
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

    /// The request may take as long as it wants.
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
