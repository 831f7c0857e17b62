//! The alerts of the Helm chart: they are those of deploy/prometheus, and about the gateways of their release alone.

use std::collections::BTreeMap;

use regex::{Captures, NoExpand, Regex};
use serde_json::{Value as Json, json};
use serde_yaml::Value;
use tempfile::TempDir;

use super::helm::{EVERY_VALUE, Helm, REDIS, of_kind};
use super::watching::{ALERTS, promtool};
use super::{at, read, text};

type Labels = BTreeMap<String, String>;

/// How Prometheus finds the pods.
#[derive(Clone, Copy, PartialEq)]
enum Discovery {
    /// The ServiceMonitor, by the Prometheus operator.
    Operator,
    /// The annotations of the pods, by the configuration that Prometheus' documentation and chart have for them.
    Annotations,
}

/// A release of the chart, with what Prometheus knows of it.
struct Release {
    rules: Value,
    labels: Labels,
}

impl Release {
    #[track_caller]
    fn render(helm: &Helm, discovery: Discovery, name: &str, namespace: &str, more: &[&str]) -> Self {
        let mut set = vec!["--namespace", namespace, "--set", "prometheusRule.enabled=true"];
        if discovery == Discovery::Operator {
            set.extend(["--set", "serviceMonitor.enabled=true"]);
        }
        set.extend(more);
        let objects = helm.render_as(name, &REDIS, &set);
        let mut labels = match discovery {
            Discovery::Operator => labels_of_operator(&objects),
            Discovery::Annotations => labels_of_pod(&objects),
        };
        for (label, value) in [("namespace", namespace), ("pod", "pod-1"), ("instance", "10.0.0.1:9901")] {
            labels.insert(label.into(), value.into());
        }
        Self { rules: of_kind(&objects, "PrometheusRule")["spec"].clone(), labels }
    }

    fn series(&self, metric: &str, more: &[(&str, &str)]) -> String {
        let more = more.iter().map(|(label, value)| ((*label).to_owned(), (*value).to_owned()));
        let labels = self.labels.clone().into_iter().chain(more);
        let labels: Vec<_> = labels.map(|(label, value)| format!("{label}=\"{value}\"")).collect();
        format!("{metric}{{{}}}", labels.join(","))
    }

    /// Returns the labels by which an alert names this release.
    fn named(&self, names: &[&str]) -> Labels {
        names.iter().map(|name| ((*name).to_owned(), self.labels[*name].clone())).collect()
    }
}

/// Returns the labels that the operator gives the series: the job is the Service, unless `jobLabel` names a label of it.
fn labels_of_operator(objects: &[Value]) -> Labels {
    let monitor = of_kind(objects, "ServiceMonitor");
    let wanted = at(monitor, "spec selector matchLabels").as_mapping().unwrap();
    let has_all = |object: &&Value| {
        let labels = at(object, "metadata labels");
        text(object, "kind") == "Service" && wanted.iter().all(|(label, value)| labels[label] == *value)
    };
    let service = objects.iter().find(has_all).unwrap();
    let name = text(service, "metadata name");
    let label = at(monitor, "spec jobLabel").as_str();
    let job = label.and_then(|label| at(service, "metadata labels")[label].as_str()).unwrap_or(name);
    [("job", job), ("service", name), ("endpoint", "admin"), ("container", "tollgate")]
        .map(|(label, value)| (label.to_owned(), value.to_owned()))
        .into()
}

fn labels_of_pod(objects: &[Value]) -> Labels {
    let template = at(of_kind(objects, "Deployment"), "spec template metadata");
    assert_eq!(text(template, "annotations prometheus.io/scrape"), "true");
    let labels = template["labels"].as_mapping().unwrap();
    let label = |text: &str| text.replace(|c: char| !c.is_ascii_alphanumeric(), "_");
    let mut labels: Labels = labels
        .iter()
        .map(|(name, value)| (label(name.as_str().unwrap()), value.as_str().unwrap().to_owned()))
        .collect();
    labels.insert("job".into(), "kubernetes-pods".into());
    labels
}

