//! Holds whether the process accepts connections and whether it is leaving, and wakes the reload when an operator asks for
//! one.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::{Notify, watch};

/// Whether new connections are accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AcceptPhase {
    /// Not before the previous process has handed over its buckets.
    NotYet,
    #[default]
    Open,
    /// The next process accepts them. Those that are open go on.
    Closed,
}

#[derive(Debug, Default)]
pub struct Lifecycle {
    draining: AtomicBool,
    handed_over: AtomicBool,
    accept_phase: watch::Sender<AcceptPhase>,
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

    pub fn set_accept_phase(&self, phase: AcceptPhase) {
        self.accept_phase.send_replace(phase);
    }

    /// For a listening socket, until it accepts no more.
    pub fn accept_phase(&self) -> watch::Receiver<AcceptPhase> {
        self.accept_phase.subscribe()
    }

    /// Returns when no listening socket has a receiver of [`Lifecycle::accept_phase`] left.
    pub async fn accepts_no_more(&self) {
        self.accept_phase.closed().await;
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
