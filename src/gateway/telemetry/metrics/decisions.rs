//! Counts decisions by their result, and measures them by their source.

use metrics::{Counter, Histogram};

use super::registry::Registry;
use crate::gateway::telemetry::labels::DecisionResult;
use request::door::Door;
use stores::{Settings, Source};

/// The counters of the decisions for requests that arrive in one way.
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
    /// Makes the counters for requests that arrive in this way. Their series exist from now on.
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

/// The counters of descriptors and hits at the door `rls`, in addition to those of decisions.
#[derive(Debug)]
pub(crate) struct RateLimitMetrics {
    pub decisions: DoorDecisions,
    /// Descriptors that have a limit, or that a rule denied.
    pub limited: Counter,
    /// Descriptors for which no limit was found.
    pub unlimited: Counter,
    /// Limits that a caller sends with its call, which are ignored.
    pub ignored_limits: Counter,
    /// Negative hits, with which a call would give back, and which are ignored.
    pub ignored_refunds: Counter,
}

impl RateLimitMetrics {
    /// Makes the counters. Their series exist from now on.
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
        // Memory always answers.
        let without_store = |source| if store.is_shared() { latency(source) } else { Histogram::noop() };
        DecisionMetrics {
            proxied: DoorDecisions::new(Door::Proxy, registry),
            store_latency: latency("store"),
            cached_latency: without_store("cached"),
            fallback_latency: without_store("fallback"),
        }
    }

    /// Counts a decision about a request that is proxied.
    pub(crate) fn count(&self, result: DecisionResult) {
        self.proxied.count(result);
    }

    /// The duration of decisions in seconds.
    pub(crate) fn latency(&self, source: Source) -> &Histogram {
        match source {
            Source::Store => &self.store_latency,
            Source::Cached => &self.cached_latency,
            Source::Fallback => &self.fallback_latency,
        }
    }
}
