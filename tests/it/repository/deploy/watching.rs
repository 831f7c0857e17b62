//! The alerts, their runbook and the dashboard use only metrics that a running gateway has.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use regex::Regex;
use serde_json::{Value, json};

use super::{read, root};
use crate::support::{
    Certificates, Client, Gateway, Postgres, Redis, RedisCluster, Replicas, Upstream, eventually, mint, not_checked,
    print_measured,
};

pub const ALERTS: &str = "deploy/prometheus/alerts.yaml";
const TESTS: &str = "deploy/prometheus/alerts.test.yaml";
/// The labels that Prometheus or a histogram adds.
const ADDED: [&str; 3] = ["job", "instance", "le"];

struct Alert {
    name: String,
    expression: String,
    runbook: String,
    severity: String,
}

fn alerts() -> Vec<Alert> {
    let file: Value = serde_yaml::from_str(&read(ALERTS)).unwrap();
    let rules = file["groups"].as_array().unwrap().iter().flat_map(|group| group["rules"].as_array().unwrap());
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    rules
        .map(|rule| Alert {
            name: text(&rule["alert"]),
            expression: text(&rule["expr"]),
            runbook: text(&rule["annotations"]["runbook_url"]),
            severity: text(&rule["labels"]["severity"]),
        })
        .collect()
}

fn dashboard() -> Value {
    serde_json::from_str(&read("deploy/grafana/dashboard.json")).unwrap()
}

fn panels(dashboard: &Value) -> &Vec<Value> {
    dashboard["panels"].as_array().unwrap()
}

/// Returns the expressions of each panel, with the title of the panel.
fn shown(dashboard: &Value) -> Vec<(&str, &Value)> {
    panels(dashboard)
        .iter()
        .flat_map(|panel| {
            let title = panel["title"].as_str().unwrap();
            panel["targets"].as_array().into_iter().flatten().map(move |target| (title, target))
        })
        .collect()
}

/// The names of labels and their observed values, for each metric. The three series of a histogram count as three metrics.
type Series = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

/// Returns all series of gateways: with Redis and without it, with tokens, with rules of every mode and every
/// `on_store_failure`, with a cluster, and with PostgreSQL.
fn counted() -> Series {
    let mut series = counted_with_redis().0;
    let (mut cluster, postgres, upstream) = (RedisCluster::start(Replicas::None), Postgres::start(), Upstream::start());
    postgres.settings();
    let rules = "rules:\n  - {name: one, limit_keys: [], algorithm_config: {rate: 1/hour}}\n";
    for (store, metric) in [
        (cluster.store("local", ""), "rate_limiter_breaker_open{node="),
        (postgres.store("local"), "rate_limiter_store_rows{"),
    ] {
        let builder = Gateway::before(&upstream).with(&(store + rules));
        let gateway = builder.interval("store_clean", Duration::from_millis(100)).start();
        eventually(metric, || read_series(&gateway, &mut series).contains(metric));
        if metric.contains("node") {
            // A node's errors are counted from the first on.
            cluster.masters[0].kill();
            let of_node = |line: &str| line.starts_with("rate_limiter_store_errors_total{") && line.contains("node=");
            eventually("errors of a node", || read_series(&gateway, &mut series).lines().any(of_node));
        }
    }
    series
}

/// Adds the series of a gateway to `series`. Returns the page of metrics.
fn read_series(gateway: &Gateway, series: &mut Series) -> String {
    let text = Client::connect(gateway.admin).get("/metrics", &[("Connection", "close")]).body;
    let label = Regex::new(r#"([a-z_]+)="([^"]*)""#).unwrap();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let name: String = line.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        let labels = series.entry(name).or_default();
        for found in label.captures_iter(line) {
            labels.entry(found[1].to_owned()).or_default().insert(found[2].to_owned());
        }
    }
    text
}

