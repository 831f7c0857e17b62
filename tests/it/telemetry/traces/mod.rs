//! Traces from outside: a collector reads what the gateway sends.

mod callers;
mod delivery;
mod spans;
mod variables;

use crate::support::collector::{Collector, Span};
use crate::support::{Client, Gateway, Upstream};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CALLER: &str = "b7ad6b7169203331";

fn caller(flags: &str) -> String {
    format!("00-{TRACE}-{CALLER}-{flags}")
}

/// Starts a gateway that soon sends its traces to this collector.
fn start(collector: &Collector, upstream: &Upstream, rest: &str, variables: &[(&str, &str)]) -> Gateway {
    let url = collector.url();
    let ours =
        [("OTEL_EXPORTER_OTLP_ENDPOINT", &*url), ("OTEL_METRICS_EXPORTER", "none"), ("OTEL_BSP_SCHEDULE_DELAY", "20")];
    let all: Vec<_> = ours.into_iter().chain(variables.iter().copied()).collect();
    Gateway::before(upstream).with(rest).variables(&all).start()
}

const ALL: (&str, &str) = ("OTEL_TRACES_SAMPLER", "always_on");
/// Only requests are traced whose callers set the sampled flag.
const CALLERS: [(&str, &str); 2] =
    [("OTEL_TRACES_SAMPLER", "parentbased_traceidratio"), ("OTEL_TRACES_SAMPLER_ARG", "0")];

#[track_caller]
fn the<'s>(spans: &'s [Span], role: &str) -> &'s Span {
    spans.iter().find(|span| span.role() == role).unwrap_or_else(|| panic!("no {role} in {spans:#?}"))
}

/// Checks that requests and readiness are unaffected, whatever happens to spans.
#[track_caller]
fn is_well(gateway: &Gateway, requests: usize) {
    let mut client = gateway.client();
    for _ in 0..requests {
        assert_eq!(client.get("/", &[]).status, 200);
    }
    assert_eq!(Client::connect(gateway.admin).get("/readyz", &[]).status, 200);
}
