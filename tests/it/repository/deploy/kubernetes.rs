//! The Kubernetes manifests: they agree with each other, with the image, and with the gateway.yaml in them.

use std::collections::BTreeMap;
use std::path::Path;

use config::Config;
use serde::Deserialize;
use serde_yaml::Value;

use super::image::{instruction, words};
use super::{at, parse, read, redis_of, root, text, texts};
use crate::support::{Client, Gateway, Upstream};

const FOLDER: &str = "deploy/kubernetes";

/// Returns every manifest by its kind. There is one of each kind.
fn manifests() -> BTreeMap<String, Value> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(root().join(FOLDER)).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        for document in serde_yaml::Deserializer::from_str(&read(&format!("{FOLDER}/{name}"))) {
            let value = Value::deserialize(document).unwrap_or_else(|error| panic!("{name}: {error}"));
            text(&value, "apiVersion");
            let kind = text(&value, "kind").to_owned();
            if kind != "Kustomization" {
                assert_eq!(text(&value, "metadata name"), "tollgate", "{name}");
                assert_eq!(name, format!("{}.yaml", kind.to_lowercase()));
            }
            assert!(found.insert(kind, value).is_none(), "{name}: a second one of its kind");
        }
    }
    found
}

fn pod(manifests: &BTreeMap<String, Value>) -> &Value {
    at(&manifests["Deployment"], "spec template spec")
}

fn container(manifests: &BTreeMap<String, Value>) -> &Value {
    at(pod(manifests), "containers 0")
}

/// Returns the number of the port with this name.
fn port(manifests: &BTreeMap<String, Value>, name: &str) -> u64 {
    let ports = at(container(manifests), "ports").as_sequence().unwrap();
    let found = ports.iter().find(|port| text(port, "name") == name).unwrap_or_else(|| panic!("no port {name}"));
    at(found, "containerPort").as_u64().unwrap()
}

fn config(manifests: &BTreeMap<String, Value>) -> Config {
    let mounts = at(container(manifests), "volumeMounts").as_sequence().unwrap();
    let folder = text(mounts.iter().find(|mount| text(mount, "name") == "secrets").unwrap(), "mountPath");
    // Only what the secret brings is there.
    let items = at(pod(manifests), "volumes 1 secret items").as_sequence().unwrap();
    let files: Vec<_> = items.iter().map(|item| format!("{folder}/{}", text(item, "path"))).collect();
    let secrets: Vec<_> = files.iter().map(|file| (&**file, "secret")).collect();
    parse(text(&manifests["ConfigMap"], "data gateway.yaml"), &secrets)
}

#[test]
fn every_manifest_is_applied_and_selects_the_pods_of_the_deployment() {
    let manifests = manifests();
    let mut files: Vec<_> = manifests
        .keys()
        .filter(|kind| *kind != "Kustomization")
        .map(|kind| format!("{}.yaml", kind.to_lowercase()))
        .collect();
    let mut listed = texts(&manifests["Kustomization"], "resources");
    files.sort();
    listed.sort_unstable();
    assert_eq!(listed, files);
    let labels = at(&manifests["Deployment"], "spec template metadata labels");
    for (kind, path) in [
        ("Deployment", "spec selector matchLabels"),
        ("Service", "spec selector"),
        ("PodDisruptionBudget", "spec selector matchLabels"),
        ("NetworkPolicy", "spec podSelector matchLabels"),
    ] {
        assert_eq!(at(&manifests[kind], path), labels, "{kind}");
    }
    let moved = at(&manifests["PodDisruptionBudget"], "spec maxUnavailable").as_u64().unwrap();
    let replicas = at(&manifests["Deployment"], "spec replicas").as_u64().unwrap();
    assert!((1..replicas).contains(&moved), "{moved} of {replicas} pods may be moved at once");
}

