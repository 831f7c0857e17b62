//! The Helm chart: its output is valid, has a valid gateway.yaml, and is equal to deploy/kubernetes.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use config::{Config, Environment};
use serde::Deserialize;
use serde_yaml::Value;
use tempfile::TempDir;

use super::{at, read, root, text};
use crate::support::authority::Authority;
use crate::support::not_checked;

const CHART: &str = "deploy/helm/tollgate";
pub const EVERY_VALUE: &str = "tests/it/repository/deploy/every-value.yaml";
pub const EXAMPLE: &str = "deploy/helm/example.yaml";
/// The values for the manifests of deploy/kubernetes.
pub const REDIS: [&str; 2] = [EXAMPLE, "deploy/helm/redis.yaml"];
/// Labels and annotations that exist only with Helm.
const OF_HELM: [&str; 5] = [
    "app.kubernetes.io/instance",
    "app.kubernetes.io/version",
    "app.kubernetes.io/managed-by",
    "helm.sh/chart",
    "checksum/restart",
];

/// Returns the folder in which scripts/need-helm puts its downloads.
fn tools() -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_tollgate")).ancestors().nth(2).unwrap().join("tools")
}

/// A working Helm, and the chart that scripts/chart has packed with the schema of this program.
pub struct Helm {
    program: PathBuf,
    chart: PathBuf,
    folder: TempDir,
}

impl Helm {
    pub fn find() -> Option<Self> {
        let programs = [PathBuf::from("helm"), tools().join("helm")];
        let works = |program: &PathBuf| Command::new(program).arg("version").output().is_ok();
        let Some(program) = programs.into_iter().find(works) else {
            not_checked("helm is not installed: run scripts/need-helm");
            return None;
        };
        let folder = TempDir::new().unwrap();
        let mut script = Command::new(root().join("scripts/chart"));
        let output =
            script.arg(env!("CARGO_BIN_EXE_tollgate")).env("CARGO_TARGET_DIR", folder.path()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let chart = PathBuf::from(String::from_utf8(output.stdout).unwrap().trim());
        Some(Self { program, chart, folder })
    }

    /// Runs a command. Returns its output, or its error.
    pub fn run(&self, command: &[&str], values: &[&str], more: &[&str]) -> Result<String, String> {
        let mut helm = Command::new(&self.program);
        helm.args(command).arg(&self.chart).current_dir(root());
        // Whatever the settings of the user are.
        helm.env("HELM_CONFIG_HOME", self.folder.path()).env("HELM_CACHE_HOME", self.folder.path());
        helm.args(values.iter().flat_map(|file| ["-f", file])).args(more);
        let output = helm.output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
    }

    #[track_caller]
    pub fn render(&self, values: &[&str], more: &[&str]) -> Vec<Value> {
        self.render_as("tollgate", values, more)
    }

    /// Renders a release with another name.
    #[track_caller]
    pub fn render_as(&self, release: &str, values: &[&str], more: &[&str]) -> Vec<Value> {
        let text = self.run(&["template", release], values, more).unwrap_or_else(|error| panic!("{error}"));
        let documents = serde_yaml::Deserializer::from_str(&text).map(|document| Value::deserialize(document).unwrap());
        documents.filter(|value| !value.is_null()).collect()
    }
}

#[track_caller]
pub fn of_kind<'v>(objects: &'v [Value], kind: &str) -> &'v Value {
    objects.iter().find(|object| text(object, "kind") == kind).unwrap_or_else(|| panic!("no {kind}"))
}

/// Removes Helm's labels and annotations, and parses gateway.yaml into a document like the others.
fn comparable(value: &mut Value) {
    match value {
        Value::Mapping(map) => {
            map.retain(|key, _| !key.as_str().is_some_and(|key| OF_HELM.contains(&key)));
            if let Some(file) = map.get_mut("gateway.yaml") {
                *file = serde_yaml::from_str(file.as_str().unwrap()).unwrap();
            }
            map.values_mut().for_each(comparable);
        }
        Value::Sequence(list) => list.iter_mut().for_each(comparable),
        _ => {}
    }
}

#[track_caller]
pub fn assert_same(name: &str, rendered: &Value, shown: &Value) {
    let [mut rendered, mut shown] = [rendered.clone(), shown.clone()];
    comparable(&mut rendered);
    comparable(&mut shown);
    let [rendered, shown] = [&rendered, &shown].map(|value| serde_yaml::to_string(value).unwrap());
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<BTreeSet<_>>();
    let [of_chart, of_file] = [lines(&rendered), lines(&shown)];
    let (more, less) = (of_chart.difference(&of_file), of_file.difference(&of_chart));
    assert!(
        serde_yaml::from_str::<Value>(&rendered).unwrap() == serde_yaml::from_str::<Value>(&shown).unwrap(),
        "{name}: the chart has {:?}, the file {:?}",
        more.collect::<Vec<_>>(),
        less.collect::<Vec<_>>()
    );
}

