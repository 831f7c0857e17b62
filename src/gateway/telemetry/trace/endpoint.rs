//! Names the environment variables with the collector's address. If one is set, traces are sent.

/// The environment variables that contain the collector's address. The first is for traces only, and the second for all
/// signals.
pub(super) const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];
