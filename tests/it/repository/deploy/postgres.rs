//! The manifests and the compose file for PostgreSQL. The manifests differ from deploy/kubernetes only in the store and in a
//! job that runs like the gateways. The compose file names only what exists.

use serde_yaml::Value;

use super::{around_store, assert_patches, at, manifest, parse, read, root, text, texts};

const FOLDER: &str = "kubernetes-postgres";
const BASE: &str = "kubernetes";

/// Returns the files that a workload mounts from secrets, with the folder that `mounts` has for them.
fn secrets(workload: &Value, mounts: &Value) -> Vec<String> {
    let of_volume = |volume: &Value| -> Vec<String> {
        let name = text(volume, "name");
        let mount = at(mounts, "spec template spec containers 0 volumeMounts").as_sequence().unwrap();
        let folder =
            mount.iter().find(|mount| text(mount, "name") == name).map(|mount| text(mount, "mountPath")).unwrap();
        let items = at(volume, "secret items").as_sequence().into_iter().flatten();
        items.map(|item| format!("{folder}/{}", text(item, "path"))).collect()
    };
    at(workload, "spec template spec volumes").as_sequence().unwrap().iter().flat_map(of_volume).collect()
}

#[test]
fn the_gateway_yaml_for_postgresql_differs_only_in_where_the_buckets_are() {
    let [own, base] = [FOLDER, BASE].map(|folder| manifest(folder, "configmap"));
    assert_eq!(own["metadata"], base["metadata"]);
    let [own, base] = [&own, &base].map(|map| text(map, "data gateway.yaml"));
    let renamed = base.replace("password for Redis", "password for PostgreSQL").replace("`redis`", "`postgres`");
    assert_eq!(around_store(own, "postgres"), around_store(&renamed, "redis"));
    let files = secrets(&manifest(FOLDER, "deployment"), &manifest(BASE, "deployment"));
    let config = parse(own, &files.iter().map(|file| (&**file, "secret")).collect::<Vec<_>>());
    let stores::Settings::Postgres(settings) = &config.store else { panic!("{:?}", config.store) };
    assert_eq!(settings.hosts.len(), 2);
    assert!(settings.login.has_password());
    let replicas = at(&manifest(BASE, "deployment"), "spec replicas").as_u64().unwrap();
    assert_eq!(settings.gateways, replicas);
}

#[test]
fn every_patch_is_applied_to_a_manifest_of_the_base() {
    assert_patches(FOLDER, &["configmap", "deployment"]);
    assert_eq!(texts(&manifest(FOLDER, "kustomization"), "resources"), ["../kubernetes", "job.yaml"]);
}

#[test]
fn the_job_runs_as_the_gateways_do_and_has_the_files_that_it_names() {
    let (job, deployment) = (manifest(FOLDER, "job"), manifest(BASE, "deployment"));
    let pod = "spec template spec";
    for key in [
        "automountServiceAccountToken",
        "enableServiceLinks",
        "securityContext",
        "containers 0 image",
        "containers 0 securityContext",
    ] {
        assert_eq!(at(&job, &format!("{pod} {key}")), at(&deployment, &format!("{pod} {key}")), "{key}");
    }
    let arguments = texts(&job, &format!("{pod} containers 0 args"));
    let after = |name: &str| arguments[arguments.iter().position(|argument| *argument == name).unwrap() + 1];
    assert_eq!(arguments[..2], ["store", "init"]);
    let files = secrets(&job, &job);
    assert!(files.iter().any(|file| file == after("--password-file")), "{files:?}");
    // What the gateway.yaml that it reads names.
    assert!(secrets(&manifest(FOLDER, "deployment"), &deployment).iter().all(|file| files.contains(file)), "{files:?}");
    let gateway = texts(&deployment, &format!("{pod} containers 0 args"));
    assert!(gateway.contains(&after("-c")), "{arguments:?}");
    // It is no gateway: the service and the budget of disruptions do not count it.
    assert_ne!(at(&job, "spec template metadata labels"), at(&deployment, "spec template metadata labels"));
}

