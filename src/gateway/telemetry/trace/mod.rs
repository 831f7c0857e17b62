//! Traces requests and sends the spans to an OpenTelemetry collector, in a build with the feature `opentelemetry`.
//!
//! The rest of the gateway uses two types: [`Tracer`], one for the process, and [`RequestTrace`], one for each request.
//! A build without the feature replaces both by types that do nothing.
//!
//! No request waits for a span. A span contains data from a client only if the access log line also contains these
//! data.

#[cfg(not(feature = "opentelemetry"))]
mod disabled;
mod ended_request;
mod endpoint;
#[cfg(feature = "opentelemetry")]
mod env;
#[cfg(feature = "opentelemetry")]
mod exporter;
#[cfg(feature = "opentelemetry")]
mod queue;
#[cfg(feature = "opentelemetry")]
mod request_trace;
#[cfg(feature = "opentelemetry")]
mod sampling;
#[cfg(feature = "opentelemetry")]
mod settings;
#[cfg(feature = "opentelemetry")]
mod span_ids;
#[cfg(feature = "opentelemetry")]
mod spans;
#[cfg(feature = "opentelemetry")]
mod store_span;
#[cfg(feature = "opentelemetry")]
mod traceparent;
#[cfg(feature = "opentelemetry")]
mod tracer;

use std::time::Duration;

#[cfg(not(feature = "opentelemetry"))]
pub(crate) use disabled::{RequestTrace, TraceSettings, Tracer};
pub(crate) use ended_request::{EndedRequest, UpstreamCall};
#[cfg(feature = "opentelemetry")]
pub(crate) use request_trace::RequestTrace;
#[cfg(feature = "opentelemetry")]
pub(crate) use settings::TraceSettings;
#[cfg(feature = "opentelemetry")]
pub(crate) use tracer::Tracer;

/// The maximum time that an exiting process waits until its last spans are sent.
pub(crate) const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);