/// Returns the gateway.yaml of a ConfigMap as a pod reads it, with the variables and files of the Deployment.
#[track_caller]
pub fn config(objects: &[Value]) -> Config {
    let data = at(of_kind(objects, "ConfigMap"), "data");
    let pod = at(of_kind(objects, "Deployment"), "spec template spec");
    let list = |path| at(pod, path).as_sequence().into_iter().flatten();
    let variables: BTreeSet<_> = list("containers 0 env").map(|variable| text(variable, "name")).collect();
    // Of one Secret, or of several.
    let (one, several) = (list("volumes 1 secret items"), list("volumes 1 projected sources"));
    let items = one.chain(several.map(|source| at(source, "secret items 0")));
    let files: BTreeSet<_> = items.map(|item| format!("/etc/tollgate-secrets/{}", text(item, "path"))).collect();
    let secret = "0123456789abcdef0123456789abcdef";
    let issued = Authority::new("ca").issue(&["edge.example.com"]);
    let content = |path: &str| match path.rsplit('/').next() {
        Some("tls.crt") => issued.certificate.clone(),
        Some("tls.key") => issued.key.clone(),
        _ => secret.to_owned(),
    };
    let variable = |name: &str| variables.contains(name).then(|| secret.to_owned());
    let read = |path: &Path| {
        let path = path.to_str().unwrap();
        let beside = data[path].as_str().map(str::to_owned);
        let text = beside.or_else(|| files.contains(path).then(|| content(path)));
        text.map(String::into_bytes).ok_or_else(|| std::io::ErrorKind::NotFound.into())
    };
    let environment = Environment { variable: &variable, folder: Path::new("/etc/tollgate"), read: &read };
    Config::parse("gateway.yaml", text(data, "gateway.yaml").as_bytes(), environment)
        .unwrap_or_else(|problems| panic!("{problems}"))
}

/// Collects the paths of all values. In a map with free keys, the path ends at the map.
fn paths(values: &Value, schema: &serde_json::Value, prefix: &str, found: &mut BTreeSet<String>) {
    let properties = schema["properties"].as_object();
    for (key, value) in values.as_mapping().into_iter().flatten() {
        let key = key.as_str().unwrap();
        let path = format!("{prefix}{key}");
        match properties.and_then(|properties| properties.get(key)) {
            Some(inner) if !inner["properties"].is_null() => paths(value, inner, &format!("{path}."), found),
            _ => {
                found.insert(path);
            }
        }
    }
}

/// Collects the paths of a schema, in the form of `paths`.
fn named(schema: &serde_json::Value, prefix: &str, found: &mut BTreeSet<String>) {
    for (key, inner) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{prefix}{key}");
        if inner["properties"].is_null() {
            found.insert(path);
        } else {
            named(inner, &format!("{path}."), found);
        }
    }
}

#[test]
fn every_value_has_a_default_a_schema_and_another_value_in_the_tests() {
    let schema: serde_json::Value = serde_json::from_str(&read(&format!("{CHART}/values.schema.json"))).unwrap();
    let [defaults, every]: [Value; 2] =
        [&*format!("{CHART}/values.yaml"), EVERY_VALUE].map(|file| serde_yaml::from_str(&read(file)).unwrap());
    let mut known = BTreeSet::new();
    named(&schema, "", &mut known);
    // Helm's own.
    known.remove("global");
    for values in [&defaults, &every] {
        let mut found = BTreeSet::new();
        paths(values, &schema, "", &mut found);
        assert_eq!(found, known);
    }
    for path in &known {
        let [default, other] = [&defaults, &every].map(|values| at(values, &path.replace('.', " ")));
        let always = ["podDisruptionBudget.enabled", "topologySpread.enabled", "networkPolicy.enabled"];
        let elsewhere = path.starts_with("bucketFile.") || path.starts_with("storeInit.");
        assert!(default != other || always.contains(&&**path) || elsewhere, "{EVERY_VALUE} leaves {path} as it is");
    }
}

