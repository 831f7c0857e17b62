//! The export of metrics to a collector.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::TcpListener;

use crate::support::collector::Collector;
use crate::support::{Client, Gateway, Upstream, eventually, free_port, now};

const SOON: (&str, &str) = ("OTEL_METRIC_EXPORT_INTERVAL", "100");

/// Returns the value of each series of `/metrics`.
fn scrape(gateway: &Gateway) -> BTreeMap<String, f64> {
    let text = Client::connect(gateway.admin).get("/metrics", &[("Connection", "close")]).body;
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let series = lines.map(|line| line.rsplit_once(' ').unwrap());
    series.map(|(name, value)| (name.to_owned(), value.parse().unwrap())).collect()
}

#[test]
fn a_collector_gets_the_series_and_numbers_of_a_scrape_with_a_thousand_rules() {
    let (collector, upstream) = (Collector::start(), Upstream::start());
    let rule = |number: usize| {
        let (path, rate) = (format!("/{number}/*"), 1 + number % 3);
        format!(
            "\n  - {{name: r{number}, match: {{path: {path}}}, limit_keys: [ip:address], algorithm_config: {{rate: {rate}/day}}}}"
        )
    };
    let rules = format!("rules:{}", (0..1000).map(rule).collect::<String>());
    let url = collector.url();
    let gateway = Gateway::before(&upstream)
        .with(&rules)
        .variables(&[("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", &*format!("{url}/v1/metrics")), SOON])
        .start();
    let mut client = gateway.client();
    let answered: Vec<_> = (0..60).map(|number| client.get(&format!("/{}/a", number % 20), &[]).status).collect();
    assert!(answered.contains(&200) && answered.contains(&429), "{answered:?}");
    drop(client);

    // Compares what did not change while an export was made.
    let is_ours = |name: &String| !name.starts_with("process_");
    eventually("a scrape before an export and one after it are alike", || {
        let before = scrape(&gateway);
        let exports = collector.metric_exports();
        eventually("two more exports", || collector.metric_exports() > exports + 1);
        let exported = collector.metrics().unwrap().series();
        let after = scrape(&gateway);
        let stable: Vec<_> =
            before.iter().filter(|(name, value)| is_ours(name) && after.get(*name) == Some(value)).collect();
        let differs: Vec<_> = stable.iter().filter(|(name, value)| exported.get(*name) != Some(value)).collect();
        let names =
            |series: &BTreeMap<String, f64>| series.keys().filter(|name| is_ours(name)).cloned().collect::<Vec<_>>();
        assert!(stable.len() > 4000 && stable.len() + 20 > before.len(), "{} of {}", stable.len(), before.len());
        differs.is_empty() && names(&before) == names(&after) && names(&exported) == names(&after)
    });
    let exported = collector.metrics().unwrap();
    let allowed = "rate_limiter_allowed_total{policy=\"default\",rule=\"r1\",mode=\"enforce\"}";
    assert_eq!(exported.series().get(allowed), Some(&2.0));
    let (help, unit) = exported.described("rate_limiter_latency_seconds").unwrap();
    assert_eq!((help.is_empty(), &*unit), (false, "s"));
}

#[test]
fn variables_say_where_metrics_go_and_what_describes_the_gateway() {
    let (collector, upstream) = (Collector::start(), Upstream::start());
    let url = collector.url();
    let variables = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &*url),
        ("OTEL_TRACES_EXPORTER", "none"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Basic%20Zm9v"),
        ("OTEL_EXPORTER_OTLP_METRICS_HEADERS", "x-tenant=blue%20one"),
        ("OTEL_SERVICE_NAME", "front"),
        SOON,
    ];
    let start = |more: &[(&str, &str)]| Gateway::before(&upstream).variables(&[&variables[..], more].concat()).start();
    let described = |gateway: Gateway, key: &str| {
        let exports = collector.metric_exports();
        eventually("two more exports", || collector.metric_exports() > exports + 1);
        drop(gateway);
        collector.metrics().unwrap().resource(key).unwrap()
    };
    let gateway = start(&[]);
    gateway.expect_logged("metrics are sent");
    assert_eq!(described(gateway, "service.name"), "front");
    let post = &collector.posts()[0];
    assert_eq!((post.field("x-tenant"), post.field("authorization")), (Some("blue one"), None));
    assert_eq!(post.field("content-type"), Some("application/x-protobuf"));
    let instances = [(); 2].map(|()| described(start(&[]), "service.instance.id"));
    assert_ne!(instances[0], instances[1]);
    assert_eq!(instances[0].len(), 36, "{instances:?}");
    let named = [("OTEL_RESOURCE_ATTRIBUTES", "service.instance.id=eu-1")];
    assert_eq!(described(start(&named), "service.instance.id"), "eu-1");
}

