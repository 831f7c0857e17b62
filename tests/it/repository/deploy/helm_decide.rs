//! The Helm chart with listeners that decide for other proxies: their peers and their addresses.

use serde_yaml::Value;

use super::helm::{EVERY_VALUE, Helm, REDIS, assert_same, config, of_kind, validate};
use super::{at, read, text};

const DECIDE: [&str; 2] = ["deploy/helm/decide.yaml", REDIS[1]];

/// Returns the Service of the listeners that decide.
fn decide_service(objects: &[Value]) -> &Value {
    let is_it =
        |object: &&Value| text(object, "kind") == "Service" && text(object, "metadata name").ends_with("-decide");
    objects.iter().find(is_it).unwrap()
}

/// Returns the name, number and protocol of each port of a Service.
fn ports(service: &Value) -> Vec<(&str, u64, Option<&str>)> {
    let ports = at(service, "spec ports").as_sequence().unwrap();
    let entry = |port| (text(port, "targetPort"), at(port, "port").as_u64().unwrap(), at(port, "appProtocol").as_str());
    ports.iter().map(entry).collect()
}

/// Returns the ports of each rule of the NetworkPolicy, with the first of the rule's peers.
fn reached(objects: &[Value]) -> Vec<(Vec<&str>, &Value)> {
    let rules = at(of_kind(objects, "NetworkPolicy"), "spec ingress").as_sequence().unwrap();
    let entry = |rule| {
        let ports = at(rule, "ports").as_sequence().unwrap();
        (ports.iter().map(|port| text(port, "port")).collect(), at(rule, "from 0"))
    };
    rules.iter().map(entry).collect()
}

#[test]
fn listeners_that_decide_have_a_service_and_peers_of_their_own() {
    let Some(helm) = Helm::find() else { return };
    let objects = helm.render(&[EVERY_VALUE], &[]);
    let service = decide_service(&objects);
    assert_eq!(text(service, "metadata name"), "edge-decide");
    assert_eq!(text(service, "spec clusterIP"), "None");
    // The one that speaks gRPC without TLS says so.
    assert_eq!(ports(service), [("teams", 9100, None), ("envoy", 9101, Some("kubernetes.io/h2c"))]);
    // What may be reached from outside the cluster has none of them.
    let proxying = of_kind(&objects, "Service");
    assert_eq!((text(proxying, "metadata name"), text(proxying, "spec type")), ("edge", "LoadBalancer"));
    assert_eq!(ports(proxying).len(), 4);
    assert_eq!(text(proxying, "spec externalTrafficPolicy"), "Cluster");
    let rules = reached(&objects);
    let [(deciding, edges), (proxying, clients), (admin, _)] = &rules[..] else { panic!("{rules:?}") };
    assert_eq!((&deciding[..], &admin[..]), (&["teams", "envoy"][..], &["admin"][..]));
    assert!(proxying.len() == 4 && !proxying.contains(&"teams"), "{proxying:?}");
    assert!(edges["namespaceSelector"].is_mapping() && clients["ipBlock"].is_mapping(), "{rules:?}");

    let outside = helm.render(&[EVERY_VALUE], &["--set", "decideService.type=NodePort"]);
    let service = decide_service(&outside);
    assert_eq!((text(service, "spec type"), text(service, "spec externalTrafficPolicy")), ("NodePort", "Local"));
    assert_eq!(ports(service)[0], ("teams", 80, None));
    validate(&helm, &outside);
}

#[test]
fn gateways_that_only_decide_need_no_upstream_and_have_one_service() {
    let Some(helm) = Helm::find() else { return };
    let objects = helm.render(&DECIDE, &[]);
    assert!(config(&objects).listeners.iter().all(|listener| listener.decide.is_some()));
    let services = objects.iter().filter(|object| text(object, "kind") == "Service");
    assert_eq!(services.map(|service| text(service, "metadata name")).collect::<Vec<_>>(), ["tollgate-decide"]);
    let shown = serde_yaml::from_str(&read("deploy/envoy-gateway/configmap.yaml")).unwrap();
    assert_same("deploy/envoy-gateway", of_kind(&objects, "ConfigMap"), &shown);
    validate(&helm, &objects);
    // Helm shows the notes of an installation, also of one that it only tries.
    let notes = helm.run(&["install", "--dry-run=client", "tollgate"], &DECIDE, &[]).unwrap();
    assert!(notes.contains("\n  tollgate-decide.default.svc:8080\n"), "{notes}");
    assert!(!notes.contains("send a request"), "{notes}");
}

#[test]
fn other_answers_to_those_that_ask_need_no_restart() {
    let Some(helm) = Helm::find() else { return };
    let template = |more: &[&str]| {
        let objects = helm.render(&DECIDE, &[&["--set"], more].concat());
        at(of_kind(&objects, "Deployment"), "spec template").clone()
    };
    let listener = "config.listeners[0]";
    let before = template(&["fullnameOverride="]);
    for same in ["clients[0]=10.9.0.0/16", "answer_within=5ms", "refuse_with=403", "original_request=x-original"] {
        assert_eq!(template(&[&format!("{listener}.{same}")]), before, "{same}");
    }
    for other in ["name=other", "decide[0]=ext_authz", "address=0.0.0.0:8081"] {
        assert_ne!(template(&[&format!("{listener}.{other}")]), before, "{other}");
    }
}
