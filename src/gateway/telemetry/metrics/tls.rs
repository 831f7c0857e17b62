//! Counts TLS handshakes, and exports when certificates expire.

use std::sync::Arc;

use super::counters_by::CountersBy;
use super::registry::{ConfigSeries, Registry};
use crate::gateway::telemetry::labels::HandshakeResult;
use base::time::Timestamp;
use config::Listener;

/// The counters of TLS handshakes with clients, by result. All listeners share them.
#[derive(Debug)]
pub(crate) struct HandshakeMetrics(CountersBy<HandshakeResult>);

impl HandshakeMetrics {
    pub(crate) fn new(registry: &Arc<Registry>) -> HandshakeMetrics {
        HandshakeMetrics(CountersBy::new(HandshakeResult::ALL, |result| {
            registry.counter("tollgate_tls_handshakes_total", &[("result", result.name())])
        }))
    }

    pub(crate) fn count(&self, result: HandshakeResult) {
        self.0.increment(&result);
    }
}

/// Records when the certificates of these listeners expire. Each certificate file has its own series.
pub(crate) fn record_expiry(listeners: &[Listener], series: ConfigSeries<'_>) {
    for tls in listeners.iter().filter_map(|listener| listener.tls.as_ref()) {
        for (file, not_after) in tls.in_force().expiries() {
            let file = file.display().to_string();
            let expiry = series.gauge("tollgate_tls_certificate_expiry_timestamp_seconds", &[("certificate", &file)]);
            expiry.set(not_after.since(Timestamp(0)).seconds());
        }
    }
}
