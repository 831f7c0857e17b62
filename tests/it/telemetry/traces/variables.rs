//! The environment variables of traces, valid and invalid.

use std::process::Stdio;

use super::{ALL, caller, is_well, start};
use crate::support::collector::Collector;
use crate::support::{Certificates, Client, Gateway, Upstream, https};

#[test]
fn environment_variables_determine_what_the_collector_receives() {
    let (collector, upstream) = (Collector::start(), Upstream::start());
    let url = format!("{}/elsewhere", collector.url());
    let variables = [
        ALL,
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", &*url),
        ("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=blue%20one, authorization=Basic Zm9v"),
        ("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test,service.namespace=edge"),
    ];
    let gateway = start(&collector, &upstream, "", &variables);
    is_well(&gateway, 1);
    collector.await_spans(&["request", "decision", "upstream"]);
    let post = &collector.posts()[0];
    assert_eq!(post.line, "POST /elsewhere HTTP/1.1");
    assert_eq!((post.field("x-tenant"), post.field("authorization")), (Some("blue one"), Some("Basic Zm9v")));
    assert_eq!(post.field("content-type"), Some("application/x-protobuf"));
    let resource = ["service.name", "service.version", "deployment.environment.name", "service.namespace"];
    let said = resource.map(|key| collector.resource(key).unwrap());
    assert_eq!(said, ["tollgate", env!("CARGO_PKG_VERSION"), "test", "edge"]);
    assert!(!gateway.errors().contains("Zm9v"), "{}", gateway.errors());

    let named = Collector::start();
    let gateway = start(&named, &upstream, "", &[ALL, ("OTEL_SERVICE_NAME", "front")]);
    is_well(&gateway, 1);
    named.await_spans(&["request", "decision", "upstream"]);
    assert_eq!(named.resource("service.name").as_deref(), Some("front"));
    assert!(named.posts()[0].line.starts_with("POST /v1/traces "));
}

#[test]
fn the_certificate_of_a_collector_is_verified() {
    let (certificates, upstream) = (Certificates::shared(), Upstream::start());
    let address = https::serve(certificates, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_owned());
    let url = format!("https://localhost:{}", address.port());
    let directory = tempfile::tempdir().unwrap();
    let authority = directory.path().join("authority.pem");
    std::fs::write(&authority, &certificates.authority).unwrap();
    let path = authority.display().to_string();
    let variables = [ALL, ("OTEL_EXPORTER_OTLP_ENDPOINT", &*url), ("OTEL_BSP_SCHEDULE_DELAY", "20")];
    let trusting = [&variables[..], &[("OTEL_EXPORTER_OTLP_CERTIFICATE", &*path)]].concat();
    let gateway = Gateway::before(&upstream).variables(&trusting).start();
    is_well(&gateway, 1);
    gateway.expect("tollgate_trace_spans_sent_total", &[], 3.0);
    // The machine does not know that authority.
    let gateway = Gateway::before(&upstream)
        .variables(&[&variables[..], &[("OTEL_EXPORTER_OTLP_TIMEOUT", "2000")]].concat())
        .start();
    is_well(&gateway, 1);
    gateway.expect("tollgate_trace_spans_dropped_total", &["not_taken"], 3.0);
    gateway.expect_logged("it was issued by an authority that is not trusted");
}

