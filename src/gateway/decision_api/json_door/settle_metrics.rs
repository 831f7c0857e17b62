//! Counts the calls of `/settle`.

use metrics::Counter;

use crate::gateway::telemetry::metrics::registry::Registry;

/// The counters of calls that settle, by their results.
#[derive(Debug)]
pub(in crate::gateway::decision_api) struct SettleMetrics {
    pub settled: Counter,
    pub repeated: Counter,
    pub ended: Counter,
    pub failed: Counter,
}

impl SettleMetrics {
    /// Makes the counters. This call makes their series appear in `/metrics`.
    pub(in crate::gateway::decision_api) fn new(registry: &Registry) -> SettleMetrics {
        let calls = |result| registry.counter("tollgate_settled_holds_total", &[("result", result)]);
        SettleMetrics {
            settled: calls("settled"),
            repeated: calls("repeated"),
            ended: calls("ended"),
            failed: calls("failed"),
        }
    }
}
