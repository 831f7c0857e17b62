//! Counts and measures the gateway's work: groups of metric handles, and the text of `/metrics`.
//!
//! Handles are made when the process starts or a configuration is loaded. Series exist from then on at 0; those with a label of
//! causes appear with their first event. Labels never come from a client, but the
//! names of language models come from responses. To add a metric, add a line in [`list`], a handle in its group, and
//! one call.

mod amounts;
mod config;
mod counters_by;
mod counters_on_use;
mod decisions;
mod delays;
mod endpoints;
mod histogram_cells;
mod http;
mod leases;
mod limits;
pub(crate) mod list;
mod model_tokens;
pub(crate) mod registry;
mod response_counts;
mod routes;
mod series;
mod store;
mod tls;
mod tokens;

use std::sync::Arc;

use ::metrics::{Counter, Gauge};

pub(crate) use config::{ConfigMetrics, record_list};
pub(crate) use counters_on_use::CounterOnUse;
pub(crate) use decisions::{DecisionMetrics, DoorDecisions, RateLimitMetrics};
pub(crate) use delays::DelayMetrics;
pub(crate) use http::{Http2Errors, HttpMetrics};
pub(crate) use leases::{HomeMetrics, LeaseMetrics};
pub(crate) use limits::{BudgetMetrics, LimitMetrics};
pub(crate) use model_tokens::ModelTokens;
pub(crate) use routes::{RESPONSES, RouteMetrics, UpstreamMetrics};
pub(crate) use store::{StoreMetrics, whole_number};
pub(crate) use tls::{HandshakeMetrics, record_expiry};
pub(crate) use tokens::TokenMetrics;

use crate::gateway::upstream::Upstream;
use base::time::Timestamp;
use registry::{Reader, Registry};
use stores::Settings;

/// All metrics of the process.
pub(crate) struct Metrics {
    pub registry: Arc<Registry>,
    pub http: Arc<HttpMetrics>,
    pub decisions: DecisionMetrics,
    pub delays: DelayMetrics,
    pub tokens: TokenMetrics,
    pub model_tokens: Arc<ModelTokens>,
    pub config: ConfigMetrics,
    /// The number of buckets that this process holds.
    pub buckets: Gauge,
    /// The number of buckets that were evicted although tokens were missing from them.
    pub evicted: Counter,
    /// The number of failed handovers of slots between the two processes of an upgrade.
    pub slot_handover_errors: Counter,
    pub access_log_dropped: Counter,
    pub admin_connections_closed: Counter,
    /// The number of requests to the path of `usage` for which the store could not be read.
    pub usage_unread: Counter,
    process: metrics_process::Collector,
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Metrics")
    }
}

impl Metrics {
    /// Makes the metrics of a process with this store. Events that cannot happen with this store have no series.
    pub(crate) fn new(store: &Settings) -> Metrics {
        let registry = Arc::new(Registry::default());
        let process = metrics_process::Collector::default();
        registry.gauge("tollgate_build_info", &[("version", env!("CARGO_PKG_VERSION"))]).set(1.0);
        Metrics {
            http: Arc::new(HttpMetrics::new(store, &registry)),
            decisions: DecisionMetrics::new(store, &registry),
            delays: DelayMetrics::new(&registry),
            tokens: TokenMetrics::new(&registry),
            model_tokens: Arc::new(ModelTokens::new(&registry)),
            config: ConfigMetrics::new(&registry),
            buckets: registry.gauge("rate_limiter_buckets", &[]),
            evicted: registry.counter("rate_limiter_evicted_total", &[]),
            slot_handover_errors: registry.counter("rate_limiter_slot_handover_errors_total", &[]),
            access_log_dropped: registry.counter("tollgate_access_log_dropped_total", &[]),
            admin_connections_closed: registry.counter("tollgate_admin_connections_closed_total", &[]),
            usage_unread: registry.counter("rate_limiter_usage_unread_total", &[]),
            process,
            registry,
        }
    }

    /// Returns the text of `/metrics` for this reader, with the states of the endpoints of `upstreams`.
    pub(crate) fn render<'u>(
        &self,
        reader: Reader,
        upstreams: impl Iterator<Item = &'u Upstream>,
        now: Timestamp,
    ) -> String {
        self.registry.render(reader, || {
            self.process.describe();
            self.process.collect();
            self.config.collect_info();
            endpoints::collect(upstreams, now)
        })
    }
}
