//! Names the gateway's threads.

/// One of the gateway's threads. A store that is elsewhere has a link for each, driven on the thread that asks on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Worker(pub usize);
