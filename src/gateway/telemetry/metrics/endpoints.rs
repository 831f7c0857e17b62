//! Makes the metrics of endpoints from the state of the upstreams whenever `/metrics` is rendered. A removed endpoint has no
//! metrics.

use std::fmt::Write as _;

use metrics::{counter, gauge};

use super::list::METRICS;
use crate::gateway::upstream::{Availability, Upstream};
use base::time::Timestamp;

const DURATION: &str = "tollgate_endpoint_request_duration_seconds";

/// Adds the series about the endpoints of these upstreams to the metrics that are being rendered. Returns the text of the
/// summaries, which the `metrics` crate cannot hold.
pub(super) fn collect<'u>(upstreams: impl Iterator<Item = &'u Upstream>, now: Timestamp) -> String {
    let mut durations = String::new();
    for upstream in upstreams {
        let name = upstream.name();
        for (availability, count) in upstream.availabilities(now) {
            let labels = [("upstream", name.to_owned()), ("state", availability.name().to_owned())];
            gauge!("tollgate_upstream_endpoints", &labels).set(u32::try_from(count).unwrap_or(u32::MAX));
        }
        for endpoint in upstream.endpoint_reports(now) {
            let labels = [("upstream", name.to_owned()), ("endpoint", endpoint.address.clone())];
            let is_up = endpoint.availability == Availability::Available;
            gauge!("tollgate_endpoint_up", &labels).set(f64::from(u8::from(is_up)));
            counter!("tollgate_endpoint_requests_total", &labels).absolute(endpoint.requests);
            for (failure, count) in endpoint.failures.iter().filter(|(_, count)| *count > 0) {
                let [upstream, endpoint] = labels.clone();
                let labels = [upstream, endpoint, ("kind", failure.name().to_owned())];
                counter!("tollgate_endpoint_failures_total", &labels).absolute(*count);
            }
            let labels = format!("{{upstream=\"{name}\",endpoint=\"{}\"}}", endpoint.address);
            // Writing to a string cannot fail.
            let _ = writeln!(durations, "{DURATION}_sum{labels} {}", endpoint.duration.seconds());
            let _ = writeln!(durations, "{DURATION}_count{labels} {}", endpoint.finished);
        }
    }
    if durations.is_empty() {
        return durations;
    }
    let help = METRICS.iter().find(|(name, ..)| *name == DURATION).map_or("", |(.., help)| help);
    format!("\n# HELP {DURATION} {help}\n# TYPE {DURATION} summary\n{durations}")
}
