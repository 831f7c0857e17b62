//! Holds the deadline of the current request of a client connection (`timeouts.total`).
//!
//! The proxy sets it, and the connection enforces it, as with the [read timeout](super::read_timeout). A stream of HTTP/2 has
//! its own, which its request carries with its head: [`RequestDeadline::of_stream`].

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http::request::Parts;

use base::time::Timestamp;

const NONE: u64 = u64::MAX;

/// The deadline of the current request on one client connection, or of a stream. Only the tasks of that connection or stream use
/// it.
#[derive(Debug)]
pub struct RequestDeadline(AtomicU64);

impl Default for RequestDeadline {
    fn default() -> RequestDeadline {
        RequestDeadline(AtomicU64::new(NONE))
    }
}

impl RequestDeadline {
    /// Gives a request of HTTP/2 a deadline of its own.
    pub fn attach(head: &mut Parts) -> Arc<RequestDeadline> {
        let deadline = Arc::new(RequestDeadline::default());
        head.extensions.insert(Arc::clone(&deadline));
        deadline
    }

    /// The deadline that a request of HTTP/2 carries.
    pub fn of_stream(head: &Parts) -> Option<&RequestDeadline> {
        head.extensions.get::<Arc<RequestDeadline>>().map(|deadline| &**deadline)
    }

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
