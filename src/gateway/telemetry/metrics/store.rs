//! Counts and measures the calls of a store.

use metrics::{Counter, Gauge, Histogram};

use super::counters_by::CountersBy;
use super::registry::Registry;
use crate::store::StoreError;

#[derive(Debug)]
pub struct StoreMetrics {
    pub calls: Counter,
    pub duration: Histogram,
    pub batch: Histogram,
    pub up: Gauge,
    pub breaker_open: Gauge,
    pub gateways: Gauge,
    /// Buckets with impossible values that were reset.
    pub healed: Counter,
    errors: CountersBy<StoreError>,
}

impl StoreMetrics {
    /// `store` is the name of the store.
    pub fn new(store: &'static str, registry: &Registry) -> StoreMetrics {
        let store = ("store", store);
        let error = |kind| registry.counter("rate_limiter_store_errors_total", &[store, ("kind", kind)]);
        StoreMetrics {
            calls: registry.counter("rate_limiter_store_calls_total", &[store]),
            duration: registry.histogram("rate_limiter_store_call_duration_seconds", &[store]),
            batch: registry.histogram("rate_limiter_store_batch_requests", &[store]),
            up: registry.gauge("rate_limiter_store_up", &[]),
            breaker_open: registry.gauge("rate_limiter_breaker_open", &[]),
            gateways: registry.gauge("rate_limiter_live_gateways", &[]),
            healed: error("impossible_bucket"),
            errors: CountersBy::new(StoreError::ALL, |kind| error(kind.name())),
        }
    }

    pub fn count_error(&self, error: StoreError) {
        self.errors.increment(&error);
    }
}
