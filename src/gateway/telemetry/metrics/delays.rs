//! Counts and measures the requests that a limit delays.

use metrics::{Counter, Gauge, Histogram};

use super::registry::Registry;

#[derive(Debug)]
pub struct DelayMetrics {
    /// Requests that wait now.
    pub waiting: Gauge,
    /// How long those waited that went on.
    pub waited: Histogram,
    /// Those whose clients left meanwhile.
    pub left: Counter,
}

impl DelayMetrics {
    pub fn new(registry: &Registry) -> DelayMetrics {
        let waiting = registry.gauge("rate_limiter_waiting", &[]);
        waiting.set(0.0);
        DelayMetrics {
            waiting,
            waited: registry.histogram("rate_limiter_waited_seconds", &[]),
            left: registry.counter("rate_limiter_left_waiting_total", &[]),
        }
    }
}
