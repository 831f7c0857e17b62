//! The manifests for a Redis with sentinels: they differ from deploy/kubernetes only in the address of Redis.

use super::{around_store, assert_patches, at, manifest, parse, redis_of, text, texts};

const FOLDER: &str = "kubernetes-sentinel";
const BASE: &str = "kubernetes";

/// Returns the secrets of a deployment, as they are mounted.
fn secrets(folder: &str) -> Vec<String> {
    let deployment = manifest(folder, "deployment");
    let volumes = at(&deployment, "spec template spec volumes").as_sequence().unwrap();
    let volume = volumes.iter().find(|volume| text(volume, "name") == "secrets").unwrap();
    let items = at(volume, "secret items").as_sequence().unwrap();
    items.iter().map(|item| format!("/etc/tollgate-secrets/{}", text(item, "path"))).collect()
}

#[test]
fn the_gateway_yaml_for_sentinels_differs_only_in_where_redis_is() {
    let [own, base] = [FOLDER, BASE].map(|folder| manifest(folder, "configmap"));
    assert_eq!(own["metadata"], base["metadata"]);
    let [own, base] = [&own, &base].map(|map| text(map, "data gateway.yaml"));
    assert_eq!(around_store(own, "redis"), around_store(base, "redis"));
    let [own, base] = [(own, FOLDER), (base, BASE)].map(|(file, folder)| {
        let files = secrets(folder);
        parse(file, &files.iter().map(|file| (&**file, "secret")).collect::<Vec<_>>())
    });
    assert_eq!(redis_of(&own).login, redis_of(&base).login);
    let place = own.store.endpoint().unwrap().to_string();
    assert!(place.contains("mymaster") && place.matches("redis-sentinel:26379").count() == 3, "{place}");
}

#[test]
fn every_patch_is_applied_to_a_manifest_of_the_base() {
    assert_patches(FOLDER, &["configmap", "deployment"]);
    assert_eq!(texts(&manifest(FOLDER, "kustomization"), "resources"), ["../kubernetes"]);
    // Every secret of the base is still mounted.
    let own = secrets(FOLDER);
    assert!(secrets(BASE).iter().all(|secret| own.contains(secret)), "{own:?}");
}
