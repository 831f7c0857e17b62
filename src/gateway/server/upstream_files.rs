//! Counts the open connections to upstreams, and closes unused ones when file descriptors run out.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::connection_guard::CountGuard;

/// Closes one unused connection of a pool. Returns `false` if the pool has no unused connection.
type CloseIdle = Box<dyn Fn() -> bool + Send + Sync>;

#[derive(Default)]
pub struct UpstreamFiles {
    open: Arc<AtomicUsize>,
    pools: Mutex<Vec<CloseIdle>>,
}

impl UpstreamFiles {
    /// Adds a pool. `close_idle` closes one unused connection of the pool, or returns `false` if all are used.
    pub fn add_pool(&self, close_idle: impl Fn() -> bool + Send + Sync + 'static) {
        self.pools.lock().push(Box::new(close_idle));
    }

    /// Counts one more connection to an upstream, until the guard is dropped.
    pub fn count(&self) -> CountGuard {
        CountGuard::unbounded(&self.open)
    }

    pub fn open(&self) -> usize {
        self.open.load(Ordering::Acquire)
    }

    /// Closes up to `count` connections that no request uses. Goes through the pools one after the other.
    pub fn close_idle(&self, mut count: usize) {
        for close_idle in &*self.pools.lock() {
            while count > 0 && close_idle() {
                count -= 1;
            }
        }
    }
}

impl std::fmt::Debug for UpstreamFiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UpstreamFiles").field("open", &self.open).finish_non_exhaustive()
    }
}
