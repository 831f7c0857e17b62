//! Counts decisions by their result, and measures them by where they were made.

use metrics::{Counter, Histogram};

use super::registry::Registry;
use crate::gateway::telemetry::labels::DecisionResult;
use crate::store::Source;

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
    pub fn new(registry: &Registry) -> DecisionMetrics {
        let result = |result| registry.counter("rate_limiter_decisions_total", &[("result", result)]);
        let latency = |source| registry.histogram("rate_limiter_latency_seconds", &[("source", source)]);
        DecisionMetrics {
            allowed: result("allowed"),
            refused: result("refused"),
            exempt: result("exempt"),
            unlimited: result("unlimited"),
            store_latency: latency("store"),
            cached_latency: latency("cached"),
            fallback_latency: latency("fallback"),
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
