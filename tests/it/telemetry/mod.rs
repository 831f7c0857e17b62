//! Access log, metrics and traces.

pub mod access_log;
mod access_log_details;
mod access_log_sinks;
mod metrics;
mod series;
#[cfg(feature = "opentelemetry")]
mod traces;
