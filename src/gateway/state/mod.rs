//! Holds what all threads share: the configuration in force, the store, and the handles of telemetry.

pub mod lifecycle;
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
use crate::auth::jwt::jwks::RemoteKeySet;
use crate::base::time::Clock;
use crate::store::Store;
use lifecycle::Lifecycle;
use snapshot::Snapshot;

/// One gateway, whatever the number of its threads. What only one room needs is a value of that room instead.
#[derive(Debug)]
pub struct GatewayState {
    pub snapshot: ArcSwap<Snapshot>,
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

/// Whether the gateway should be sent requests, and why not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    Ready,
    /// The keys of a token issuer have not been fetched yet.
    KeysMissing,
    Draining,
    /// The next process has the sockets.
    HandedOver,
}

impl Readiness {
    pub fn name(self) -> &'static str {
        match self {
            Readiness::Ready => "ready",
            Readiness::KeysMissing => "keys missing",
            Readiness::Draining => "draining",
            Readiness::HandedOver => "handed over",
        }
    }
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

    /// Ready while a configuration and its keys are in force and the process is not leaving. The state of the store does
    /// not count: one short outage of it would take every gateway out of rotation.
    pub fn readiness(&self) -> Readiness {
        match (self.is_draining(), self.lifecycle.is_handed_over()) {
            (true, true) => Readiness::HandedOver,
            (true, false) => Readiness::Draining,
            (false, _) if self.has_keys() => Readiness::Ready,
            (false, _) => Readiness::KeysMissing,
        }
    }

    pub fn is_draining(&self) -> bool {
        self.lifecycle.is_draining()
    }
}
