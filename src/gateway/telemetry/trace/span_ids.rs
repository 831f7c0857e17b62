//! Converts ids, times and counts into what OpenTelemetry's spans hold, for every kind of span.

use std::time::{Duration, SystemTime};

use opentelemetry::trace::{SpanContext, TraceFlags, TraceState};
use opentelemetry::{SpanId, TraceId};

use base::time::{Micros, Timestamp};
use stores::span_links::SpanLink;

/// The ids of one request's spans.
#[derive(Clone, Debug)]
pub struct SpanIds {
    pub trace: u128,
    /// The caller's span.
    pub parent: Option<u64>,
    pub request: u64,
    pub decision: u64,
    pub delay: u64,
    /// Of the last attempt.
    pub upstream: u64,
    /// Of the attempts before it.
    pub failed_attempts: Vec<u64>,
}

/// The context of a span of ours. A client's `tracestate` is sent on to the upstream, and is not put into spans.
pub fn context(SpanLink { trace, span }: SpanLink) -> SpanContext {
    let (trace, span) = (TraceId::from_bytes(trace.to_be_bytes()), SpanId::from_bytes(span.to_be_bytes()));
    SpanContext::new(trace, span, TraceFlags::SAMPLED, false, TraceState::NONE)
}

/// The moment `later` after `start`, which is by the wall clock.
pub fn time(start: Timestamp, later: Micros) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from(Micros(start.0)) + Duration::from(later)
}

/// A count, as an attribute's value.
pub fn integer(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
