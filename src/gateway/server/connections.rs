//! Counts the client connections of all listeners and threads, and holds what bounds them.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use super::http1::PerClientConnections;
use crate::gateway::runtime::fd_limit::FdBudget;
use crate::gateway::runtime::log_throttle::LogThrottle;
use crate::gateway::runtime::stalled_writes::StalledWrites;

/// One value for the whole gateway; every listener on every thread has a handle to it.
#[derive(Debug)]
pub struct Connections {
    /// Open connections, without those that are being rejected.
    pub open: Arc<AtomicUsize>,
    /// Open connections by client.
    pub per_client: Arc<PerClientConnections>,
    /// Connections over a limit to which a 503 is being written.
    pub rejecting: Arc<AtomicUsize>,
    /// How many of each the open-file limit allows.
    pub fd_budget: FdBudget,
    /// Responses whose clients do not read them fast enough.
    pub stalled_writes: StalledWrites,
    /// For the log line about connections over `limits.connections`.
    pub over_limit: LogThrottle,
    /// For the log line about connections over `limits.connections_per_client`.
    pub over_client_limit: LogThrottle,
}

impl Connections {
    pub fn new(fd_budget: FdBudget, stalled_writes: StalledWrites) -> Connections {
        Connections {
            open: Arc::default(),
            per_client: Arc::default(),
            rejecting: Arc::default(),
            fd_budget,
            stalled_writes,
            over_limit: LogThrottle::default(),
            over_client_limit: LogThrottle::default(),
        }
    }
}
