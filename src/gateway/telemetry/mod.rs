//! Reports what the gateway does: metrics, events, the access log, records for billing and traces.

pub(super) mod access_log;
pub(super) mod events;
pub(super) mod held_buckets;
pub(super) mod labels;
pub(super) mod lease_health;
mod line_sink;
pub(super) mod log_writers;
pub(super) mod metric_export;
pub(super) mod metrics;
mod otlp;
pub(super) mod records;
pub(super) mod reload_status;
mod server_notices;
pub(super) mod store_health;
pub(super) mod top_refused;
pub(super) mod trace;

use std::time::Duration;

use metric_export::MetricExportSettings;
use trace::TraceSettings;

/// How long an exiting process waits until its last spans and metrics are sent.
pub(super) const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// What the environment says about the collector of traces and metrics.
#[derive(Debug)]
pub(super) struct CollectorsSettings {
    pub traces: Option<TraceSettings>,
    pub metrics: Option<MetricExportSettings>,
}

impl CollectorsSettings {
    /// Reads the settings from environment variables.
    ///
    /// # Errors
    /// Returns one line for each invalid variable.
    pub(super) fn read() -> Result<CollectorsSettings, Vec<String>> {
        let variable = |name: &str| std::env::var_os(name);
        let mut variables = otlp::Variables::new(&variable);
        let traces = TraceSettings::read(&mut variables);
        let metrics = MetricExportSettings::read(&mut variables);
        variables.done(CollectorsSettings { traces, metrics })
    }
}
