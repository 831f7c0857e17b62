//! Counts and measures the requests of one route, and the requests to one upstream.

use std::collections::HashSet;
use std::sync::Arc;

use metrics::{Counter, Histogram};

use super::counters_on_use::CountersOnUse;
use super::registry::{ConfigSeries, Registry};
use super::response_counts::ResponseCounts;
use crate::gateway::telemetry::labels::{Origin, UpstreamError};
use crate::gateway::upstream::RetriedFailure;

/// The name of the metric that counts responses. Its series are made when they are first needed.
pub(crate) const RESPONSES: &str = "tollgate_http_requests_total";

const ERRORS: &str = "tollgate_upstream_errors_total";
const RETRIES: &str = "tollgate_upstream_retries_total";

/// The metrics of the requests of one route: their responses and their durations.
#[derive(Debug)]
pub(crate) struct RouteMetrics {
    registry: Arc<Registry>,
    /// The number of the configuration that has the route.
    config: u32,
    route: String,
    responses: ResponseCounts,
    /// The duration of requests that the gateway answered, in seconds.
    duration_gateway: Histogram,
    duration_upstream: Histogram,
}

impl RouteMetrics {
    pub(crate) fn new(registry: &Arc<Registry>, config: u32, route: &str) -> RouteMetrics {
        let duration = |origin| {
            let labels = [("route", route), ("origin", origin)];
            registry.of_config(config).histogram("tollgate_http_request_duration_seconds", &labels)
        };
        RouteMetrics {
            registry: Arc::clone(registry),
            config,
            route: route.to_owned(),
            responses: ResponseCounts::default(),
            duration_gateway: duration("gateway"),
            duration_upstream: duration("upstream"),
        }
    }

    /// Returns the name of the route.
    pub(crate) fn route(&self) -> &str {
        &self.route
    }

    pub(crate) fn count_response(&self, method: &str, code: u16, origin: Origin) {
        let counter = self.responses.counter(method, code, origin, |labels| {
            let code = labels.code.to_string();
            let labels =
                [("route", &*self.route), ("method", labels.method), ("code", &code), ("origin", labels.origin)];
            self.registry.of_config(self.config).counter(RESPONSES, &labels)
        });
        counter.increment(1);
    }

    /// Returns the histogram of the durations of requests, in seconds. `origin` says whether the gateway or the upstream made
    /// the response.
    pub(crate) fn duration(&self, origin: Origin) -> &Histogram {
        match origin {
            Origin::Gateway => &self.duration_gateway,
            Origin::Upstream => &self.duration_upstream,
        }
    }
}

/// The metrics of the requests to one upstream.
#[derive(Debug)]
pub(crate) struct UpstreamMetrics {
    /// The duration of requests at the upstream, in seconds.
    pub duration: Histogram,
    errors: CountersOnUse<UpstreamError>,
    retries: CountersOnUse<RetriedFailure>,
    /// The number of requests that were not sent again, because too many requests had been retried.
    pub retries_over_budget: Counter,
    pub ejections: Counter,
}

impl UpstreamMetrics {
    pub(crate) fn new(upstream: &str, series: ConfigSeries<'_>) -> UpstreamMetrics {
        let errors = series.counters_of(ERRORS, &[("upstream", upstream)]);
        let retries = series.counters_of(RETRIES, &[("upstream", upstream)]);
        UpstreamMetrics {
            duration: series.histogram("tollgate_upstream_request_duration_seconds", &[("upstream", upstream)]),
            errors: CountersOnUse::new(UpstreamError::ALL, move |error| errors(&[("kind", error.name())])),
            retries: CountersOnUse::new(RetriedFailure::all(), move |failure| retries(&[("kind", failure.name())])),
            retries_over_budget: series
                .counter("tollgate_upstream_retries_over_budget_total", &[("upstream", upstream)]),
            ejections: series.counter("tollgate_upstream_ejections_total", &[("upstream", upstream)]),
        }
    }

    /// Keeps the series of errors and retries at these upstreams.
    pub(crate) fn keep<'u>(upstreams: impl Iterator<Item = &'u str>, series: ConfigSeries<'_>) {
        let names: HashSet<[&str; 1]> = upstreams.map(|name| [name]).collect();
        series.keep(ERRORS, ["upstream"], &names);
        series.keep(RETRIES, ["upstream"], &names);
    }

    pub(crate) fn count_error(&self, error: UpstreamError) {
        self.errors.increment(&error);
    }

    /// Counts a failed attempt after which the request is sent again.
    pub(crate) fn count_retry(&self, failure: RetriedFailure) {
        self.retries.increment(&failure);
    }
}