const COMPOSE: &str = "deploy/compose/postgres";

fn compose() -> Value {
    let mut value: Value = serde_yaml::from_str(&read(&format!("{COMPOSE}/docker-compose.yml"))).unwrap();
    // What is merged in may itself begin with a merge.
    value.apply_merge().unwrap();
    value.apply_merge().unwrap();
    value
}

#[test]
fn every_service_has_what_it_mounts_and_no_more_rights_than_it_needs() {
    let compose = compose();
    let declared = |kind: &str, name: &str| !compose[kind][name].is_null();
    for (name, service) in compose["services"].as_mapping().unwrap() {
        let name = name.as_str().unwrap();
        assert_eq!(service["read_only"].as_bool(), Some(true), "{name}");
        assert_eq!(texts(service, "cap_drop"), ["ALL"], "{name}");
        assert_eq!(texts(service, "security_opt"), ["no-new-privileges:true"], "{name}");
        assert!(texts(service, "ports").iter().all(|port| port.starts_with("127.0.0.1:")), "{name}");
        for volume in texts(service, "volumes") {
            match volume.strip_prefix("./") {
                Some(file) => {
                    let path = file.strip_suffix(":ro").unwrap_or_else(|| panic!("{name}: {volume} can be written"));
                    assert!(root().join(COMPOSE).join(path.split(':').next().unwrap()).exists(), "{name}: {volume}");
                }
                None => assert!(declared("volumes", volume.split(':').next().unwrap()), "{name}: {volume}"),
            }
        }
        for (kind, names) in [("networks", texts(service, "networks")), ("secrets", texts(service, "secrets"))] {
            assert!(names.iter().all(|used| declared(kind, used)), "{name}: {names:?}");
        }
        for other in service["depends_on"].as_mapping().into_iter().flatten().map(|(other, _)| other) {
            assert!(declared("services", other.as_str().unwrap()), "{name}: {other:?}");
        }
    }
    for (_, secret) in compose["secrets"].as_mapping().unwrap() {
        assert!(root().join(COMPOSE).join(text(secret, "file")).exists(), "{secret:?}");
    }
    assert_eq!(at(&compose, "networks store internal").as_bool(), Some(true));
}

#[test]
fn the_gateways_of_compose_find_their_database_and_its_user() {
    let compose = compose();
    let password = read(&format!("{COMPOSE}/gateway-password"));
    let config =
        parse(&read(&format!("{COMPOSE}/tollgate/gateway.yaml")), &[("/run/secrets/gateway-password", &password)]);
    let stores::Settings::Postgres(settings) = &config.store else { panic!("{:?}", config.store) };
    let host = &settings.hosts[0].host;
    assert!(!compose["services"][host.as_str()].is_null(), "{host}");
    let database = text(&compose, &format!("services {host} environment POSTGRES_DB"));
    assert_eq!(settings.database, database);
    let creates = format!("CREATE ROLE {} LOGIN PASSWORD", settings.user());
    assert!(read(&format!("{COMPOSE}/postgres/user.sh")).contains(&creates), "{creates}");
    let services = compose["services"].as_mapping().unwrap();
    let gateways = services.keys().filter(|name| name.as_str().unwrap().starts_with("gateway-")).count();
    assert_eq!(settings.gateways, gateways as u64);
    // Gateways begin when the tables are there, and the tables when the database is.
    for (name, condition) in [("gateway-1", "store-init"), ("gateway-2", "store-init"), ("store-init", host.as_str())] {
        assert!(!at(&compose, &format!("services {name} depends_on {condition}")).is_null(), "{name}");
    }
    let stops = text(&compose, "services gateway-1 stop_grace_period").trim_end_matches('s').parse::<f64>().unwrap();
    assert!(stops > config.drain.delay.plus(config.drain.timeout).seconds(), "{stops}");
}
