//! Counts the requests to an upstream's endpoints, and reports the state of each endpoint.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Upstream;
use super::endpoint::Endpoint;
use super::failure::EndpointFailure;
use base::time::{Micros, Timestamp};

/// The maximum number of endpoints of an upstream that are reported individually. An upstream with more endpoints has no
/// reports of endpoints.
pub(super) const MOST_REPORTED: usize = 64;

/// Counts the requests and failures of an endpoint from the moment at which the gateway learned its address.
#[derive(Debug, Default)]
pub(super) struct EndpointCounts {
    requests: AtomicU64,
    finished: AtomicU64,
    /// The sum of the durations of finished requests, in microseconds.
    duration: AtomicU64,
    failures: [AtomicU64; EndpointFailure::COUNT],
}

impl EndpointCounts {
    pub(super) fn count_request(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn add_duration(&self, duration: Micros) {
        self.finished.fetch_add(1, Ordering::Relaxed);
        self.duration.fetch_add(duration.0, Ordering::Relaxed);
    }

    pub(super) fn count_failure(&self, failure: EndpointFailure) {
        if let Some(count) = self.failures.get(failure.index()) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Whether the gateway sends requests to an endpoint, and the reason if it does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Availability {
    Available,
    /// The health checks have found the endpoint down.
    Down,
    Ejected,
}

impl Availability {
    pub(crate) const ALL: [Availability; 3] = [Availability::Available, Availability::Down, Availability::Ejected];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Availability::Available => "available",
            Availability::Down => "down",
            Availability::Ejected => "ejected",
        }
    }
}

/// The state and the counts of one endpoint, for `/metrics` and the status page.
#[derive(Clone, Debug)]
pub(crate) struct EndpointReport {
    pub address: String,
    pub availability: Availability,
    /// The number of attempts to send a request to the endpoint, including failed attempts.
    pub requests: u64,
    /// The number of attempts whose response has ended. `duration` is the sum of the durations of these attempts.
    pub finished: u64,
    pub duration: Micros,
    pub failures: Vec<(EndpointFailure, u64)>,
}

impl EndpointReport {
    pub(crate) fn failed(&self) -> u64 {
        self.failures.iter().map(|(_, count)| count).sum()
    }
}

impl Upstream {
    /// Returns how many endpoints are available, down and ejected, in the order of [`Availability::ALL`].
    pub(crate) fn availabilities(&self, now: Timestamp) -> [(Availability, usize); 3] {
        let pool = self.pool.load();
        Availability::ALL
            .map(|one| (one, pool.endpoints.iter().filter(|endpoint| endpoint.availability(|| now) == one).count()))
    }

    /// Returns a report of each endpoint. Empty if there are more than [`MOST_REPORTED`] endpoints.
    pub(crate) fn endpoint_reports(&self, now: Timestamp) -> Vec<EndpointReport> {
        let pool = self.pool.load();
        if pool.endpoints.len() > MOST_REPORTED {
            return Vec::new();
        }
        let report = |endpoint: &Arc<Endpoint>| {
            let counts = &endpoint.condition.counts;
            let failures = EndpointFailure::all().zip(&counts.failures);
            EndpointReport {
                address: endpoint.address.to_string(),
                availability: endpoint.availability(|| now),
                requests: counts.requests.load(Ordering::Relaxed),
                finished: counts.finished.load(Ordering::Relaxed),
                duration: Micros(counts.duration.load(Ordering::Relaxed)),
                failures: failures.map(|(failure, count)| (failure, count.load(Ordering::Relaxed))).collect(),
            }
        };
        pool.endpoints.iter().map(report).collect()
    }
}