fn counted_with_redis() -> (Series, String) {
    let key = mint::es256();
    let set = json!({"keys": [key.jwk_as("k")]}).to_string();
    let upstream = Upstream::answering(move |seen, stream| {
        if seen.line.contains("/fails") {
            let _ = stream.write_all(b"no response\r\n\r\n");
            return;
        }
        let body = if seen.line.contains("/keys") { &*set } else { "ok" };
        let _ = write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    });
    // Those of a single endpoint are not counted by endpoint.
    let second = Upstream::start();
    let mut redis = Redis::start();
    let home = format!("home: {{redis: {{url: \"redis://127.0.0.1:{}\"}}, region: eu, regions: [eu]}}", redis.port);
    let rules = format!(
        "{}
upstreams: {{default: {{endpoints: [\"http://{}\", \"http://{}\"]}}}}
routes: [{{name: default, upstream: default}}]
jwt: {{algorithms: [ES256], keys: {{jwks_url: \"http://{}/keys\"}}}}
policies:
  - name: plan
    rules:
      - {{name: open, limit_keys: [query:open], on_store_failure: allow, algorithm_config: {{rate: 1/hour}}}}
      - {{name: closed, limit_keys: [query:closed], on_store_failure: deny, algorithm_config: {{rate: 1/hour}}}}
      - {{name: tried, mode: shadow, limit_keys: [query:tried], algorithm_config: {{rate: 1/hour}}}}
      - {{name: rest, limit_keys: [query:rest], algorithm_config: {{rate: 1/hour}}}}
      - {{name: many, limit_keys: [query:many], algorithm_config: {{rate: 9/hour}}}}
      - {{name: banned, limit_keys: [query:banned], algorithm_config: {{rate: 1/hour}}, ban: {{for: [1h]}}}}
      - {{name: slots, limit_keys: [query:slots], algorithm: concurrency, algorithm_config: {{limit: 1}}}}
      - name: tokens
        limit_keys: [query:tokens]
        algorithm: fixed_window
        algorithm_config: {{limit: 1000, window: 1d, cost_source: llm_tokens, reserve: 10}}
",
        redis.store("local").replace("}}\n", &format!("}}, {home}}}\n")),
        upstream.address,
        second.address,
        upstream.address
    );
    let certificates = Certificates::shared();
    let tls = "tls: {certificates: [{cert_file: server.pem, key_file: server.key}]}";
    let gateway = Gateway::before_url("")
        .with(&format!("listeners: [{{address: 127.0.0.1:0}}, {{address: 127.0.0.1:0, {tls}}}]\n{rules}"))
        .files(&[("server.pem", &certificates.server.0), ("server.key", &certificates.server.1)])
        .start();
    let mut client = gateway.client();
    let targets = ["/", "/?open=1", "/?closed=1", "/?tried=1", "/?rest=1", "/?rest=1"];
    for target in targets {
        client.get(target, &[]);
    }
    client.write("POST /v1/chat/completions?tokens=1 HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}");
    assert_eq!(client.response("POST").unwrap().status, 200);
    gateway.expect("rate_limiter_settled_total", &["rule=\"tokens\""], 1.0);
    client.get("/?many=1", &[]);
    for key in redis.keys() {
        let mut connection = redis.connection();
        ::redis::cmd("DEL").arg(&key).exec(&mut connection).unwrap();
        ::redis::cmd("RPUSH").arg(&key).arg("not a state").exec(&mut connection).unwrap();
    }
    client.get("/?many=1", &[]);
    gateway.expect("rate_limiter_store_errors_total", &["kind=\"impossible_bucket\""], 1.0);
    eventually("an upstream fails", || gateway.client().send("POST", "/fails", &[], "").status == 502);
    redis.kill();
    gateway.expect("rate_limiter_store_up", &[], 0.0);
    for target in targets {
        client.get(target, &[]);
    }
    let mut series = Series::new();
    let text = read_series(&gateway, &mut series);
    (series, text)
}

/// Checks that every metric, label and label value of an expression exists. Returns a message for each that does not.
fn check(expression: &str, legend: &str, series: &Series) -> Vec<String> {
    let metric = Regex::new(r"\b((?:rate_limiter_|tollgate_|process_)[a-z_]+)\b(?:\{([^}]*)\})?").unwrap();
    let matcher = Regex::new(r#"([a-z_]+)\s*(=~|!~|!=|=)\s*"([^"]*)""#).unwrap();
    let grouping = Regex::new(r"\b(?:by|on|without|ignoring|group_left|group_right)\s*\(([^)]*)\)").unwrap();
    let (mut missing, mut known) = (Vec::new(), BTreeSet::from(ADDED.map(str::to_owned)));
    for found in metric.captures_iter(expression) {
        let name = &found[1];
        let Some(labels) = series.get(name) else {
            missing.push(format!("metric {name}"));
            continue;
        };
        known.extend(labels.keys().cloned());
        for selector in matcher.captures_iter(found.get(2).map_or("", |selector| selector.as_str())) {
            let (label, operator, value) = (&selector[1], &selector[2], &selector[3]);
            match labels.get(label) {
                None if ADDED.contains(&label) => {}
                None => missing.push(format!("label {label} of {name}")),
                // Without a value it is one that is not there.
                Some(values) if !operator.contains('~') && !value.is_empty() && !values.contains(value) => {
                    missing.push(format!("{label}={value} of {name}"));
                }
                Some(_) => {}
            }
        }
    }
    let shown = Regex::new(r"\{\{([a-z_]+)\}\}").unwrap();
    let grouped = grouping.captures_iter(expression).flat_map(|found| {
        found[1].split(',').map(|label| label.trim().to_owned()).filter(|label| !label.is_empty()).collect::<Vec<_>>()
    });
    let named = shown.captures_iter(legend).map(|found| found[1].to_owned());
    for label in grouped.chain(named) {
        if !known.contains(&label) {
            missing.push(format!("label {label}"));
        }
    }
    missing
}

#[test]
fn every_metric_of_the_dashboard_and_alerts_exists_in_a_running_gateway() {
    let series = counted();
    let dashboard = dashboard();
    for (title, target) in shown(&dashboard) {
        let (expression, legend) = (target["expr"].as_str().unwrap(), target["legendFormat"].as_str().unwrap());
        assert_eq!(check(expression, legend, &series), [""; 0], "{title}: {expression}");
    }
    for alert in alerts() {
        assert_eq!(check(&alert.expression, "", &series), [""; 0], "{}: {}", alert.name, alert.expression);
    }
    // And what is not there is found.
    for wrong in [
        "tollgate_nothing_total",
        "rate(rate_limiter_rejected_total{role=\"x\"}[5m])",
        "rate_limiter_rejected_total{mode=\"x\"}",
        "sum by (colour) (rate_limiter_store_up)",
    ] {
        assert_eq!(check(wrong, "", &series).len(), 1, "{wrong}");
    }
}

#[test]
fn panels_have_numbers_of_their_own_and_do_not_overlap() {
    let dashboard = dashboard();
    let mut ids = BTreeSet::new();
    let mut taken = BTreeMap::new();
    for panel in panels(&dashboard) {
        let title = panel["title"].as_str().unwrap();
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{title} has the id of another panel");
        let grid = |key: &str| panel["gridPos"][key].as_u64().unwrap();
        assert!(grid("x") + grid("w") <= 24, "{title} is wider than the grid");
        for x in grid("x")..grid("x") + grid("w") {
            for y in grid("y")..grid("y") + grid("h") {
                if let Some(other) = taken.insert((x, y), title) {
                    panic!("{title} lies upon {other}");
                }
            }
        }
        if panel["type"] != "row" {
            assert!(!panel["targets"].as_array().unwrap().is_empty(), "{title} shows nothing");
        }
    }
    let names = dashboard["templating"]["list"].as_array().unwrap();
    let names: BTreeSet<_> = names.iter().map(|variable| variable["name"].as_str().unwrap()).collect();
    let variable = Regex::new(r"\$\{?([a-z]+)\}?").unwrap();
    for found in variable.captures_iter(&dashboard.to_string()) {
        assert!(names.contains(&found[1]), "there is no variable {}", &found[1]);
    }
}

#[test]
fn every_alert_has_a_test_and_an_entry_in_the_runbook() {
    let alerts = alerts();
    let tests = read(TESTS);
    let mut pages = BTreeSet::new();
    for alert in &alerts {
        let (page, anchor) = alert.runbook.split_once('#').unwrap();
        let page = read(page);
        assert_eq!(anchor, alert.name.to_lowercase());
        let heading = format!("### {}\n", alert.name);
        assert!(page.contains(&heading), "the runbook lacks {}", alert.name);
        assert!(matches!(&*alert.severity, "critical" | "warning"), "{}: {}", alert.name, alert.severity);
        let fires = tests.split("- alertname: ").skip(1).any(|rest| {
            rest.lines().next() == Some(&alert.name) && rest.split("alertname:").next().unwrap().contains("exp_labels")
        });
        assert!(fires, "no test shows that {} fires", alert.name);
        pages.insert(page);
    }
    let names: BTreeSet<_> = alerts.iter().map(|alert| &*alert.name).collect();
    assert_eq!(names.len(), alerts.len(), "each has a name of its own");
    for page in &pages {
        for heading in page.lines().filter_map(|line| line.strip_prefix("### Tollgate")) {
            assert!(names.contains(&*format!("Tollgate{heading}")), "there is no alert Tollgate{heading}");
        }
    }
}

/// Runs promtool, if it is installed.
#[track_caller]
pub fn promtool(arguments: &[&str], input: &str) {
    let mut command = Command::new("promtool");
    command.args(arguments).current_dir(root()).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let Ok(mut child) = command.spawn() else {
        not_checked("promtool is not installed: run scripts/need promtool");
        return;
    };
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "promtool {arguments:?}: {said}");
    print_measured(&format!("promtool {arguments:?}: {}", said.trim()));
}

#[test]
fn promtool_accepts_the_alerts_and_their_tests_pass() {
    promtool(&["check", "rules", ALERTS], "");
    promtool(&["test", "rules", TESTS], "");
}

#[test]
fn promtool_accepts_the_metrics() {
    promtool(&["check", "metrics"], &counted_with_redis().1);
}

#[test]
fn promtool_can_read_every_expression_of_the_dashboard() {
    let dashboard = dashboard();
    let rules: Vec<_> = (0..)
        .zip(shown(&dashboard))
        .map(|(number, (_, target))| {
            let expression = target["expr"].as_str().unwrap().replace("$__rate_interval", "1m");
            json!({"record": format!("shown:{number}"), "expr": expression})
        })
        .collect();
    assert!(rules.len() >= 30, "{}", rules.len());
    let directory = tempfile::TempDir::new().unwrap();
    let file = directory.path().join("shown.yaml");
    std::fs::write(&file, json!({"groups": [{"name": "shown", "rules": rules}]}).to_string()).unwrap();
    promtool(&["check", "rules", Path::new(&file).to_str().unwrap()], "");
}
