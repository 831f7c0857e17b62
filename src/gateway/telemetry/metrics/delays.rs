//! Counts the requests that a limit delays, and measures their delays.

use metrics::{Counter, Gauge, Histogram};

use super::registry::Registry;

#[derive(Debug)]
pub(crate) struct DelayMetrics {
    /// The number of requests that a limit delays at present.
    pub waiting: Gauge,
    /// How long limits delayed the requests that were then forwarded, in seconds.
    pub waited: Histogram,
    /// The number of requests whose client disconnected while a limit delayed the request.
    pub left: Counter,
}

impl DelayMetrics {
    pub(crate) fn new(registry: &Registry) -> DelayMetrics {
        let waiting = registry.gauge("rate_limiter_waiting", &[]);
        waiting.set(0.0);
        DelayMetrics {
            waiting,
            waited: registry.histogram("rate_limiter_waited_seconds", &[]),
            left: registry.counter("rate_limiter_left_waiting_total", &[]),
        }
    }
}
