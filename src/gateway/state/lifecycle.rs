//! Holds whether the process accepts connections and whether it is leaving, and wakes the reload when an operator requests one.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::{Notify, watch};

/// Whether new connections are accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AcceptPhase {
    /// Not before the previous process has handed over its buckets.
    NotYet,
    #[default]
    Open,
    /// The next process receives the buckets. If it fails, this one accepts again.
    Paused,
    /// The next process accepts connections. Open ones continue in this process.
    Closed,
}

#[derive(Debug, Default)]
pub struct Lifecycle {
    draining: AtomicBool,
    handed_over: AtomicBool,
    accept_phase: watch::Sender<AcceptPhase>,
    /// The channel of which each listening socket has a receiver while it accepts.
    accepting: watch::Sender<()>,
    reload: Notify,
    /// Whether tunnels are cut. Each tunnel has a receiver until its request has ended.
    tunnels: watch::Sender<bool>,
}

impl Lifecycle {
    /// Whether the process is about to exit: responses say `Connection: close`, and `/readyz` fails.
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

    /// Undoes [`Lifecycle::hand_over`], [`Lifecycle::begin_draining`] and [`AcceptPhase::Paused`].
    pub fn resume(&self) {
        // In this order, so that the process is ready all the time.
        self.draining.store(false, Ordering::Release);
        self.handed_over.store(false, Ordering::Release);
        self.set_accept_phase(AcceptPhase::Open);
    }

    pub fn set_accept_phase(&self, phase: AcceptPhase) {
        self.accept_phase.send_replace(phase);
    }

    /// The accept phase, which a listening socket follows.
    pub fn accept_phase(&self) -> watch::Receiver<AcceptPhase> {
        self.accept_phase.subscribe()
    }

    /// The channel to which a listening socket subscribes while it accepts.
    pub fn accepting(&self) -> watch::Sender<()> {
        self.accepting.clone()
    }

    /// Waits until no listening socket has a receiver of [`Lifecycle::accepting`].
    pub async fn accepts_no_more(&self) {
        self.accepting.closed().await;
    }

    /// The channel for a connection that has become a tunnel. The connection must be closed when the value is true.
    pub fn tunnel(&self) -> watch::Receiver<bool> {
        self.tunnels.subscribe()
    }

    /// Cuts the tunnels, and waits until their requests have ended.
    pub async fn cut_tunnels(&self) {
        self.tunnels.send_replace(true);
        self.tunnels.closed().await;
    }

    /// Requests that the files are read again, as SIGHUP does. A request during a reload is kept for the next one.
    pub fn request_reload(&self) {
        self.reload.notify_one();
    }

    /// Waits until a reload is requested.
    pub async fn reload_requested(&self) {
        self.reload.notified().await;
    }
}
