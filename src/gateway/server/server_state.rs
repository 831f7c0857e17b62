//! Holds the part of the gateway's state that a server needs.

use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::sync::watch;

use crate::gateway::state::snapshot::Snapshot;
use crate::gateway::telemetry::metrics::HttpMetrics;
use base::time::Clock;

/// The parts of the gateway's state that servers need.
#[derive(Clone, Debug)]
pub(crate) struct ServerState {
    /// The configuration in force, with the bounds, the trusted proxies and the access log.
    pub snapshot: Arc<ArcSwap<Snapshot>>,
    pub metrics: Arc<HttpMetrics>,
    pub clock: Clock,
    /// Tells every encrypted connection that the certificates of a listener have changed.
    pub certificates_changed: watch::Sender<()>,
}

#[cfg(test)]
pub(crate) mod tests {
    use std::io;
    use std::path::Path;

    use super::*;
    use crate::gateway::telemetry::access_log::AccessLogs;
    use crate::gateway::telemetry::events::Events;
    use crate::gateway::telemetry::log_writers::LogWriters;
    use crate::gateway::telemetry::metrics::Metrics;
    use crate::gateway::telemetry::records::RecordWriters;
    use config::{Config, Environment};

    /// Makes the state of a server with this configuration, for tests. Also returns the metrics.
    pub(crate) fn state(config: &str) -> (ServerState, Metrics) {
        let config = format!("upstream: http://127.0.0.1:9\n{config}");
        let environment =
            Environment { variable: &|_| None, folder: Path::new("."), read: &|_| Err(io::ErrorKind::NotFound.into()) };
        let config = Config::parse("gateway.yaml", config.as_bytes(), environment).unwrap();
        let (clock, metrics) = (Clock::system(), Metrics::new(&config.store));
        let events = Arc::new(Events::new(clock.clone()));
        let access_logs = AccessLogs::new(metrics.access_log_dropped.clone(), Arc::clone(&events));
        let records = RecordWriters::new(1, clock.clone(), &metrics.registry, events);
        let writers = LogWriters { access_logs: &access_logs, records: &records };
        let snapshot = Arc::new(ArcSwap::from_pointee(Snapshot::new(config, &metrics, writers, &clock)));
        let metrics_of_http = Arc::clone(&metrics.http);
        let certificates_changed = watch::Sender::default();
        (ServerState { snapshot, metrics: metrics_of_http, clock, certificates_changed }, metrics)
    }
}
