//! Traces requests and sends the spans to an OpenTelemetry collector, in a build with the feature `opentelemetry`.
//!
//! The rest of the gateway knows two types: [`Tracer`], one per process, and [`RequestTrace`], one per request. A build without
//! the feature has replacements of both that have size 0 and do nothing, so that no other room depends on the build.
//!
//! Invariants: no request waits for a span or fails because of one. Spans hold nothing that a client sent, except what a
//! line of the access log has as well: what they say about a decision is taken from that line.

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
