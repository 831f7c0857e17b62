//! Counts decisions by result, and measures their duration by source.

use metrics::{Counter, Histogram};

use super::registry::Registry;
use crate::gateway::telemetry::labels::DecisionResult;
use request::door::Door;
use stores::{Settings, Source};

/// The counters of decisions by result, for one value of the label `door`.
#[derive(Debug)]
pub(crate) struct DoorDecisions {
    allowed: Counter,
    refused: Counter,
    exempt: Counter,
    unlimited: Counter,
}

#[derive(Debug)]
pub(crate) struct DecisionMetrics {
    proxied: DoorDecisions,
    store_latency: Histogram,
    cached_latency: Histogram,
    fallback_latency: Histogram,
}

impl DoorDecisions {
    /// Makes the counters for one value of the label `door`. This call makes their series appear in `/metrics`.
    pub(crate) fn new(door: Door, registry: &Registry) -> DoorDecisions {
        let labels = |result| [("result", result), ("door", door.name())];
        let result = |result| registry.counter("rate_limiter_decisions_total", &labels(result));
        DoorDecisions {
            allowed: result("allowed"),
            refused: result("refused"),
            exempt: result("exempt"),
            unlimited: result("unlimited"),
        }
    }

    pub(crate) fn count(&self, result: DecisionResult) {
        let counter = match result {
            DecisionResult::Allowed => &self.allowed,
            DecisionResult::Refused => &self.refused,
            DecisionResult::Exempt => &self.exempt,
            DecisionResult::Unlimited => &self.unlimited,
        };
        counter.increment(1);
    }
}

/// The counters for calls of the rate limit service: decisions, descriptors and ignored parts of calls.
#[derive(Debug)]
pub(crate) struct RateLimitMetrics {
    pub decisions: DoorDecisions,
    /// The number of descriptors for which a limit was found, or which a rule denied.
    pub limited: Counter,
    /// The number of descriptors for which no limit was found.
    pub unlimited: Counter,
    /// The number of limits that callers have sent with their descriptors. The gateway ignores such limits.
    pub ignored_limits: Counter,
    /// The number of descriptors with negative hits, which the gateway ignores.
    pub ignored_refunds: Counter,
}

impl RateLimitMetrics {
    /// Makes the counters. This call makes their series appear in `/metrics`.
    pub(crate) fn new(registry: &Registry) -> RateLimitMetrics {
        let descriptors = |result| registry.counter("tollgate_descriptors_total", &[("result", result)]);
        let ignored = |part| registry.counter("tollgate_descriptors_ignored_total", &[("part", part)]);
        RateLimitMetrics {
            decisions: DoorDecisions::new(Door::Rls, registry),
            limited: descriptors("limited"),
            unlimited: descriptors("unlimited"),
            ignored_limits: ignored("limit"),
            ignored_refunds: ignored("refund"),
        }
    }
}

impl DecisionMetrics {
    pub(crate) fn new(store: &Settings, registry: &Registry) -> DecisionMetrics {
        let latency = |source| registry.histogram("rate_limiter_latency_seconds", &[("source", source)]);
        // The sources `cached` and `fallback` never occur with a memory store.
        let without_store = |source| if store.is_shared() { latency(source) } else { Histogram::noop() };
        DecisionMetrics {
            proxied: DoorDecisions::new(Door::Proxy, registry),
            store_latency: latency("store"),
            cached_latency: without_store("cached"),
            fallback_latency: without_store("fallback"),
        }
    }

    /// Counts a decision about a request that this gateway proxies.
    pub(crate) fn count(&self, result: DecisionResult) {
        self.proxied.count(result);
    }

    /// Returns the histogram of the durations of decisions in seconds. `source` says where the limits were decided: in the
    /// store, from the cache or without the store.
    pub(crate) fn latency(&self, source: Source) -> &Histogram {
        match source {
            Source::Store => &self.store_latency,
            Source::Cached => &self.cached_latency,
            Source::Fallback => &self.fallback_latency,
        }
    }
}
