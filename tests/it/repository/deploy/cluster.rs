//! The manifests and the compose file for a Redis Cluster: they differ from the others only in the address of Redis.

use serde_yaml::Value;

use super::{around_store, assert_patches, at, manifest, parse, read, redis_of, text, texts};

#[test]
fn the_manifests_differ_only_in_where_redis_is() {
    assert_patches("kubernetes-cluster", &["configmap"]);
    assert_eq!(texts(&manifest("kubernetes-cluster", "kustomization"), "resources"), ["../kubernetes"]);
    let [own, base] = ["kubernetes-cluster", "kubernetes"].map(|folder| manifest(folder, "configmap"));
    assert_eq!(own["metadata"], base["metadata"]);
    let [own, base] = [&own, &base].map(|map| text(map, "data gateway.yaml"));
    assert_eq!(around_store(own, "redis"), around_store(base, "redis"));
    let [own, base] = [own, base].map(|file| parse(file, &[("/etc/tollgate-secrets/redis-password", "secret")]));
    assert_eq!(redis_of(&own).login, redis_of(&base).login);
    let place = own.store.endpoint().unwrap().to_string();
    assert!(place.contains("cluster at") && place.matches("redis-cluster:6379").count() == 3, "{place}");
}

#[test]
fn the_compose_file_has_six_nodes_and_a_user_that_the_gateways_need() {
    let file: Value = serde_yaml::from_str(&read("deploy/compose/cluster/docker-compose.yml")).unwrap();
    let services = at(&file, "services").as_mapping().unwrap();
    let names: Vec<&str> = services.keys().map(|name| name.as_str().unwrap()).collect();
    let nodes: Vec<&str> = names.iter().filter(|name| name.starts_with("node-")).copied().collect();
    assert_eq!(nodes.len(), 6);
    // The one that makes the cluster waits for them all.
    let waits = at(&services["create"], "depends_on").as_mapping().unwrap();
    assert!(nodes.iter().all(|node| waits.contains_key(*node)), "{waits:?}");
    let gateway = read("deploy/compose/cluster/tollgate/gateway.yaml");
    let parsed = parse(&gateway, &[("/run/secrets/redis-password", "secret")]);
    let place = parsed.store.endpoint().unwrap().to_string();
    assert!(nodes.iter().take(3).all(|node| place.contains(&format!("{node}:6379"))), "{place}");
    let users = read("deploy/compose/cluster/redis/users.acl");
    let documented = read("docs/stores.md");
    let permissions = documented.lines().find(|line| line.ends_with(" +cluster|slots +asking")).unwrap();
    let permissions = permissions.split_once("~tollgate:* ").unwrap().1;
    assert!(users.contains(permissions), "{users}");
    // The same password as that of docker-compose.yml.
    let hash = |users: &str| users.split(' ').find(|word| word.starts_with('#')).unwrap().to_owned();
    assert_eq!(hash(&users), hash(&read("deploy/compose/redis/users.acl")));
}
