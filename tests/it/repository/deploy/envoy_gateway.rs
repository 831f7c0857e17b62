//! The manifests for an Envoy Gateway: they differ from deploy/kubernetes only in that the gateways decide for other proxies.

use config::OriginalRequest;
use request::door::Door;

use super::{assert_patches, at, manifest, parse, text, texts};

const FOLDER: &str = "envoy-gateway";
const RATE_LIMIT: &str = "envoy-gateway-ratelimit";
const BASE: &str = "kubernetes";

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
    assert_patches(FOLDER, &["configmap"]);
}

#[test]
fn the_gateway_yaml_for_its_rate_limit_filter_differs_in_listener_and_rules() {
    let [own, base] = [RATE_LIMIT, BASE].map(|folder| manifest(folder, "configmap"));
    assert_eq!(own["metadata"], base["metadata"]);
    let [own, base] = [&own, &base].map(|map| text(map, "data gateway.yaml"));
    let config = parse(own, &[("/etc/tollgate-secrets/redis-password", "secret")]);
    let [listener] = &config.listeners[..] else { panic!("{:?}", config.listeners) };
    assert_eq!((listener.address.to_string(), listener.doors()), ("0.0.0.0:8080".to_owned(), &[Door::Rls][..]));
    let middle = |file: &str| {
        let rest = file.split_once("\nstore:").unwrap().1.to_owned();
        rest.split("\nrules:").next().and_then(|rest| rest.split("\npolicies:").next()).unwrap().to_owned()
    };
    assert_eq!(middle(own), middle(base));
    let (policy, pods) = (manifest(RATE_LIMIT, "envoypatchpolicy"), manifest(RATE_LIMIT, "pods"));
    let rule = &config.rules.source().policies[0];
    assert_eq!(rule.conditions.len(), 1);
    let domain = text(&policy, "spec jsonPatches 0 operation value typed_config domain");
    assert!(own.contains(&format!("match: {{descriptor:domain: {domain}}}")), "{own}");
    let address =
        at(&policy, "spec jsonPatches 2 operation value load_assignment endpoints 0 lb_endpoints 0 endpoint address");
    let host = format!("{}.default.svc.cluster.local", text(&pods, "metadata name"));
    assert_eq!(text(address, "socket_address address"), host);
    assert_eq!(at(address, "socket_address port_value"), at(&pods, "spec ports 0 port"));
    assert_eq!(at(&pods, "spec selector"), at(&manifest(BASE, "service"), "spec selector"));
    let own = manifest(RATE_LIMIT, "kustomization");
    assert_eq!(texts(&own, "resources"), ["../kubernetes", "pods.yaml", "envoypatchpolicy.yaml"]);
    assert_patches(RATE_LIMIT, &["configmap"]);
}
