//! Counts decisions by their result, and measures them by where they were made.

use metrics::{Counter, Histogram};

use super::registry::Registry;
use crate::gateway::telemetry::labels::DecisionResult;
use crate::store::{Settings, Source};

#[derive(Debug)]
pub struct DecisionMetrics {
    allowed: Counter,
    refused: Counter,
    exempt: Counter,
    unlimited: Counter,
    store_latency: Histogram,
    cached_latency: Histogram,
    fallback_latency: Histogram,
}

impl DecisionMetrics {
    pub fn new(store: &Settings, registry: &Registry) -> DecisionMetrics {
        let result = |result| registry.counter("rate_limiter_decisions_total", &[("result", result)]);
        let latency = |source| registry.histogram("rate_limiter_latency_seconds", &[("source", source)]);
        // Memory always answers.
        let without_store = |source| if store.is_shared() { latency(source) } else { Histogram::noop() };
        DecisionMetrics {
            allowed: result("allowed"),
            refused: result("refused"),
            exempt: result("exempt"),
            unlimited: result("unlimited"),
            store_latency: latency("store"),
            cached_latency: without_store("cached"),
            fallback_latency: without_store("fallback"),
        }
    }

    pub fn count(&self, result: DecisionResult) {
        let counter = match result {
            DecisionResult::Allowed => &self.allowed,
            DecisionResult::Refused => &self.refused,
            DecisionResult::Exempt => &self.exempt,
            DecisionResult::Unlimited => &self.unlimited,
        };
        counter.increment(1);
    }

    /// The duration of decisions in seconds.
    pub fn latency(&self, source: Source) -> &Histogram {
        match source {
            Source::Store => &self.store_latency,
            Source::Cached => &self.cached_latency,
            Source::Fallback => &self.fallback_latency,
        }
    }
}
