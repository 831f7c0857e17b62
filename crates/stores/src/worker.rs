//! Identifies the gateway's worker threads.

/// The index of one of the gateway's worker threads. A remote store has a connection for each worker, or for the first
/// workers, with which the others share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Worker(pub usize);
