//! Names the variables that say where the collector is. With either of them set, an operator expects traces.

/// The first is for traces alone, the second for all signals.
pub const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];