#[test]
fn the_chart_has_the_version_of_the_program_and_the_files_of_deploy() {
    let chart: Value = serde_yaml::from_str(&read(&format!("{CHART}/Chart.yaml"))).unwrap();
    for key in ["version", "appVersion"] {
        assert_eq!(text(&chart, key), env!("CARGO_PKG_VERSION"), "{key}");
    }
    for (own, of_deploy) in
        [("alerts.yaml", "deploy/prometheus/alerts.yaml"), ("dashboard.json", "deploy/grafana/dashboard.json")]
    {
        let linked = root().join(CHART).join("files").join(own).canonicalize().unwrap();
        assert_eq!(linked, root().join(of_deploy).canonicalize().unwrap());
    }
}

#[test]
fn the_manifests_are_what_the_chart_renders() {
    let Some(helm) = Helm::find() else { return };
    let objects = helm.render(&REDIS, &[]);
    for object in &objects {
        let name = format!("deploy/kubernetes/{}.yaml", text(object, "kind").to_lowercase());
        assert_same(&name, object, &serde_yaml::from_str(&read(&name)).unwrap());
    }
    assert_eq!(objects.len(), 5);
    config(&objects);

    for store in ["sentinel", "cluster", "postgres"] {
        let folder = format!("deploy/kubernetes-{store}");
        let own = |name: &str| serde_yaml::from_str::<Value>(&read(&format!("{folder}/{name}.yaml"))).unwrap();
        let objects = helm.render(&[EXAMPLE, &format!("deploy/helm/{store}.yaml")], &[]);
        assert_same(&folder, of_kind(&objects, "ConfigMap"), &own("configmap"));
        if store == "postgres" {
            let mut job = of_kind(&objects, "Job").clone();
            let (name, hash) = text(&job, "metadata name").rsplit_once('-').unwrap();
            assert!(hash.len() == 8 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()), "{hash}");
            job["metadata"]["name"] = name.into();
            assert_same(&folder, &job, &own("job"));
        }
        // A patch, which leaves out the rest.
        if root().join(&folder).join("deployment.yaml").exists() {
            let [rendered, shown] = [of_kind(&objects, "Deployment"), &own("deployment")]
                .map(|object| at(object, "spec template spec volumes").as_sequence().unwrap().last().unwrap().clone());
            for key in ["secretName", "items"] {
                assert_eq!(rendered["secret"][key], shown["secret"][key], "{folder}");
            }
        }
        config(&objects);
    }
}

#[test]
fn with_every_value_set_the_objects_are_valid_and_agree() {
    let Some(helm) = Helm::find() else { return };
    let lint = helm.run(&["lint", "--strict"], &[EVERY_VALUE], &[]);
    assert!(lint.as_ref().is_ok_and(|text| text.contains("0 chart(s) failed")), "{lint:?}");
    let objects = helm.render(&[EVERY_VALUE], &[]);
    let kinds: Vec<_> = objects.iter().map(|object| text(object, "kind")).collect();
    for kind in ["HorizontalPodAutoscaler", "ServiceMonitor", "PrometheusRule", "PodDisruptionBudget", "NetworkPolicy"]
    {
        assert!(kinds.contains(&kind), "{kinds:?}");
    }
    let dashboard = objects.iter().find(|object| text(object, "metadata name") == "edge-dashboard");
    let dashboard = text(dashboard.unwrap(), "data tollgate.json");
    assert!(dashboard == read("deploy/grafana/dashboard.json"));

    let config =
        config(&objects.iter().filter(|object| text(object, "metadata name") == "edge").cloned().collect::<Vec<_>>());
    let deployment = of_kind(&objects, "Deployment");
    assert!(deployment["spec"]["replicas"].is_null(), "the autoscaler decides");
    let pod = at(deployment, "spec template spec");
    let grace = at(pod, "terminationGracePeriodSeconds").as_f64().unwrap();
    assert!(grace > config.drain.delay.plus(config.drain.timeout).seconds());
    assert_eq!(super::redis_of(&config).gateways, 3, "the least number of replicas");
    let ports = at(pod, "containers 0 ports").as_sequence().unwrap();
    let ports: Vec<_> = ports.iter().map(|port| at(port, "containerPort").as_u64().unwrap()).collect();
    // One is a socket that a container beside the gateway shares.
    let inet = config.listeners.iter().filter_map(|listener| listener.address.inet());
    let mut listened: Vec<_> = inet.map(|address| u64::from(address.port())).collect();
    assert_eq!(listened.len() + 1, config.listeners.len());
    listened.push(u64::from(config.admin.unwrap().port()));
    assert_eq!(ports, listened);
    let ports = at(of_kind(&objects, "Service"), "spec ports").as_sequence().unwrap();
    let speaks: Vec<_> = ports.iter().map(|port| port["appProtocol"].as_str()).collect();
    assert_eq!(speaks, [Some("https"), None, Some("kubernetes.io/h2c"), None]);

    validate(&helm, &objects);
}

