//! Counts and measures the requests that a limit delays.

use metrics::{Counter, Gauge, Histogram};

use super::registry::Registry;

#[derive(Debug)]
pub struct DelayMetrics {
    /// The number of requests that wait now.
    pub waiting: Gauge,
    /// How long requests waited that went on.
    pub waited: Histogram,
    /// The number of requests whose clients disconnected while they waited.
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
