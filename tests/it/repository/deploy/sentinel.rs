//! The manifests for a Redis with sentinels: they change nothing of those in deploy/kubernetes but where Redis is.

use serde_yaml::Value;

use super::{at, parse, read, redis_of, text, texts};

const FOLDER: &str = "deploy/kubernetes-sentinel";
const BASE: &str = "deploy/kubernetes";

fn manifest(folder: &str, name: &str) -> Value {
    serde_yaml::from_str(&read(&format!("{folder}/{name}.yaml"))).unwrap()
}

/// Those of a deployment, as they are mounted.
fn secrets(folder: &str) -> Vec<String> {
    let deployment = manifest(folder, "deployment");
    let volumes = at(&deployment, "spec template spec volumes").as_sequence().unwrap();
    let volume = volumes.iter().find(|volume| text(volume, "name") == "secrets").unwrap();
    let items = at(volume, "secret items").as_sequence().unwrap();
    items.iter().map(|item| format!("/etc/tollgate-secrets/{}", text(item, "path"))).collect()
}

/// The lines of a gateway.yaml before and after those that say where Redis is.
fn around_redis(file: &str) -> (&str, &str) {
    let (before, rest) = file.split_once("  redis:\n").unwrap();
    (before, rest.split_once("  # As in deployment.yaml.\n").unwrap().1)
}

#[test]
fn the_gateway_yaml_for_sentinels_differs_only_in_where_redis_is() {
    let [own, base] = [FOLDER, BASE].map(|folder| manifest(folder, "configmap"));
    assert_eq!(own["metadata"], base["metadata"]);
    let [own, base] = [&own, &base].map(|map| text(map, "data gateway.yaml"));
    assert_eq!(around_redis(own), around_redis(base));
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
    let kustomization = manifest(FOLDER, "kustomization");
    assert_eq!(texts(&kustomization, "resources"), ["../kubernetes"]);
    let patches = at(&kustomization, "patches").as_sequence().unwrap();
    assert_eq!(patches.len(), 2);
    for patch in patches {
        let name = text(patch, "path").trim_end_matches(".yaml");
        let (own, base) = (manifest(FOLDER, name), manifest(BASE, name));
        for key in ["apiVersion", "kind"] {
            assert_eq!(own[key], base[key], "{name}");
        }
        assert_eq!(text(&own, "metadata name"), text(&base, "metadata name"));
    }
    // Every secret of the base is still mounted.
    let own = secrets(FOLDER);
    assert!(secrets(BASE).iter().all(|secret| own.contains(secret)), "{own:?}");
}