/// Returns all rules of a rule file.
fn rules(file: &Value) -> impl Iterator<Item = &Value> {
    file["groups"].as_sequence().unwrap().iter().flat_map(|group| group["rules"].as_sequence().unwrap())
}

/// Tests the rules of three releases in one Prometheus: `one`, which is up, `two`, of which there is no series, and
/// another `one` in another namespace, which is down.
#[track_caller]
fn check(discovery: Discovery, names: &[&str]) {
    let Some(helm) = Helm::find() else { return };
    let excluded = "prometheusRule.exclude[0].alert=TollgateRuleRefusesAFifth,prometheusRule.exclude[0].policy=plan,\
                    prometheusRule.exclude[0].rule=anonymous";
    let one = Release::render(&helm, discovery, "one", "default", &["--set", excluded]);
    let two = Release::render(&helm, discovery, "two", "default", &[]);
    let down = Release::render(&helm, discovery, "one", "other", &[]);
    let mut series = vec![(one.series("up", &[]), "1x60"), (down.series("up", &[]), "0x60")];
    for (release, hash, open) in [(&one, "a", "900x60"), (&down, "b", "100x60")] {
        series.push((release.series("tollgate_config_info", &[("hash", hash)]), "1x60"));
        series.push((release.series("process_open_fds", &[]), open));
        series.push((release.series("process_max_fds", &[]), "1000x60"));
        for rule in ["free", "anonymous"] {
            let of_rule = [("policy", "plan"), ("rule", rule), ("mode", "enforce")];
            series.push((release.series("rate_limiter_requests_total", &of_rule), "0+300x60"));
            let refused = [&of_rule[..], &[("reason", "token_bucket_exceeded")]].concat();
            series.push((release.series("rate_limiter_rejected_total", &refused), "0+150x60"));
        }
    }
    let alert = |labels: Labels, severity: &str, more: &[(&str, &str)]| {
        let more = more.iter().copied().chain([("severity", severity)]);
        let more = more.map(|(label, value)| (label.to_owned(), value.to_owned()));
        json!({"exp_labels": labels.into_iter().chain(more).collect::<Labels>()})
    };
    let refuses = |release: &Release, rule: &str| {
        let labels = release.named(&[&["job"], names].concat());
        alert(labels, "warning", &[("policy", "plan"), ("rule", rule)])
    };
    let of_alert = |name: &str| match name {
        "TollgateDown" => {
            vec![alert(two.named(names), "critical", &[]), alert(down.labels.clone(), "critical", &[])]
        }
        "TollgateFewFilesLeft" => vec![alert(one.labels.clone(), "warning", &[])],
        "TollgateRuleRefusesAFifth" => {
            vec![refuses(&one, "free"), refuses(&down, "free"), refuses(&down, "anonymous")]
        }
        _ => Vec::new(),
    };
    let file: Value = serde_yaml::from_str(&read(ALERTS)).unwrap();
    let tests: Vec<Json> = rules(&file)
        .map(|rule| text(rule, "alert"))
        .map(|name| json!({"alertname": name, "eval_time": "40m", "exp_alerts": of_alert(name)}))
        .collect();
    let folder = TempDir::new().unwrap();
    let mut files = Vec::new();
    for (name, release) in [("one", &one), ("two", &two), ("down", &down)] {
        let mut spec = serde_json::to_value(&release.rules).unwrap();
        // What they say is tested where they come from.
        for group in spec["groups"].as_array_mut().unwrap() {
            for rule in group["rules"].as_array_mut().unwrap() {
                rule.as_object_mut().unwrap().remove("annotations");
            }
        }
        std::fs::write(folder.path().join(format!("{name}.yaml")), spec.to_string()).unwrap();
        files.push(format!("{name}.yaml"));
    }
    let series: Vec<_> = series.iter().map(|(series, values)| json!({"series": series, "values": values})).collect();
    let test = json!({
        "rule_files": files,
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m", "input_series": series, "alert_rule_test": tests}],
    });
    let test_file = folder.path().join("test.yaml");
    std::fs::write(&test_file, test.to_string()).unwrap();
    promtool(&["test", "rules", test_file.to_str().unwrap()], "");
}

