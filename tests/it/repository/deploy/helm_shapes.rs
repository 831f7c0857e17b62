//! The Helm chart in every shape: with each file of values in deploy/helm, and with the parts that can be switched on and off.
//! Kubernetes' API and Prometheus accept what it renders.

use std::collections::BTreeSet;

use super::helm::{Helm, of_kind, validate};
use super::watching::promtool;
use super::{at, root, text};

/// The files of values of each shape.
const SHAPES: [&[&str]; 7] = [
    &["example"],
    &["example", "redis"],
    &["example", "sentinel"],
    &["example", "cluster"],
    &["example", "postgres"],
    &["tls", "redis"],
    &["decide", "redis"],
];

/// The values that switch parts on or off.
const SWITCHES: [&str; 4] = [
    "check.enabled=true",
    "autoscaling.enabled=true",
    "serviceMonitor.enabled=true,prometheusRule.enabled=true,dashboard.enabled=true,scrapeAnnotations=false",
    "podDisruptionBudget.enabled=false,topologySpread.enabled=false,networkPolicy.enabled=false,check.enabled=false,\
     scrapeAnnotations=false",
];

#[test]
fn kubernetes_and_prometheus_accept_every_shape() {
    let folder = std::fs::read_dir(root().join("deploy/helm")).unwrap().map(|entry| entry.unwrap().path());
    let files = folder.filter(|path| path.is_file()).map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned());
    let used: BTreeSet<String> = SHAPES.iter().copied().flatten().map(|name| (*name).to_owned()).collect();
    assert_eq!(files.collect::<BTreeSet<_>>(), used, "a file of values has no shape here");
    let Some(helm) = Helm::find() else { return };
    let mut alerts = None;
    for shape in SHAPES {
        let files: Vec<String> = shape.iter().map(|name| format!("deploy/helm/{name}.yaml")).collect();
        let files: Vec<&str> = files.iter().map(String::as_str).collect();
        // Without a shared store, several pods must be wanted.
        let own = if shape == ["example"] { "limitsPerPod=true" } else { "limitsPerPod=false" };
        let mut objects = Vec::new();
        for switches in SWITCHES {
            let rendered = helm.render(&files, &["--set", own, "--set", switches]);
            let has = |kind: &str| rendered.iter().any(|object| text(object, "kind") == kind);
            let expected = [
                ("HorizontalPodAutoscaler", "autoscaling.enabled=true"),
                ("ServiceMonitor", "serviceMonitor.enabled=true"),
                ("PrometheusRule", "prometheusRule.enabled=true"),
            ];
            for (kind, switch) in expected {
                assert_eq!(has(kind), switches.contains(switch), "{shape:?} {switches}: {kind}");
            }
            for (kind, switch) in
                [("NetworkPolicy", "networkPolicy.enabled"), ("PodDisruptionBudget", "podDisruptionBudget.enabled")]
            {
                assert_eq!(has(kind), !switches.contains(switch), "{shape:?} {switches}: {kind}");
            }
            if has("PrometheusRule") {
                let rules = at(of_kind(&rendered, "PrometheusRule"), "spec").clone();
                // What the store is makes no difference to them.
                assert_eq!(*alerts.get_or_insert_with(|| rules.clone()), rules, "{shape:?}");
            }
            objects.extend(rendered);
        }
        validate(&helm, &objects);
    }
    let rules = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(rules.path(), serde_yaml::to_string(&alerts.unwrap()).unwrap()).unwrap();
    promtool(&["check", "rules", rules.path().to_str().unwrap()], "");
}
