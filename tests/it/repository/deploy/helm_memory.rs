//! The Helm chart with buckets in memory: the number of gateways, and the volume of their file.

use serde_yaml::Value;

use super::helm::{EXAMPLE, Helm, REDIS, of_kind, validate};
use super::{at, text};

/// Values without a store.
const IN_MEMORY: [&str; 1] = [EXAMPLE];

#[test]
fn several_gateways_without_a_shared_store_must_be_allowed() {
    let Some(helm) = Helm::find() else { return };
    let postgres = [EXAMPLE, "deploy/helm/postgres.yaml"];
    let autoscaling = "autoscaling.enabled=true,autoscaling.minReplicas=1";
    let refused = |set: &str, begins: &str| {
        let error = helm.run(&["template", "tollgate"], &IN_MEMORY, &["--set", set]).unwrap_err();
        assert!(error.contains(begins) && error.contains("limitsPerPod: true allows it"), "{set}: {error}");
    };
    refused("podLabels.a=b", "replicaCount: must be 1 without config.store.redis or config.store.postgres: each of 2");
    refused("config.store.memory.max_buckets=9", "replicaCount: must be 1 without");
    refused(autoscaling, "autoscaling.maxReplicas: must be 1 without");
    let notes = |values: &[&str], set: &str| {
        helm.run(&["install", "--dry-run=client", "tollgate"], values, &["--set", set]).unwrap()
    };
    let warns = |notes: &str| notes.contains("pods grants every limit in full");
    for set in ["replicaCount=1", &format!("{autoscaling},autoscaling.maxReplicas=1")] {
        assert!(!warns(&notes(&IN_MEMORY, set)), "{set}");
    }
    assert!(notes(&IN_MEMORY, "limitsPerPod=true").contains("\nEach of up to 2 pods grants every limit in full"));
    let several = format!("limitsPerPod=true,{autoscaling},autoscaling.maxReplicas=7");
    assert!(notes(&IN_MEMORY, &several).contains("\nEach of up to 7 pods grants every limit in full"));
    for shared in [&REDIS, &postgres] {
        assert!(!warns(&notes(shared, autoscaling)), "{shared:?}");
    }
}

#[test]
fn buckets_in_memory_are_kept_in_a_volume_that_one_gateway_at_a_time_uses() {
    let Some(helm) = Helm::find() else { return };
    let file = |objects: &[Value]| {
        let text = text(of_kind(objects, "ConfigMap"), "data gateway.yaml");
        let config: Value = serde_yaml::from_str(text).unwrap();
        config["store"]["memory"]["file"].as_str().map(str::to_owned)
    };
    let volume = |objects: &[Value]| {
        let deployment = of_kind(objects, "Deployment");
        let pod = at(deployment, "spec template spec");
        let volume = at(pod, "volumes").as_sequence().unwrap().last().unwrap().clone();
        let mount = at(pod, "containers 0 volumeMounts").as_sequence().unwrap().last().unwrap();
        assert_eq!((&mount["name"], mount["readOnly"].is_null()), (&volume["name"], true), "{mount:?}");
        let strategy = deployment["spec"]["strategy"]["type"].as_str().map(str::to_owned);
        (volume, text(mount, "mountPath").to_owned(), strategy)
    };
    assert_eq!(file(&helm.render(&IN_MEMORY, &["--set", "replicaCount=1"])), None);
    let own = helm.render(&IN_MEMORY, &["--set", "bucketFile.enabled=true,limitsPerPod=true"]);
    assert_eq!(file(&own).as_deref(), Some("/var/lib/tollgate/buckets.tgb"));
    let (volume_of_pod, folder, strategy) = volume(&own);
    assert!(volume_of_pod["emptyDir"].is_mapping() && strategy.is_none(), "{volume_of_pod:?} {strategy:?}");
    assert_eq!(folder, "/var/lib/tollgate");
    let set = "bucketFile.enabled=true,bucketFile.claim=buckets,replicaCount=1,check.enabled=true";
    let memory = "config.store.memory.file=/var/lib/tollgate/own.tgb,config.store.memory.save_every=5s";
    let claimed = helm.render(&IN_MEMORY, &["--set", set, "--set", memory]);
    assert_eq!(file(&claimed).as_deref(), Some("/var/lib/tollgate/own.tgb"));
    let (volume, _, strategy) = volume(&claimed);
    assert_eq!(text(&volume, "persistentVolumeClaim claimName"), "buckets");
    assert_eq!(strategy.as_deref(), Some("Recreate"));
    // It has the secrets of the gateway, and so must find them.
    let arguments = at(of_kind(&claimed, "Deployment"), "spec template spec initContainers 0 args");
    assert_eq!(arguments[1].as_str(), Some("--require-secrets"), "{arguments:?}");
    // The check finds the folder that it wants to be there.
    let mounts = at(of_kind(&claimed, "Deployment"), "spec template spec initContainers 0 volumeMounts");
    assert!(mounts.as_sequence().unwrap().iter().any(|mount| text(mount, "name") == "buckets"), "{mounts:?}");
    validate(&helm, &claimed);
    let error =
        helm.run(&["template", "tollgate"], &IN_MEMORY, &["--set", "bucketFile.enabled=true,bucketFile.claim=a"]);
    assert!(error.as_ref().is_err_and(|error| error.contains("bucketFile.claim: one gateway alone")), "{error:?}");
}
