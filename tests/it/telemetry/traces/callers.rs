//! The requests that are traced, and the trace context that the upstream gets.

use super::{ALL, CALLERS, TRACE, caller, start, the};
use crate::support::collector::Collector;
use crate::support::{Upstream, eventually, now};

#[test]
fn the_sampled_flag_of_callers_is_followed_up_to_a_bound() {
    let (collector, upstream) = (Collector::start(), Upstream::start());
    let variables = [CALLERS[0], CALLERS[1], ("TOLLGATE_TRACES_FROM_CLIENTS", "2")];
    let gateway = start(&collector, &upstream, "", &variables);
    let mut client = gateway.client();
    let begun = now();
    for _ in 0..40 {
        assert_eq!(client.get("/", &[("traceparent", &caller("01"))]).status, 200);
    }
    let seconds = usize::try_from(begun.elapsed().as_secs()).unwrap() + 2;
    let ours = upstream.seen().iter().filter(|seen| seen.field("traceparent") != Some(&*caller("01"))).count();
    assert!(ours >= 2 && ours <= 2 * seconds, "{ours} in {seconds} s");
    eventually("they come", || collector.spans().iter().filter(|span| span.role() == "request").count() == ours);
    gateway.expect("tollgate_traces_declined_total", &[], f64::from(40 - u32::try_from(ours).unwrap()));
}

#[test]
fn an_untraced_request_has_no_span_and_its_context_is_forwarded_unchanged() {
    let (collector, upstream) = (Collector::start(), Upstream::start());
    for variables in [&CALLERS[..], &[("OTEL_TRACES_SAMPLER", "always_off")]] {
        let mut gateway = start(&collector, &upstream, "", variables);
        let mut client = gateway.client();
        let bad = [&caller("01")[..54], "00-0-0-01", &caller("01").to_uppercase(), ""];
        for sent in bad.into_iter().chain([&*caller("00"), "ff-0-0-0"]) {
            assert_eq!(client.get("/", &[("traceparent", sent), ("tracestate", "vendor=1")]).status, 200);
            let seen = upstream.last();
            assert_eq!((seen.field("traceparent"), seen.field("tracestate")), (Some(sent), Some("vendor=1")));
        }
        assert_eq!(client.get("/", &[]).status, 200);
        assert_eq!(upstream.last().field("traceparent"), None);
        gateway.signal("TERM");
        gateway.wait();
    }
    assert_eq!(collector.posts().len(), 0);
}

#[test]
fn an_invalid_traceparent_counts_as_missing() {
    let (collector, upstream) = (Collector::start(), Upstream::start());
    let gateway = start(&collector, &upstream, "", &[ALL]);
    let fields = [("traceparent", &caller("01")[..54]), ("tracestate", "vendor=1")];
    assert_eq!(gateway.client().get("/", &fields).status, 200);
    let spans = collector.await_spans(&["request", "decision", "upstream"]);
    let (request, onward) = (the(&spans, "request"), the(&spans, "upstream"));
    assert_eq!(request.parent(), "");
    assert_ne!(request.trace(), TRACE);
    let seen = upstream.last();
    assert_eq!(seen.field("traceparent"), Some(&*format!("00-{}-{}-01", request.trace(), onward.id())));
    // It belongs to a trace that there is not.
    assert_eq!(seen.field("tracestate"), None);
}
