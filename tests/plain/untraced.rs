//! A build without traces warns once if a collector is configured, and otherwise ignores the variables of traces.

use crate::support::{Gateway, Upstream};

const CALLER: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

#[test]
fn a_build_without_traces_logs_once_that_a_collector_is_ignored() {
    let upstream = Upstream::start();
    for (variables, reported) in [
        (&[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318")][..], 1),
        (&[("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://127.0.0.1:4318/v1/traces")], 1),
        // What only a build with traces would refuse.
        (&[("OTEL_TRACES_SAMPLER", "sometimes"), ("OTEL_EXPORTER_OTLP_ENDPOINT", "")], 0),
        (&[], 0),
    ] {
        let gateway = Gateway::before(&upstream).variables(variables).start();
        assert_eq!(gateway.client().get("/", &[("traceparent", CALLER)]).status, 200);
        assert_eq!(upstream.last().field("traceparent"), Some(CALLER));
        gateway.reload(&upstream, "limits: {headers: 50}");
        let errors = gateway.errors();
        assert_eq!(errors.matches("this build has no traces").count(), reported, "{errors}");
        if let (1, [(name, _), ..]) = (reported, variables) {
            assert!(errors.contains(&format!("variable={name}")), "{errors}");
        }
        let metrics = crate::support::Client::connect(gateway.admin).get("/metrics", &[]).body;
        assert!(!metrics.contains("tollgate_trace"), "{metrics}");
    }
}

#[test]
fn nothing_of_opentelemetry_is_in_the_binary() {
    let binary = std::fs::read(env!("CARGO_BIN_EXE_tollgate")).unwrap();
    for part in ["opentelemetry_sdk", "OTEL_BSP_", "OTEL_TRACES_SAMPLER", "tollgate_trace", "ResourceSpans"] {
        assert_eq!(memchr::memmem::find(&binary, part.as_bytes()), None, "{part}");
    }
}
