//! Holds whether the process accepts connections and whether it is exiting. Wakes the reload when an operator requests it.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::{Notify, watch};

/// Whether the process accepts new connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AcceptPhase {
    /// No connection is accepted yet: the previous process accepts them until this one has its buckets, or has reached the store and
    /// the keys.
    NotYet,
    #[default]
    Open,
    /// No connection is accepted while the next process receives the buckets. If this fails, the present process accepts
    /// connections again.
    Paused,
    /// The next process accepts new connections. Connections that are already open continue in this process.
    Closed,
}

#[derive(Debug, Default)]
pub struct Lifecycle {
    draining: AtomicBool,
    /// Whether the process exits although requests still run.
    leaving: AtomicBool,
    handed_over: AtomicBool,
    accept_phase: watch::Sender<AcceptPhase>,
    /// Each listening socket has a receiver of this channel while it accepts. When no receiver is left, no socket
    /// accepts.
    accepting: watch::Sender<()>,
    reload: Notify,
    /// Whether all tunnels must close. Each tunnel has a receiver until its request has ended.
    tunnels: watch::Sender<bool>,
}

impl Lifecycle {
    /// Returns whether the process is about to exit. Responses then say `Connection: close`, and `/readyz` fails.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    pub fn begin_draining(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// Returns whether the process exits now. No request is charged any more, because no record of it would be written.
    pub fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Relaxed)
    }

    pub fn leave(&self) {
        self.leaving.store(true, Ordering::Relaxed);
    }

    /// Returns whether another process has taken over the listening sockets.
    pub fn is_handed_over(&self) -> bool {
        self.handed_over.load(Ordering::Relaxed)
    }

    pub fn hand_over(&self) {
        self.handed_over.store(true, Ordering::Relaxed);
    }

    /// Brings the process back to normal operation: undoes [`Lifecycle::hand_over`], [`Lifecycle::begin_draining`] and
    /// [`AcceptPhase::Paused`].
    pub fn resume(&self) {
        // The flag for draining is cleared first, so that the process counts as ready all the time.
        self.draining.store(false, Ordering::Release);
        self.handed_over.store(false, Ordering::Release);
        self.set_accept_phase(AcceptPhase::Open);
    }

    pub fn set_accept_phase(&self, phase: AcceptPhase) {
        self.accept_phase.send_replace(phase);
    }

    /// Returns a receiver of the accept phase. A listening socket uses it to learn whether it may accept connections.
    pub fn accept_phase(&self) -> watch::Receiver<AcceptPhase> {
        self.accept_phase.subscribe()
    }

    /// Returns a channel to which each listening socket subscribes while it accepts connections.
    pub fn accepting(&self) -> watch::Sender<()> {
        self.accepting.clone()
    }

    /// Waits until no listening socket accepts connections: no receiver of [`Lifecycle::accepting`] is left.
    pub async fn accepts_no_more(&self) {
        self.accepting.closed().await;
    }

    /// Returns a channel for a connection that has become a tunnel. The connection must be closed when the channel's value is
    /// true.
    pub fn tunnel(&self) -> watch::Receiver<bool> {
        self.tunnels.subscribe()
    }

    /// Makes all tunnels close, and waits until their requests have ended.
    pub async fn cut_tunnels(&self) {
        self.tunnels.send_replace(true);
        self.tunnels.closed().await;
    }

    /// Requests a reload of the configuration and its files, as SIGHUP does. If a reload is running, another one follows it.
    pub fn request_reload(&self) {
        self.reload.notify_one();
    }

    /// Waits until a reload is requested.
    pub async fn reload_requested(&self) {
        self.reload.notified().await;
    }
}
