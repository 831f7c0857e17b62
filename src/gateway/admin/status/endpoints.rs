//! Makes the rows of endpoints on the status page.

use serde::Serialize;

use crate::gateway::state::snapshot::Snapshot;
use base::time::Timestamp;

/// A row of the status page about one endpoint of an upstream.
#[derive(Debug, Serialize)]
pub(super) struct EndpointRow {
    upstream: String,
    endpoint: String,
    state: &'static str,
    requests: u64,
    failed: u64,
    /// The number of requests whose response has ended, and the sum of their durations in seconds.
    finished: u64,
    seconds: f64,
}

/// Returns the rows of the first `most` endpoints, in the order of the file, and the number of other endpoints.
pub(super) fn rows(snapshot: &Snapshot, now: Timestamp, most: usize) -> (Vec<EndpointRow>, usize) {
    let of_upstreams = snapshot.destinations.upstreams().flat_map(|upstream| {
        upstream.endpoint_reports(now).into_iter().map(|report| EndpointRow {
            upstream: upstream.name().to_owned(),
            state: report.availability.name(),
            requests: report.requests,
            failed: report.failed(),
            finished: report.finished,
            seconds: report.duration.seconds(),
            endpoint: report.address,
        })
    });
    let mut rows: Vec<EndpointRow> = of_upstreams.collect();
    let left_out = rows.len().saturating_sub(most);
    rows.truncate(most);
    (rows, left_out)
}
