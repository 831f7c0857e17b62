//! Counts a connection for as long as it is open, wherever it is held: as one of those there may be, or of those too many.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use metrics::Gauge;

use super::connections_per_client::{ClientGuard, PerClientConnections};
use crate::limit::request::ClientAddress;

/// One connection more, until this goes.
pub struct ConnectionGuard {
    open: Arc<AtomicUsize>,
    gauge: Gauge,
    /// Once it is known whose it is.
    belonging: Option<ClientGuard>,
}

impl ConnectionGuard {
    /// And how many there were before.
    pub fn new(open: &Arc<AtomicUsize>, gauge: &Gauge) -> (ConnectionGuard, usize) {
        let before = open.fetch_add(1, Ordering::AcqRel);
        gauge.increment(1.0);
        (ConnectionGuard { open: Arc::clone(open), gauge: gauge.clone(), belonging: None }, before)
    }

    /// Says whose it is; how many they had before.
    pub fn belongs_to(&mut self, client: ClientAddress, clients: &Arc<PerClientConnections>) -> usize {
        let (belonging, before) = clients.add(client);
        self.belonging = Some(belonging);
        before
    }
}

impl std::fmt::Debug for ConnectionGuard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ConnectionGuard")
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.open.fetch_sub(1, Ordering::AcqRel);
        self.gauge.decrement(1.0);
    }
}

/// A connection that is too many, while it is told so. It takes no place of those that there may be: whoever comes too often
/// keeps nobody else out by it.
#[derive(Debug)]
pub struct RejectionGuard(Arc<AtomicUsize>);

impl RejectionGuard {
    /// None where as many as `most` are being told already.
    pub fn new(told: &Arc<AtomicUsize>, most: usize) -> Option<RejectionGuard> {
        let before = told.fetch_add(1, Ordering::AcqRel);
        let new = RejectionGuard(Arc::clone(told));
        (before < most).then_some(new)
    }
}

impl Drop for RejectionGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// As what a connection is counted.
#[derive(Debug)]
#[expect(dead_code, reason = "held, until the connection is closed")]
pub enum ConnectionSlot {
    Accepted(ConnectionGuard),
    Rejected(RejectionGuard),
}
