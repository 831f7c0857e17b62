//! Identifies the gateway's worker threads.

/// The index of one of the gateway's worker threads. A remote store has a connection for each, driven on that thread; or for the first
/// ones, which the others share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Worker(pub usize);
