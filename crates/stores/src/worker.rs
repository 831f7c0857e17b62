//! Identifies the gateway's worker threads.

/// The index of one of the gateway's worker threads. A remote store has one connection for each worker, driven on the worker's
/// thread. A store with fewer connections has them on the first workers, and the other workers share them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Worker(pub usize);
