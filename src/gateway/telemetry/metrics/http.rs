//! Counts connections, responses and refusals, and measures requests.

use std::sync::Arc;

use metrics::{Counter, Gauge, Histogram};

use super::counters_by::CountersBy;
use super::registry::Registry;
use super::response_counts::ResponseCounts;
use crate::decision::reason::Reason;
use crate::gateway::telemetry::labels::{DEFAULT, Origin, UpstreamError};
use crate::store::Settings;

#[derive(Debug)]
pub struct HttpMetrics {
    registry: Arc<Registry>,
    responses: ResponseCounts,
    refused: CountersBy<Reason>,
    /// By the origin of the response.
    request_duration_gateway: Histogram,
    request_duration_upstream: Histogram,
    pub upstream_duration: Histogram,
    upstream_errors: CountersBy<UpstreamError>,
}

impl HttpMetrics {
    pub fn new(store: &Settings, registry: &Arc<Registry>) -> HttpMetrics {
        let can_occur = |reason: &Reason| *reason != Reason::StoreUnavailable || store.is_shared();
        let request_duration = |origin| {
            let labels = [("route", DEFAULT), ("origin", origin)];
            registry.histogram("tollgate_http_request_duration_seconds", &labels)
        };
        HttpMetrics {
            registry: Arc::clone(registry),
            responses: ResponseCounts::default(),
            refused: CountersBy::new(Reason::all().filter(can_occur), |reason| {
                registry.counter("tollgate_refused_requests_total", &[("reason", reason.name())])
            }),
            request_duration_gateway: request_duration("gateway"),
            request_duration_upstream: request_duration("upstream"),
            upstream_duration: registry
                .histogram("tollgate_upstream_request_duration_seconds", &[("upstream", DEFAULT)]),
            upstream_errors: CountersBy::new(UpstreamError::ALL, |error| {
                let labels = [("upstream", DEFAULT), ("kind", error.name())];
                registry.counter("tollgate_upstream_errors_total", &labels)
            }),
        }
    }

    pub fn count_response(&self, method: &str, code: u16, origin: Origin) {
        self.responses.counter(&self.registry, method, code, origin).increment(1);
    }

    pub fn count_refusal(&self, reason: Reason) {
        self.refused.increment(&reason);
    }

    pub fn count_upstream_error(&self, error: UpstreamError) {
        self.upstream_errors.increment(&error);
    }

    /// In seconds, by the origin of the response.
    pub fn request_duration(&self, origin: Origin) -> &Histogram {
        match origin {
            Origin::Gateway => &self.request_duration_gateway,
            Origin::Upstream => &self.request_duration_upstream,
        }
    }

    /// The open connections of a listener.
    pub fn connections(&self, listener: &str) -> Gauge {
        self.registry.gauge("tollgate_http_connections", &[("listener", listener)])
    }

    /// Connections of a listener that did not begin with a valid PROXY protocol header.
    pub fn proxy_protocol_errors(&self, listener: &str, kind: &str) -> Counter {
        self.registry.counter("tollgate_proxy_protocol_errors_total", &[("listener", listener), ("kind", kind)])
    }
}
