//! Holds what all threads share: the snapshot in force, the store, the counters.

pub mod snapshot;
pub mod token_auth;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;
use tokio::sync::Notify;

use super::admin::status::Status;
use super::proxy::untrusted_forwarded_for::Hearsay;
use super::runtime::fd_limit::Room;
use super::runtime::log_throttle::Sampled;
use super::server::http1::Untaken;
use super::telemetry::access_log::AccessLogs;
use super::telemetry::events::Events;
use super::telemetry::metrics::Metrics;
use super::telemetry::store_health::StoreHealth;
use super::telemetry::top_refused::RefusedBuckets;
use super::telemetry::trace::Traces;
use super::upstream::Window;
use crate::auth::jwt::jwks::Remote;
use crate::base::time::Clock;
use crate::store::Store;
use snapshot::Snapshot;

/// One gateway, whatever the number of its threads.
#[derive(Debug)]
pub struct Gateway {
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
    pub upstream_failures: Sampled,
    /// Connections beyond `limits.connections`.
    pub turned_away: Sampled,
    /// Connections beyond `limits.connections_per_client`.
    pub clients_turned_away: Sampled,
    pub hearsay: Hearsay,
    /// Answers whose clients do not keep up.
    pub untaken: Untaken,
    pub room: Room,
    pub events: Arc<Events>,
    pub refused_buckets: RefusedBuckets,
    pub status: Status,
    pub traces: Traces,
}

/// How the gateway stands, for those who send it requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    Ready,
    KeysMissing,
    Draining,
    /// The next process has the sockets.
    HandedOver,
}

impl Standing {
    pub fn name(self) -> &'static str {
        match self {
            Standing::Ready => "ready",
            Standing::KeysMissing => "keys missing",
            Standing::Draining => "draining",
            Standing::HandedOver => "handed over",
        }
    }
}

impl Gateway {
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
    pub fn standing(&self) -> Standing {
        match (self.is_draining(), self.handed_over.load(Ordering::Relaxed)) {
            (true, true) => Standing::HandedOver,
            (true, false) => Standing::Draining,
            (false, _) if self.has_keys() => Standing::Ready,
            (false, _) => Standing::KeysMissing,
        }
    }

    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }
}
