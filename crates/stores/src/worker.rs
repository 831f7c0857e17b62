//! Identifies the gateway's worker threads.

/// The index of one of the gateway's worker threads. A remote store has a connection for each worker, driven on that thread; or
/// connections for the first workers only, which the others share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Worker(pub usize);
