//! Holds the part of the gateway that the server needs, so that another application can be served without the rest.

use std::sync::Arc;

use arc_swap::ArcSwap;

use crate::base::time::Clock;
use crate::gateway::state::snapshot::Snapshot;
use crate::gateway::telemetry::metrics::HttpMetrics;

/// Each part is shared, and held by value: reading one takes no more steps than reading it from the gateway's state.
#[derive(Clone, Debug)]
pub struct ServerState {
    /// Bounds, the client's address and the access log of the configuration in force.
    pub snapshot: Arc<ArcSwap<Snapshot>>,
    pub metrics: Arc<HttpMetrics>,
    pub clock: Clock,
}
