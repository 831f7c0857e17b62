//! The manifests for an Envoy Gateway: they change nothing of those in deploy/kubernetes but that gateways decide.

use serde_yaml::Value;
use tollgate::config::OriginalRequest;

use super::{at, parse, read, text, texts};

const FOLDER: &str = "deploy/envoy-gateway";
const BASE: &str = "deploy/kubernetes";

fn manifest(folder: &str, name: &str) -> Value {
    serde_yaml::from_str(&read(&format!("{folder}/{name}.yaml"))).unwrap()
}

#[test]
fn the_gateway_yaml_for_an_envoy_gateway_differs_only_in_its_listener() {
    let [own, base] = [FOLDER, BASE].map(|folder| manifest(folder, "configmap"));
    assert_eq!(own["metadata"], base["metadata"]);
    let [own, base] = [&own, &base].map(|map| text(map, "data gateway.yaml"));
    let config = parse(own, &[("/etc/tollgate-secrets/redis-password", "secret")]);
    let [listener] = &config.listeners[..] else { panic!("{:?}", config.listeners) };
    assert_eq!(listener.address.to_string(), "0.0.0.0:8080");
    let decide = listener.decide.as_ref().unwrap();
    assert!(decide.clients.is_some());
    // Envoy appends the path of the request to that of the policy.
    assert_eq!(decide.original_request, OriginalRequest::Path);
    // From where the store is, the files are the same.
    let [own, base] = [own, base].map(|file| file.split_once("\nstore:").unwrap().1);
    assert_eq!(own, base);
}

#[test]
fn the_policy_asks_the_service_at_the_path_of_decisions() {
    let policy = manifest(FOLDER, "securitypolicy");
    let (service, asked) = (manifest(BASE, "service"), at(&policy, "spec extAuth http"));
    assert_eq!(text(asked, "backendRefs 0 name"), text(&service, "metadata name"));
    assert_eq!(at(asked, "backendRefs 0 port"), at(&service, "spec ports 0 port"));
    assert_eq!(text(&service, "spec ports 0 targetPort"), "http");
    assert_eq!(text(asked, "path"), "/decide");
    // Without these a call is 400, or its scheme that of the connection to the gateway.
    let sent = texts(at(&policy, "spec extAuth"), "headersToExtAuth");
    assert!(sent.contains(&"x-forwarded-for") && sent.contains(&"x-forwarded-proto"), "{sent:?}");
    let own = manifest(FOLDER, "kustomization");
    assert_eq!(texts(&own, "resources"), ["../kubernetes", "securitypolicy.yaml"]);
    assert_eq!(text(&own, "patches 0 path"), "configmap.yaml");
}
