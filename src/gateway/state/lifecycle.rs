//! Holds whether the process is leaving, and wakes the reload when an operator asks for one.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

#[derive(Debug, Default)]
pub struct Lifecycle {
    draining: AtomicBool,
    handed_over: AtomicBool,
    reload: Notify,
}

impl Lifecycle {
    /// Whether the process is about to exit: responses say `Connection: close`, and it is not ready.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    pub fn begin_draining(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// Whether another process has taken over the sockets.
    pub fn is_handed_over(&self) -> bool {
        self.handed_over.load(Ordering::Relaxed)
    }

    pub fn hand_over(&self) {
        self.handed_over.store(true, Ordering::Relaxed);
    }

    /// Asks for the files to be read again, as SIGHUP does. A request that arrives while one is being served is kept.
    pub fn request_reload(&self) {
        self.reload.notify_one();
    }

    /// Returns when a reload has been requested.
    pub async fn reload_requested(&self) {
        self.reload.notified().await;
    }
}
