//! Holds what all threads share: the snapshot in force, the store, the counters.

pub mod snapshot;
pub mod token_auth;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;
use tokio::sync::Notify;

use super::admin::status::Status;
use super::proxy::untrusted_forwarded_for::Hearsay;
use super::runtime::fd_limit::FdBudget;
use super::runtime::log_throttle::LogThrottle;
use super::server::http1::StalledWrites;
use super::telemetry::access_log::AccessLogs;
use super::telemetry::events::Events;
use super::telemetry::metrics::Metrics;
use super::telemetry::store_health::StoreHealth;
use super::telemetry::top_refused::TopRefused;
use super::telemetry::trace::Tracer;
use super::upstream::Window;
use crate::auth::jwt::jwks::Remote;
use crate::base::time::Clock;
use crate::store::Store;
use snapshot::Snapshot;

/// One gateway, whatever the number of its threads.
#[derive(Debug)]
pub struct GatewayState {
    pub snapshot: ArcSwap<Snapshot>,
    pub store: Store,
    pub store_health: Arc<StoreHealth>,
    pub metrics: Metrics,
    pub access_logs: AccessLogs,
    pub clock: Clock,
    pub draining: AtomicBool,
    /// Whether another process has taken over the sockets.
    pub handed_over: AtomicBool,
    /// SIGHUP came: files are to be read again.
    pub hangup: Notify,
    pub upstream_failures: LogThrottle,
    /// Connections beyond `limits.connections`.
    pub turned_away: LogThrottle,
    /// Connections beyond `limits.connections_per_client`.
    pub clients_turned_away: LogThrottle,
    pub hearsay: Hearsay,
    /// Answers whose clients do not keep up.
    pub untaken: StalledWrites,
    pub room: FdBudget,
    pub events: Arc<Events>,
    pub refused_buckets: TopRefused,
    pub status: Status,
    pub traces: Tracer,
}

/// How the gateway stands, for those who send it requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    Ready,
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
    pub fn remotes(&self) -> Vec<Arc<Remote>> {
        self.snapshot.load().remotes().cloned().collect()
    }

    /// Whether every issuer's keys are in force.
    pub fn has_keys(&self) -> bool {
        self.remotes().iter().all(|remote| remote.current().is_some())
    }

    /// How far ahead of its client an answer is read.
    pub fn window(&self) -> Window {
        if self.untaken.are_many() { Window::Narrow } else { Window::Whole }
    }

    /// Ready while a configuration and its keys are in force and we are not leaving. How the store is does not decide: one
    /// blip of it would take every gateway out of rotation.
    pub fn standing(&self) -> Readiness {
        match (self.is_draining(), self.handed_over.load(Ordering::Relaxed)) {
            (true, true) => Readiness::HandedOver,
            (true, false) => Readiness::Draining,
            (false, _) if self.has_keys() => Readiness::Ready,
            (false, _) => Readiness::KeysMissing,
        }
    }

    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }
}
