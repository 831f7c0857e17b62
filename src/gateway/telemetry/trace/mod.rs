//! Traces what becomes of a request, for a collector of OpenTelemetry, in a build with the feature `opentelemetry`.
//!
//! The rest of the gateway knows two types: [`Tracer`], one of a process, and [`RequestTrace`], one of a request. A build without
//! the feature has their twins, which take no room and do nothing, so that nobody else has to ask which build it is.
//!
//! Invariants: no request waits for a span, or fails for one; nothing that a client sent is in one, but for what a line of
//! the access log has as well, from which all that is told of a decision is taken.

#[cfg(not(feature = "opentelemetry"))]
mod disabled;
#[cfg(feature = "opentelemetry")]
mod env;
#[cfg(feature = "opentelemetry")]
mod exporter;
#[cfg(feature = "opentelemetry")]
mod http_client;
#[cfg(feature = "opentelemetry")]
mod queue;
#[cfg(feature = "opentelemetry")]
mod request_trace;
#[cfg(feature = "opentelemetry")]
mod sampling;
#[cfg(feature = "opentelemetry")]
mod settings;
#[cfg(feature = "opentelemetry")]
mod spans;
#[cfg(feature = "opentelemetry")]
mod store_span;
#[cfg(feature = "opentelemetry")]
mod traceparent;
#[cfg(feature = "opentelemetry")]
mod tracer;

#[cfg(not(feature = "opentelemetry"))]
pub use disabled::{RequestTrace, TraceSettings, Tracer};
#[cfg(feature = "opentelemetry")]
pub use request_trace::RequestTrace;
#[cfg(feature = "opentelemetry")]
pub use settings::TraceSettings;
#[cfg(feature = "opentelemetry")]
pub use tracer::Tracer;

use std::time::Duration;

use super::labels::UpstreamError;

/// Tells a collector where it is; with any of them set, an operator wants traces.
const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];

/// The most that is waited for spans that were not sent when the process leaves.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// How a request went on that was let through.
#[derive(Clone, Copy, Debug)]
pub struct Onward {
    /// The upstream's answer, if one has gone out.
    pub code: Option<u16>,
    pub error: Option<UpstreamError>,
}
