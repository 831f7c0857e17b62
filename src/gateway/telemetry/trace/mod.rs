//! Traces requests and sends the spans to an OpenTelemetry collector, if the environment names one.
//!
//! The rest of the gateway uses two types: [`Tracer`], one for the process, and [`RequestTrace`], one for each request.
//!
//! No request waits for a span. A span contains data from a client only if the access log line also contains these
//! data.

mod ended_request;
mod exporter;
mod queue;
mod request_trace;
mod sampling;
mod settings;
mod span_ids;
mod spans;
mod store_span;
mod traceparent;
mod tracer;

pub(crate) use ended_request::{EndedRequest, UpstreamCall};
pub(crate) use request_trace::RequestTrace;
pub(crate) use settings::TraceSettings;
pub(crate) use tracer::Tracer;