#[test]
fn the_gateway_yaml_of_the_manifests_passes_check_and_agrees_with_them() {
    let manifests = manifests();
    let config = config(&manifests);
    let replicas = at(&manifests["Deployment"], "spec replicas").as_u64().unwrap();
    assert_eq!(redis_of(&config).gateways, replicas);
    assert_eq!(u64::from(config.listeners[0].address.inet().unwrap().port()), port(&manifests, "http"));
    let admin = config.admin.unwrap();
    assert_eq!(u64::from(admin.port()), port(&manifests, "admin"));
    for address in [config.listeners[0].address.inet().unwrap(), admin] {
        assert!(address.ip().is_unspecified(), "from outside of the pod {address} cannot be reached");
    }
    let scraped = text(&manifests["Deployment"], "spec template metadata annotations prometheus.io/port");
    assert_eq!(scraped, admin.port().to_string());
    // What is published, and what is not.
    assert_eq!(text(&manifests["Service"], "spec ports 0 targetPort"), "http");
    assert_eq!(at(&manifests["Service"], "spec ports").as_sequence().unwrap().len(), 1);
    assert_eq!(text(&manifests["NetworkPolicy"], "spec ingress 0 ports 0 port"), "http");
    assert_eq!(text(&manifests["NetworkPolicy"], "spec ingress 1 ports 0 port"), "admin");
    assert!(!at(&manifests["NetworkPolicy"], "spec ingress 1 from").is_null());
}

#[test]
fn the_grace_period_of_a_pod_is_longer_than_a_drain() {
    let manifests = manifests();
    let drain = config(&manifests).drain;
    let whole = drain.delay.plus(drain.timeout).seconds();
    let grace = at(pod(&manifests), "terminationGracePeriodSeconds").as_f64().unwrap();
    assert!(grace > whole, "it is killed after {grace} s, and drains for {whole}");
    let probe = at(container(&manifests), "readinessProbe");
    let number = |path| at(probe, path).as_f64().unwrap();
    assert!(number("failureThreshold") > 2.0, "a slow answer takes the pod out of rotation");
    let seen = number("periodSeconds") * number("failureThreshold");
    assert!(drain.delay.seconds() > seen, "it closes before the probe, after {seen} s, has seen it leave");
}

#[test]
fn a_gateway_answers_the_probes() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "");
    let manifests = manifests();
    for probe in ["readinessProbe", "livenessProbe"] {
        assert_eq!(text(container(&manifests), &format!("{probe} httpGet port")), "admin");
        let path = text(container(&manifests), &format!("{probe} httpGet path"));
        assert_eq!(Client::connect(gateway.admin).get(path, &[]).status, 200, "{path}");
    }
    let path = text(&manifests["Deployment"], "spec template metadata annotations prometheus.io/path");
    assert!(Client::connect(gateway.admin).get(path, &[]).body.contains("tollgate_build_info"));
}

#[test]
fn the_container_runs_the_image_as_it_is_made_with_no_more_rights_than_it_needs() {
    let manifests = manifests();
    let (pod, container) = (pod(&manifests), container(&manifests));
    let user = instruction("USER");
    let (user, group) = user.split_once(':').unwrap();
    for (path, number) in [("runAsUser", user), ("runAsGroup", group), ("fsGroup", group)] {
        assert_eq!(at(pod, &format!("securityContext {path}")).as_u64().unwrap().to_string(), number, "{path}");
    }
    assert_eq!(at(pod, "securityContext runAsNonRoot").as_bool(), Some(true));
    assert_eq!(text(pod, "securityContext seccompProfile type"), "RuntimeDefault");
    assert_eq!(at(container, "securityContext readOnlyRootFilesystem").as_bool(), Some(true));
    assert_eq!(at(container, "securityContext allowPrivilegeEscalation").as_bool(), Some(false));
    assert_eq!(texts(container, "securityContext capabilities drop"), ["ALL"]);

    let arguments = texts(container, "args");
    assert_eq!(arguments, words(&instruction("CMD")));
    let file = Path::new(arguments.last().unwrap());
    let mounts = at(container, "volumeMounts").as_sequence().unwrap();
    let mount = mounts.iter().find(|mount| Path::new(text(mount, "mountPath")) == file.parent().unwrap()).unwrap();
    assert_eq!(text(mount, "name"), text(pod, "volumes 0 name"));
    assert_eq!(text(pod, "volumes 0 configMap name"), text(&manifests["ConfigMap"], "metadata name"));
    assert!(!at(&manifests["ConfigMap"], "data")[file.file_name().unwrap().to_str().unwrap()].is_null());
    for mount in mounts {
        assert!(mount["subPath"].is_null(), "a change would never be seen in {mount:?}");
        assert_eq!(mount["readOnly"].as_bool(), Some(true), "{mount:?}");
    }
}

#[test]
fn the_version_that_is_deployed_is_the_one_that_is_built() {
    let image = text(container(&manifests()), "image").to_owned();
    assert_eq!(image, format!("tollgate:{}", env!("CARGO_PKG_VERSION")));
}
