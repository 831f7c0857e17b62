//! Identifies the gateway's worker threads.

/// The index of one of the gateway's worker threads. A remote store has one connection for each worker, or fewer
/// connections that workers share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Worker(pub usize);
