//! Holds the state that all threads share: the current configuration, the store, and the handles of telemetry.

pub(super) mod destinations;
pub(super) mod learned_costs;
pub(super) mod lease_limits;
pub(super) mod lifecycle;
pub(super) mod readiness;
pub(super) mod snapshot;

use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::sync::watch;

use super::runtime::inspected_bytes::InspectedBytes;
use super::runtime::memory_limit::memory_limit;
use super::runtime::response_buffers::ResponseBuffers;
use super::telemetry::access_log::AccessLogs;
use super::telemetry::events::Events;
use super::telemetry::held_buckets::HeldBuckets;
use super::telemetry::lease_health::LeaseHealth;
use super::telemetry::log_writers::LogWriters;
use super::telemetry::metric_export::MetricExport;
use super::telemetry::metrics::Metrics;
use super::telemetry::metrics::registry::Reader;
use super::telemetry::records::RecordWriters;
use super::telemetry::store_health::StoreHealth;
use super::telemetry::top_refused::TopRefused;
use super::telemetry::trace::Tracer;
use base::time::Clock;
use config::{Bounds, ResponseBufferSize};
use identity::jwt::remote_key_set::RemoteKeySet;
use lifecycle::Lifecycle;
use snapshot::Snapshot;
use stores::{LeaseKeeper, Store};

/// With `limits.response_buffers: auto`, the buffers may take the memory divided by `AUTO_SHARE`, but at least
/// `AUTO_LEAST` bytes. If the size of the memory is unknown, they may take `AUTO_UNKNOWN` bytes.
const AUTO_SHARE: u64 = 4;
const AUTO_LEAST: u64 = 16 << 20;
const AUTO_UNKNOWN: u64 = 256 << 20;

/// What a gateway with limits over several regions has.
#[derive(Debug)]
pub(crate) struct Leases {
    pub keeper: Arc<LeaseKeeper>,
    pub health: Arc<LeaseHealth>,
}

/// The state that all threads of a gateway share, such as the configuration in force, the store and the metrics.
#[derive(Debug)]
pub(crate) struct GatewayState {
    pub snapshot: Arc<ArcSwap<Snapshot>>,
    pub store: Arc<Store>,
    /// Fills the purses of limits over several regions. `None` without `store.home`.
    pub leases: Option<Leases>,
    pub clock: Clock,
    pub lifecycle: Lifecycle,
    pub metrics: Metrics,
    pub access_logs: AccessLogs,
    pub records: RecordWriters,
    pub tracer: Tracer,
    pub metric_export: MetricExport,
    pub events: Arc<Events>,
    pub store_health: Arc<StoreHealth>,
    pub top_refused: TopRefused,
    pub held_buckets: Arc<HeldBuckets>,
    pub response_buffers: Arc<ResponseBuffers>,
    /// Counts the bytes of request bodies that are held for the rules.
    pub inspected_bytes: Arc<InspectedBytes>,
    /// Notifies every encrypted connection when the certificates of a listener have changed.
    pub certificates_changed: watch::Sender<()>,
}

impl GatewayState {
    /// Returns the key sets that the gateway fetches from token issuers.
    pub(crate) fn remotes(&self) -> Vec<Arc<RemoteKeySet>> {
        self.snapshot.load().remotes().cloned().collect()
    }

    /// Returns whether the keys of all token issuers have been fetched.
    pub(crate) fn has_keys(&self) -> bool {
        self.remotes().iter().all(|remote| remote.current().is_some())
    }

    /// Applies `limits.response_buffers`: the maximum number of bytes that are held for unread responses. `auto` is a quarter
    /// of the memory that the process may use now.
    pub(crate) fn bound_response_buffers(&self, bounds: &Bounds) {
        let bytes = match bounds.response_buffers {
            ResponseBufferSize::Bytes(bytes) => bytes,
            ResponseBufferSize::Auto => memory_limit().map_or(AUTO_UNKNOWN, |bytes| bytes / AUTO_SHARE).max(AUTO_LEAST),
        };
        self.response_buffers.set_limit(usize::try_from(bytes).unwrap_or(usize::MAX));
    }

    /// Returns the writers that configurations start.
    pub(crate) fn log_writers(&self) -> LogWriters<'_> {
        LogWriters { access_logs: &self.access_logs, records: &self.records }
    }

    /// Opens the files of the access log and of the records again at their paths, after a rotation.
    pub(crate) fn reopen_logs(&self) {
        self.access_logs.reopen();
        self.records.reopen();
    }

    /// Returns the text of `/metrics` for this reader.
    pub(crate) fn exposition(&self, reader: Reader) -> String {
        let buckets = u32::try_from(self.store.buckets()).unwrap_or(u32::MAX);
        self.metrics.buckets.set(f64::from(buckets));
        let (snapshot, now) = (self.snapshot.load(), self.clock.now());
        if let Some(Leases { keeper, health }) = &self.leases {
            health.record_heard(keeper.home().heard(), now);
        }
        self.metrics.render(reader, snapshot.destinations.upstreams().map(Arc::as_ref), now)
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.lifecycle.is_draining()
    }
}