#[test]
fn without_an_exporter_no_metrics_are_sent_and_a_wrong_variable_prevents_the_start() {
    let (collector, upstream) = (Collector::start(), Upstream::start());
    let url = collector.url();
    let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", &*url);
    for off in [("OTEL_METRICS_EXPORTER", "none"), ("OTEL_SDK_DISABLED", "true")] {
        let mut gateway = Gateway::before(&upstream).variables(&[endpoint, SOON, off]).start();
        assert_eq!(gateway.client().get("/", &[]).status, 200);
        assert!(!scrape(&gateway).keys().any(|name| name.contains("metric_exports")));
        gateway.signal("TERM");
        gateway.wait();
    }
    assert_eq!(collector.metric_exports(), 0);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("gateway.yaml");
    std::fs::write(&file, Gateway::text(&format!("http://{}", upstream.address), "")).unwrap();
    for (name, value, must) in [
        ("OTEL_METRIC_EXPORT_INTERVAL", "1m", "must be a number from 1 to 3600000, is `1m`"),
        ("OTEL_METRIC_EXPORT_TIMEOUT", "0", "must be a number from 1 to 3600000, is `0`"),
        ("OTEL_METRICS_EXPORTER", "prometheus", "must be otlp or none, is `prometheus`"),
        ("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "delta", "must be cumulative, is `delta`"),
        ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "grpc", "must be http/protobuf, is `grpc`"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "must be http/protobuf, is `grpc`"),
    ] {
        let output = Gateway::command(&file).envs([endpoint, (name, value)]).output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        let lines: Vec<_> = errors.lines().filter(|line| line.contains("OTEL_")).collect();
        assert_eq!((output.status.code(), &lines[..]), (Some(1), &[&*format!("{name}: {must}")][..]), "{errors}");
    }
}

#[test]
fn a_collector_that_is_away_is_logged_once_and_the_last_numbers_are_sent_at_the_end() {
    let upstream = Upstream::start();
    let port = free_port();
    let url = format!("http://127.0.0.1:{port}");
    let mut gateway = Gateway::before(&upstream)
        .variables(&[("OTEL_EXPORTER_OTLP_ENDPOINT", &*url), ("OTEL_TRACES_EXPORTER", "none"), SOON])
        .start();
    eventually("exports fail", || gateway.metric("tollgate_metric_exports_total", &["failed"]) >= 2.0);
    gateway.expect_logged("metrics not sent");
    let collector = Collector::on(TcpListener::bind(("127.0.0.1", port)).unwrap());
    eventually("they are sent again", || gateway.metric("tollgate_metric_exports_total", &["sent"]) >= 1.0);
    gateway.expect_logged("metrics are sent again");
    assert_eq!(gateway.errors().matches("metrics not sent").count(), 1, "{}", gateway.errors());
    // The last requests come after an export and are in the one at the end.
    let exports = collector.metric_exports();
    eventually("one more", || collector.metric_exports() > exports);
    for _ in 0..5 {
        assert_eq!(gateway.client().get("/", &[]).status, 200);
    }
    gateway.signal("TERM");
    gateway.wait();
    let series = collector.metrics().unwrap().series();
    let requests = series.iter().filter(|(name, _)| name.starts_with("tollgate_http_requests_total{"));
    assert_eq!(requests.map(|(_, value)| value).sum::<f64>(), 5.0);
}

#[test]
fn a_collector_that_does_not_answer_delays_neither_requests_nor_the_end() {
    let upstream = Upstream::start();
    let silent = Upstream::answering(|_, stream| {
        std::thread::sleep(std::time::Duration::from_secs(5));
        let _ = stream.flush();
    });
    let url = format!("http://{}", silent.address);
    let mut gateway = Gateway::before(&upstream)
        .variables(&[("OTEL_EXPORTER_OTLP_ENDPOINT", &*url), ("OTEL_TRACES_EXPORTER", "none"), SOON])
        .start();
    eventually("an export is under way", || !silent.seen().is_empty());
    assert_eq!(gateway.client().get("/", &[]).status, 200);
    assert!(scrape(&gateway).len() > 10);
    let begun = now();
    gateway.signal("TERM");
    gateway.wait();
    assert!(begun.elapsed().as_secs() < 4, "{:?}", begun.elapsed());
    gateway.expect_logged("the last metrics not sent");
}
