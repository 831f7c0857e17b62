//! Holds what all threads share: the configuration in force, the store, and the handles of telemetry.

pub mod destinations;
pub mod lifecycle;
pub mod readiness;
pub mod snapshot;
pub mod token_auth;

use std::sync::Arc;

use arc_swap::ArcSwap;

use super::telemetry::access_log::AccessLogs;
use super::telemetry::events::Events;
use super::telemetry::metrics::Metrics;
use super::telemetry::store_health::StoreHealth;
use super::telemetry::top_refused::TopRefused;
use super::telemetry::trace::Tracer;
use base::time::Clock;
use identity::jwt::jwks::RemoteKeySet;
use lifecycle::Lifecycle;
use snapshot::Snapshot;
use stores::Store;

/// One gateway, whatever the number of its threads. What only one room needs is a value of that room instead.
#[derive(Debug)]
pub struct GatewayState {
    pub snapshot: Arc<ArcSwap<Snapshot>>,
    pub store: Store,
    pub clock: Clock,
    pub lifecycle: Lifecycle,
    pub metrics: Metrics,
    pub access_logs: AccessLogs,
    pub tracer: Tracer,
    pub events: Arc<Events>,
    pub store_health: Arc<StoreHealth>,
    pub top_refused: TopRefused,
}

impl GatewayState {
    /// The issuers whose keys are fetched.
    pub fn remotes(&self) -> Vec<Arc<RemoteKeySet>> {
        self.snapshot.load().remotes().cloned().collect()
    }

    /// Whether every issuer's keys are in force.
    pub fn has_keys(&self) -> bool {
        self.remotes().iter().all(|remote| remote.current().is_some())
    }

    pub fn is_draining(&self) -> bool {
        self.lifecycle.is_draining()
    }
}
