//! Holds what all threads share: the snapshot in force, the store, the counters.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;
use tokio::sync::Notify;

use super::access_log::AccessLogs;
use super::descriptors::Room;
use super::front_door::Untaken;
use super::health::StoreHealth;
use super::hearsay::Hearsay;
use super::metrics::Metrics;
use super::sampled::Sampled;
use super::snapshot::Snapshot;
use super::upstream::Window;
use crate::auth::jwt::jwks::Remote;
use crate::store::Store;
use crate::time::Clock;

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
    pub hearsay: Hearsay,
    /// Answers whose clients do not keep up.
    pub untaken: Untaken,
    pub room: Room,
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

    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }
}
