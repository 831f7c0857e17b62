//! Access log, metrics and traces.

mod access_log_details;
mod access_log_kinds;
mod access_log_limits;
mod access_log_privacy;
mod access_log_sinks;
mod metric_export;
mod metrics;
mod series;
mod traces;
