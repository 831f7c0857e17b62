//! RAII guards that count a connection until it is closed. Accepted and rejected connections are counted separately.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use metrics::Gauge;

use super::connections_per_client::ClientGuard;

/// Counts one open connection until the guard is dropped.
pub struct ConnectionGuard {
    open: Arc<AtomicUsize>,
    gauge: Gauge,
    /// The client's guard; set once the client is known.
    client: Option<ClientGuard>,
}

impl ConnectionGuard {
    /// Counts a connection as open. Also returns the number of connections that were open before.
    pub fn new(open: &Arc<AtomicUsize>, gauge: &Gauge) -> (ConnectionGuard, usize) {
        let before = open.fetch_add(1, Ordering::AcqRel);
        gauge.increment(1.0);
        (ConnectionGuard { open: Arc::clone(open), gauge: gauge.clone(), client: None }, before)
    }

    /// Moves the connection to the gauge of its protocol. Called when the protocol is known.
    pub fn speaks(&mut self, gauge: &Gauge) {
        gauge.increment(1.0);
        self.gauge.decrement(1.0);
        self.gauge = gauge.clone();
    }

    /// Counts the connection also for this client, until the connection is closed.
    pub fn belongs_to(&mut self, client: ClientGuard) {
        self.client = Some(client);
    }

    /// Returns the client for which the connection is counted, if there is one.
    pub fn client(&self) -> Option<&ClientGuard> {
        self.client.as_ref()
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

/// Counts one item until the guard is dropped: a handshake, a connection to an upstream, or a rejected connection.
#[derive(Debug)]
pub struct CountGuard(Arc<AtomicUsize>);

impl CountGuard {
    /// Counts one more item. `None` if `most` items are counted already.
    pub fn new(count: &Arc<AtomicUsize>, most: usize) -> Option<CountGuard> {
        let before = count.fetch_add(1, Ordering::AcqRel);
        let guard = CountGuard(Arc::clone(count));
        (before < most).then_some(guard)
    }

    /// Counts one more item, without a limit.
    pub fn unbounded(count: &Arc<AtomicUsize>) -> CountGuard {
        count.fetch_add(1, Ordering::AcqRel);
        CountGuard(Arc::clone(count))
    }
}

impl Drop for CountGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Counts a connection as accepted or as rejected, until it is closed.
#[derive(Debug)]
pub(crate) enum ConnectionSlot {
    Accepted(#[expect(dead_code, reason = "held until the connection is closed")] ConnectionGuard),
    Rejected(#[expect(dead_code, reason = "held until the connection is closed")] CountGuard),
}