#[test]
fn alerts_are_about_the_release_that_the_operator_scrapes() {
    check(Discovery::Operator, &["job", "namespace"]);
}

#[test]
fn alerts_are_about_the_release_that_is_scraped_by_its_annotations() {
    check(Discovery::Annotations, &["app_kubernetes_io_instance", "namespace"]);
}

#[test]
fn the_rules_are_those_of_deploy_with_the_labels_of_the_release_on_every_metric() {
    let Some(helm) = Helm::find() else { return };
    let objects = helm.render(&[EVERY_VALUE], &[]);
    let spec = &of_kind(&objects, "PrometheusRule")["spec"];
    let source: Value = serde_yaml::from_str(&read(ALERTS)).unwrap();
    let (excluded, alerts): (Vec<_>, Vec<_>) = rules(spec).partition(|rule| !rule["record"].is_null());
    assert_eq!(excluded.len(), 1, "{excluded:?}");
    let labels = |more: &Value| {
        let mut labels = serde_yaml::to_value(BTreeMap::from([("job", "gateways"), ("cluster", "north")])).unwrap();
        labels.as_mapping_mut().unwrap().extend(more.as_mapping().unwrap().clone());
        labels
    };
    let exclusion = BTreeMap::from([("alert", "TollgateUnmatchedTraffic"), ("policy", "ceiling")]);
    assert_eq!(excluded[0]["labels"], labels(&serde_yaml::to_value(exclusion).unwrap()));
    assert_eq!(alerts.len(), rules(&source).count());
    let matchers = r#"cluster="north",job="gateways""#;
    let metric = Regex::new(r"\b(?:up\b|rate_limiter_|tollgate[_:]|process_)[a-z_]*(\{[^}]*\})?").unwrap();
    let selected = Regex::new(&format!(r"\{{{matchers}(,|\}})")).unwrap();
    let spaces = Regex::new(r"\s+").unwrap();
    for (rendered, shown) in alerts.into_iter().zip(rules(&source)) {
        let [own, expected] = [rendered, shown].map(|rule| text(rule, "expr").trim());
        let mut metrics = metric.captures_iter(own);
        let of_release = |labels: &str| labels.starts_with(&format!("{{{matchers}"));
        assert!(metrics.all(|found| found.get(1).is_some_and(|labels| of_release(labels.as_str()))), "{own}");
        // Nothing else is different.
        let own = selected.replace_all(own, |found: &Captures<'_>| if &found[1] == "," { "{" } else { "" });
        let expected = expected.replace(r#"{job="tollgate"}"#, "");
        assert_eq!(spaces.replace_all(&own, NoExpand(" ")), spaces.replace_all(&expected, NoExpand(" ")));
        for key in ["alert", "for"] {
            assert_eq!(rendered[key], shown[key]);
        }
        assert_eq!(rendered["labels"], labels(&shown["labels"]));
        for key in ["summary", "description"] {
            assert_eq!(rendered["annotations"][key], shown["annotations"][key]);
        }
        let runbook = format!("https://git.example.com/tollgate/tree/main/{}", text(shown, "annotations runbook_url"));
        assert_eq!(text(rendered, "annotations runbook_url"), runbook);
    }
}

#[test]
fn an_exclusion_must_name_an_alert_about_limits_and_its_rule() {
    let Some(helm) = Helm::find() else { return };
    let rule = "prometheusRule";
    let error = |alert: &str| {
        let set = format!("{rule}.enabled=true,{rule}.exclude[0].alert={alert},{rule}.exclude[0].policy=plan");
        helm.run(&["template", "tollgate"], &REDIS, &["--set", &set]).unwrap_err()
    };
    let without_rule = error("TollgateManyBans");
    assert!(without_rule.contains("prometheusRule.exclude[0].rule: must name a rule"), "{without_rule}");
    for alert in ["TollgateDown", "TollgateNothing"] {
        let error = error(alert);
        let expected = "prometheusRule.exclude[0].alert: must be one of TollgateOpenLimits, TollgateRuleRefusesAFifth";
        assert!(error.contains(expected) && error.contains(&format!("is {alert}")), "{error}");
    }
}