#[test]
fn without_a_collector_or_disabled_nothing_is_traced_or_logged() {
    let (collector, upstream) = (Collector::start(), Upstream::start());
    let url = collector.url();
    let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", &*url);
    for variables in [
        &[ALL][..],
        &[ALL, ("OTEL_EXPORTER_OTLP_ENDPOINT", "")],
        &[ALL, endpoint, ("OTEL_SDK_DISABLED", "TRUE")],
        &[ALL, endpoint, ("OTEL_TRACES_EXPORTER", "none"), ("OTEL_METRICS_EXPORTER", "none")],
    ] {
        let mut gateway = Gateway::before(&upstream).variables(variables).start();
        let fields = [("traceparent", &*caller("01"))];
        assert_eq!(gateway.client().get("/", &fields).status, 200);
        assert_eq!(upstream.last().field("traceparent"), Some(&*caller("01")));
        let metrics = Client::connect(gateway.admin).get("/metrics", &[]).body;
        assert!(!metrics.contains("tollgate_trace"), "{metrics}");
        gateway.signal("TERM");
        gateway.wait();
        assert!(!gateway.errors().contains("trace"), "{}", gateway.errors());
    }
    assert_eq!(collector.posts().len(), 0);
}

#[test]
fn an_invalid_variable_is_a_reason_not_to_start() {
    let upstream = Upstream::start();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("gateway.yaml");
    std::fs::write(&file, Gateway::text(&format!("http://{}", upstream.address), "")).unwrap();
    let check = |variables: &[(&str, &str)], said: &[&str]| {
        let mut command = Gateway::command(&file);
        command.env("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318").envs(variables.iter().copied());
        let output = command.stdin(Stdio::null()).output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        let lines: Vec<_> = errors.lines().filter(|line| !line.contains("INFO") && !line.contains("WARN")).collect();
        assert_eq!((output.status.code(), &lines[..]), (Some(1), said), "{errors}");
    };
    let url = "must be a URL with http or https and a host, and no user in it";
    for endpoint in ["collector:4318", "ftp://collector", "http://"] {
        let said = format!("OTEL_EXPORTER_OTLP_ENDPOINT: {url}, is `{endpoint}`");
        check(&[("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)], &[&said]);
    }
    let secret = "http://me:secret@collector";
    check(&[("OTEL_EXPORTER_OTLP_ENDPOINT", secret)], &[&format!("OTEL_EXPORTER_OTLP_ENDPOINT: {url}")]);
    check(
        &[
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
            ("OTEL_TRACES_SAMPLER", "sometimes"),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "0"),
        ],
        &[
            "OTEL_EXPORTER_OTLP_PROTOCOL: must be http/protobuf, is `grpc`",
            "OTEL_BSP_MAX_QUEUE_SIZE: must be a number from 1 to 1000000, is `0`",
            "OTEL_TRACES_SAMPLER: must be always_on, always_off, traceidratio, or one of these after parentbased_, is `sometimes`",
        ],
    );
    check(
        &[("OTEL_BSP_MAX_QUEUE_SIZE", "10"), ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "11")],
        &["OTEL_BSP_MAX_EXPORT_BATCH_SIZE: must be a number from 1 to 10, is `11`"],
    );
    for (name, value, must) in [
        ("OTEL_TRACES_SAMPLER_ARG", "2", "must be a number from 0 to 1, is `2`"),
        ("OTEL_TRACES_SAMPLER_ARG", "NaN", "must be a number from 0 to 1, is `NaN`"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "5s", "must be a number from 1 to 3600000, is `5s`"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip", "must be none, is `gzip`"),
        ("OTEL_TRACES_EXPORTER", "zipkin", "must be otlp or none, is `zipkin`"),
        ("OTEL_SDK_DISABLED", "yes", "must be true or false, is `yes`"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "secret", "must be a list of name=value, with commas between them"),
        ("OTEL_RESOURCE_ATTRIBUTES", "a=b,c", "must be a list of name=value, is `a=b,c`"),
        ("TOLLGATE_TRACES_FROM_CLIENTS", "-1", "must be a number from 0 to 16777215, is `-1`"),
    ] {
        check(&[(name, value)], &[&format!("{name}: {must}")]);
    }
    let missing = directory.path().join("missing.pem").display().to_string();
    check(
        &[("OTEL_EXPORTER_OTLP_CERTIFICATE", &missing)],
        &[&format!("{missing}: No such file or directory (os error 2)")],
    );
}
