//! Counts and measures the calls of a store.

use std::sync::Arc;

use metrics::{Counter, Gauge, Histogram};

use super::counters_on_use::{CounterOnUse, CountersOnUse};
use super::registry::Registry;
use stores::{Fault, Settings, StoreError, TableSize};

#[derive(Debug)]
pub(crate) struct StoreMetrics {
    pub calls: Counter,
    pub duration: Histogram,
    pub batch: Histogram,
    pub up: Gauge,
    pub breaker_open: Gauge,
    pub gateways: Gauge,
    /// The number of buckets that were *healed*: their stored value was not a valid state, and was replaced by an empty bucket.
    pub healed: CounterOnUse,
    /// The number of requests whose cost the store will never charge.
    pub lost_costs: CounterOnUse,
    errors: CountersOnUse<StoreError>,
    /// The value of the label `store`.
    store: &'static str,
    registry: Arc<Registry>,
}

impl StoreMetrics {
    /// Makes the metrics of a store. For the memory store, the metrics of calls and of the circuit breaker are not exported.
    pub(crate) fn new(settings: &Settings, registry: &Arc<Registry>) -> StoreMetrics {
        let store = ("store", settings.name());
        let (up, gateways) =
            (registry.gauge("rate_limiter_store_up", &[]), registry.gauge("rate_limiter_live_gateways", &[]));
        if !settings.is_shared() {
            return StoreMetrics {
                calls: Counter::noop(),
                duration: Histogram::noop(),
                batch: Histogram::noop(),
                up,
                breaker_open: Gauge::noop(),
                gateways,
                healed: CounterOnUse::noop(),
                lost_costs: CounterOnUse::noop(),
                errors: CountersOnUse::new([], |_| Counter::noop()),
                store: settings.name(),
                registry: Arc::clone(registry),
            };
        }
        let error = || {
            let registry = Arc::clone(registry);
            move |kind: &str| registry.counter("rate_limiter_store_errors_total", &[store, ("kind", kind)])
        };
        let (of_healed, of_lost_costs, of_errors) = (error(), error(), error());
        StoreMetrics {
            calls: registry.counter("rate_limiter_store_calls_total", &[store]),
            duration: registry.histogram("rate_limiter_store_call_duration_seconds", &[store]),
            batch: registry.histogram("rate_limiter_store_batch_requests", &[store]),
            up,
            breaker_open: registry.gauge("rate_limiter_breaker_open", &[]),
            gateways,
            healed: CounterOnUse::new(move || of_healed("impossible_bucket")),
            lost_costs: CounterOnUse::new(move || of_lost_costs("lost_cost")),
            errors: CountersOnUse::new(StoreError::ALL, move |kind: &StoreError| of_errors(kind.name())),
            store: settings.name(),
            registry: Arc::clone(registry),
        }
    }

    /// Sets the gauge that says whether the store may evict buckets. The gauge appears in `/metrics` with the first
    /// call.
    pub(crate) fn set_may_evict(&self, may_evict: bool) {
        self.registry.gauge("rate_limiter_store_may_evict", &[]).set(if may_evict { 1.0 } else { 0.0 });
    }

    /// Sets the gauges for the size of the table in PostgreSQL. They appear in `/metrics` with the first measurement.
    pub(crate) fn set_table_size(&self, size: &TableSize) {
        let TableSize { table_bytes, index_bytes, live_rows, dead_rows } = *size;
        for (metric, label, value, number) in [
            ("rate_limiter_store_bytes", "part", "table", table_bytes),
            ("rate_limiter_store_bytes", "part", "index", index_bytes),
            ("rate_limiter_store_rows", "state", "live", live_rows),
            ("rate_limiter_store_rows", "state", "dead", dead_rows),
        ] {
            self.registry.gauge(metric, &[(label, value)]).set(whole_number(number));
        }
    }

    /// Counts an error of the store. If the store has several servers, the error is counted twice: for the whole store, and for
    /// the server with its address.
    pub(crate) fn count_error(&self, Fault { error, node, .. }: &Fault) {
        self.errors.increment(error);
        if let Some(node) = node {
            let labels = [("store", self.store), ("kind", error.name()), ("node", node)];
            self.registry.counter("rate_limiter_store_errors_total", &labels).increment(1);
        }
    }

    /// Sets the gauge that says whether every thread is connected to the server `node`. Used for a store with several servers.
    pub(crate) fn set_node_up(&self, node: &str, up: f64) {
        self.registry.gauge("rate_limiter_store_up", &[("node", node)]).set(up);
        // Adding 0 makes the series appear in `/metrics`.
        self.registry.gauge("rate_limiter_breaker_open", &[("node", node)]).increment(0.0);
    }

    pub(crate) fn set_node_breaker_open(&self, node: &str, open: f64) {
        self.registry.gauge("rate_limiter_breaker_open", &[("node", node)]).set(open);
    }

    /// Removes the series of a server that no longer has buckets. Its counters are still shown for two scrapes.
    pub(crate) fn forget_node(&self, node: &str) {
        self.registry.forget("node", node);
    }
}

/// Converts a number to the value of a gauge. Numbers above 2^53 are rounded.
pub(crate) fn whole_number(number: u64) -> f64 {
    let [high, low] =
        [number >> 32, number & u64::from(u32::MAX)].map(|half| u32::try_from(half).map_or(0.0, f64::from));
    high.mul_add(4_294_967_296.0, low)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gauge_shows_more_than_four_billion() {
        assert_eq!([0, 7, 5_000_000_001].map(whole_number), [0.0, 7.0, 5_000_000_001.0]);
    }
}
