//! Converts ids, times and counts to the types of OpenTelemetry's spans.

use std::time::{Duration, SystemTime};

use opentelemetry::trace::{SpanContext, TraceFlags, TraceState};
use opentelemetry::{SpanId, TraceId};

use base::time::{Micros, Timestamp};
use stores::span_links::SpanLink;

/// The id of the trace of one request, and the ids of its spans.
#[derive(Clone, Debug)]
pub(crate) struct SpanIds {
    pub trace: u128,
    /// The id of the caller's span. `None` if the request has no trace context.
    pub parent: Option<u64>,
    pub request: u64,
    pub decision: u64,
    pub delay: u64,
    /// The id of the span for the last attempt to send the request to the upstream.
    pub upstream: u64,
    /// The ids of the spans for earlier attempts, which have failed.
    pub failed_attempts: Vec<u64>,
}

/// Returns the context of a span that this gateway makes. A client's `tracestate` is forwarded to the upstream, but not put
/// into spans.
pub(super) fn context(SpanLink { trace, span }: SpanLink) -> SpanContext {
    let (trace, span) = (TraceId::from_bytes(trace.to_be_bytes()), SpanId::from_bytes(span.to_be_bytes()));
    SpanContext::new(trace, span, TraceFlags::SAMPLED, false, TraceState::NONE)
}

/// Returns `start` plus `later`, as a time of the wall clock.
pub(super) fn time(start: Timestamp, later: Micros) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from(Micros(start.0)) + Duration::from(later)
}

/// Converts a count to the integer type of span attributes.
pub(super) fn integer(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