/// Validates the objects by the schemas of Kubernetes' API. Kinds of the Prometheus operator have no schema there.
pub fn validate(helm: &Helm, objects: &[Value]) {
    let file = helm.folder.path().join("objects.yaml");
    // JSON, because what reads it knows YAML 1.1.
    let texts = objects.iter().map(|object| format!("---\n{}\n", serde_json::to_string(object).unwrap()));
    let text: String = texts.collect();
    std::fs::write(&file, text).unwrap();
    let mut python = Command::new("python3");
    python.args(["-m", "kubernetes_validate", "--strict"]).arg(&file).env("PYTHONPATH", tools().join("python"));
    let output = python.output().unwrap();
    let reported = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    if reported.contains("No module named kubernetes_validate") {
        not_checked("kubernetes-validate is not installed: run scripts/need-helm");
        return;
    }
    let of_operator = ["ServiceMonitor", "PrometheusRule"];
    let checked = objects.iter().filter(|object| !of_operator.contains(&super::text(object, "kind"))).count();
    assert!(output.status.success(), "{reported}");
    assert_eq!(reported.matches(" passed for resource ").count(), checked, "{reported}");
}

#[test]
fn wrong_values_are_named() {
    let Some(helm) = Helm::find() else { return };
    for (value, place) in [
        ("config.upstrem=x", "at '/config': additional properties 'upstrem' not allowed"),
        ("config.threads=x", "at '/config/threads'"),
        ("config.drain.delay=1s", "at '/config': additional properties 'drain' not allowed"),
        ("config.listen=127.0.0.1:0", "config.listen: must end with a port other than 0"),
        ("config.admin=null", "config.admin: must end with a port other than 0"),
        ("drain.delay=3", "at '/drain/delay': minimum: got 3, want 4"),
        ("replicas=3", "additional properties 'replicas' not allowed"),
        ("bucketFile.enabled=true", "bucketFile.enabled: must be false where the store is shared"),
        ("prometheusRule.match.job=a$b", "at '/prometheusRule/match/job'"),
        ("storeInit.enabled=true", "storeInit.enabled: needs config.store.postgres"),
    ] {
        let error = helm.run(&["template", "tollgate"], &REDIS, &["--set", value]).unwrap_err();
        assert!(error.contains(place), "{value}: {error}");
    }
    let error = helm.run(&["template", "tollgate"], &[], &[]).unwrap_err();
    assert!(error.contains("missing property 'upstream'"), "{error}");
}

#[test]
fn the_values_for_tls_have_a_listener_and_its_certificate() {
    let Some(helm) = Helm::find() else { return };
    let objects = helm.render(&["deploy/helm/tls.yaml", REDIS[1]], &[]);
    assert!(config(&objects).listeners.iter().all(|listener| listener.tls.is_some()));
    let port = at(of_kind(&objects, "Service"), "spec ports 0");
    assert_eq!((port["port"].as_u64(), port["appProtocol"].as_str()), (Some(443), Some("https")));
    validate(&helm, &objects);
}

#[test]
fn the_job_for_the_tables_is_another_one_when_what_it_does_changes() {
    let Some(helm) = Helm::find() else { return };
    let postgres = [EXAMPLE, "deploy/helm/postgres.yaml"];
    let name = |more: &[&str]| text(of_kind(&helm.render(&postgres, more), "Job"), "metadata name").to_owned();
    let before = name(&[]);
    assert_eq!(name(&["--set", "config.threads=3"]), before);
    for value in ["image.tag=next", "config.store.postgres.table=other", "storeInit.user=root"] {
        assert_ne!(name(&["--set", value]), before, "{value}");
    }
    let error = helm.run(&["template", "tollgate"], &postgres, &["--set", "storeInit.password.secret="]);
    assert!(error.as_ref().is_err_and(|error| error.contains("storeInit.password.secret: must name")), "{error:?}");
    validate(&helm, &helm.render(&postgres, &[]));
}

#[test]
fn only_keys_that_need_a_restart_change_the_pods() {
    let Some(helm) = Helm::find() else { return };
    let template = |more: &[&str]| at(of_kind(&helm.render(&REDIS, more), "Deployment"), "spec template").clone();
    let before = template(&[]);
    assert_eq!(template(&["--set", "config.rules[0].algorithm_config.burst=7"]), before);
    for value in ["config.threads=3", "config.store.redis.prefix=other", "replicaCount=3"] {
        assert_ne!(template(&["--set", value]), before, "{value}");
    }
}
