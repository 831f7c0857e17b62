//! Converts ids, times and counts into what OpenTelemetry's spans hold, for every kind of span.

use std::time::{Duration, SystemTime};

use opentelemetry::trace::{SpanContext, TraceFlags, TraceState};
use opentelemetry::{SpanId, TraceId};

use base::time::{Micros, Timestamp};
use stores::span_links::SpanLink;

/// The ids of one request's spans.
#[derive(Clone, Debug)]
pub(crate) struct SpanIds {
    pub trace: u128,
    /// The id of the caller's span, if there is a caller.
    pub parent: Option<u64>,
    pub request: u64,
    pub decision: u64,
    pub delay: u64,
    /// The id of the span of the last attempt.
    pub upstream: u64,
    /// The ids of the spans of the earlier attempts.
    pub failed_attempts: Vec<u64>,
}

/// The context of a span of this gateway. A client's `tracestate` is forwarded to the upstream, and not put into spans.
pub(super) fn context(SpanLink { trace, span }: SpanLink) -> SpanContext {
    let (trace, span) = (TraceId::from_bytes(trace.to_be_bytes()), SpanId::from_bytes(span.to_be_bytes()));
    SpanContext::new(trace, span, TraceFlags::SAMPLED, false, TraceState::NONE)
}

/// The moment that is `later` after `start`, on the wall clock.
pub(super) fn time(start: Timestamp, later: Micros) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from(Micros(start.0)) + Duration::from(later)
}

/// Converts a count to the value of an attribute.
pub(super) fn integer(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
