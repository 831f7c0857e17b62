//! Names the variables with the address of the collector. An operator who sets either of them expects traces.

/// The variables that name the collector: for traces only, and for all signals.
pub(super) const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];
