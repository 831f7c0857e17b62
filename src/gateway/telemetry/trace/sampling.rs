//! Chooses the requests that are traced.
//!
//! A client can choose a `traceparent` that is always traced. So the number of traces per second with a trace id from a
//! client is limited if not every request is traced.

use std::sync::atomic::{AtomicU64, Ordering};

use http::HeaderMap;
use metrics::Counter;
use opentelemetry::TraceId;
use opentelemetry::trace::SpanKind;
use opentelemetry_sdk::trace::{Sampler, SamplingDecision, ShouldSample};

use super::traceparent::{Parent, SampledFlag};
use base::time::Timestamp;

/// Whether the caller or the gateway decides if a request with a trace context is traced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Basis {
    /// The sampled flag in the caller's trace context decides.
    Caller,
    /// The gateway's ratio decides, as for a request without a trace context.
    Own,
}

/// The settings that choose which requests are traced, read from the environment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct SamplingSettings {
    pub basis: Basis,
    /// The share of requests that are traced, from 0 to 1. It applies to requests without a trace context from the caller. If
    /// `basis` is [`Basis::Own`], it applies to all requests.
    pub ratio: f64,
    /// The maximum number of traces per second that may begin with a trace id from a client.
    pub from_clients: u32,
}

#[derive(Debug)]
pub(super) struct Sampling {
    settings: SamplingSettings,
    own: Sampler,
    /// The current second, and the number of traces with a trace id from a client that have begun in this second.
    from_outside: AtomicU64,
}

/// The id of a trace that this gateway begins or continues, and the id of the caller's span if there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TraceStart {
    pub trace: u128,
    pub parent: Option<u64>,
}

/// The number of low bits that hold the count of traces. The other bits hold the time, in seconds.
const COUNT: u32 = 24;
pub(super) const MAX_FROM_CLIENTS: u32 = (1 << COUNT) - 1;

impl Sampling {
    pub(super) fn new(settings: SamplingSettings) -> Sampling {
        Sampling { settings, own: Sampler::TraceIdRatioBased(settings.ratio), from_outside: AtomicU64::new(0) }
    }

    /// Decides whether to trace a request with these header fields. `declined` counts the requests that were not traced because
    /// clients asked for too many traces.
    pub(super) fn begin(&self, headers: &HeaderMap, now: Timestamp, declined: &Counter) -> Option<TraceStart> {
        let Some(parent) = Parent::of(headers) else {
            let trace = random();
            return self.takes(trace).then_some(TraceStart { trace, parent: None });
        };
        let wanted = match self.settings.basis {
            Basis::Caller => parent.sampling == SampledFlag::Yes,
            Basis::Own => self.takes(parent.trace),
        };
        if !wanted {
            return None;
        }
        if self.settings.ratio < 1.0 && !self.is_below_bound(now) {
            declined.increment(1);
            return None;
        }
        Some(TraceStart { trace: parent.trace, parent: Some(parent.span) })
    }

    fn takes(&self, trace: u128) -> bool {
        let id = TraceId::from_bytes(trace.to_be_bytes());
        let result = self.own.should_sample(None, id, "", &SpanKind::Server, &[], &[]);
        result.decision == SamplingDecision::RecordAndSample
    }

    fn is_below_bound(&self, now: Timestamp) -> bool {
        let (second, most) = (now.0 / 1_000_000, u64::from(self.settings.from_clients.min(MAX_FROM_CLIENTS)));
        let next = |before: u64| {
            // Threads may call this out of order, but a second that is over must not begin again.
            let current = second.max(before >> COUNT);
            let count = if before >> COUNT == current { before & u64::from(MAX_FROM_CLIENTS) } else { 0 };
            (count < most).then_some((current << COUNT) | (count + 1))
        };
        self.from_outside.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_ok()
    }
}

/// Returns a random id. It is not 0, because 0 is invalid.
fn random() -> u128 {
    fastrand::u128(..).max(1)
}

/// Returns a random id for a span, which is never 0.
pub(super) fn random_span() -> u64 {
    fastrand::u64(..).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn sampling(basis: Basis, ratio: f64, from_clients: u32) -> Sampling {
        Sampling::new(SamplingSettings { basis, ratio, from_clients })
    }

    fn caller(trace: u128, flags: u8) -> HeaderMap {
        let line = format!("00-{trace:032x}-00000000000000ff-{flags:02x}");
        HeaderMap::from_iter([(http::HeaderName::from_static("traceparent"), HeaderValue::try_from(line).unwrap())])
    }

    fn begins(sampling: &Sampling, headers: &HeaderMap, second: u64) -> bool {
        sampling.begin(headers, Timestamp(second * 1_000_000), &Counter::noop()).is_some()
    }

    #[test]
    fn traces_from_clients_are_bounded_per_second() {
        let sampling = sampling(Basis::Caller, 0.0, 3);
        for second in [5, 6, 9] {
            let taken = (0..100).filter(|_| begins(&sampling, &caller(7, 1), second)).count();
            assert_eq!(taken, 3);
        }
        assert!(!begins(&sampling, &caller(7, 0), 10), "its caller does not keep it");
        assert!(!begins(&self::sampling(Basis::Caller, 0.0, 0), &caller(7, 1), 10), "none are taken over");
    }

    #[test]
    fn late_requests_of_a_past_second_do_not_raise_the_bound() {
        let sampling = sampling(Basis::Caller, 0.0, 3);
        let taken =
            |seconds: [u64; 2]| (0..100).filter(|turn| begins(&sampling, &caller(7, 1), seconds[turn % 2])).count();
        assert_eq!(taken([5, 5]), 3);
        assert_eq!(taken([6, 5]), 3);
        assert_eq!(taken([7, 6]), 3);
    }

    #[test]
    fn a_trace_id_that_passes_every_ratio_is_bounded_too() {
        let sampling = sampling(Basis::Own, 0.000_001, 3);
        assert_eq!((0..100).filter(|_| begins(&sampling, &caller(1, 0), 5)).count(), 3);
        assert!(!begins(&sampling, &caller(u128::MAX, 1), 6), "the flag does not count");
    }

    #[test]
    fn a_ratio_of_one_traces_every_request() {
        for basis in [Basis::Caller, Basis::Own] {
            let sampling = sampling(basis, 1.0, 3);
            assert_eq!((0..100).filter(|_| begins(&sampling, &caller(7, 1), 5)).count(), 100);
            assert_eq!((0..100).filter(|_| begins(&sampling, &HeaderMap::new(), 5)).count(), 100);
        }
    }

    #[test]
    fn a_share_of_requests_without_a_caller_is_traced_each_with_its_own_id() {
        let sampling = sampling(Basis::Caller, 0.1, 0);
        let begun = (0..20_000).filter_map(|_| sampling.begin(&HeaderMap::new(), Timestamp(0), &Counter::noop()));
        let traces: std::collections::HashSet<u128> = begun.map(|beginning| beginning.trace).collect();
        assert!((1500..2500).contains(&traces.len()), "{}", traces.len());
    }
}
