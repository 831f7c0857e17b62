//! docker-compose.yml and the files that it mounts: every path and name in them exists.

use std::collections::BTreeSet;
use std::path::Path;

use config::Config;
use serde_yaml::Value;
use sha2::{Digest, Sha256};

use super::image::{instruction, words};
use super::watching::promtool;
use super::{at, parse, read, redis_of, root, text, texts};

fn compose() -> Value {
    let mut value: Value = serde_yaml::from_str(&read("docker-compose.yml")).unwrap();
    // What is merged in may itself begin with a merge.
    value.apply_merge().unwrap();
    value.apply_merge().unwrap();
    value
}

fn services(compose: &Value) -> impl Iterator<Item = (&str, &Value)> {
    compose["services"].as_mapping().unwrap().iter().map(|(name, service)| (name.as_str().unwrap(), service))
}

fn is_ours(service: &Value) -> bool {
    text(service, "image").starts_with("tollgate:")
}

fn config() -> Config {
    parse(
        &read("deploy/compose/tollgate/gateway.yaml"),
        &[("/run/secrets/redis-password", &read("deploy/compose/redis-password"))],
    )
}

#[track_caller]
fn seconds(duration: &str) -> f64 {
    duration.strip_suffix('s').unwrap().parse().unwrap()
}

#[test]
fn compose_names_only_what_exists_and_is_used() {
    let compose = compose();
    let names = |key: &str| -> BTreeSet<String> {
        compose[key].as_mapping().unwrap().keys().map(|name| name.as_str().unwrap().to_owned()).collect()
    };
    let (mut volumes, mut networks, mut secrets) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for (name, service) in services(&compose) {
        for volume in texts(service, "volumes") {
            let (from, inside) = volume.split_once(':').unwrap();
            assert!(inside.starts_with('/'), "{name}: {volume}");
            if let Some(file) = from.strip_prefix("./") {
                assert!(root().join(file).exists(), "{name}: {from}");
                assert!(inside.ends_with(":ro"), "{name}: {volume} can be written");
            } else {
                volumes.insert(from.to_owned());
            }
        }
        networks.extend(texts(service, "networks").into_iter().map(str::to_owned));
        secrets.extend(texts(service, "secrets").into_iter().map(str::to_owned));
    }
    assert_eq!(volumes, names("volumes"));
    assert_eq!(networks, names("networks"));
    assert_eq!(secrets, names("secrets"));
    for secret in secrets {
        let file = text(&compose, &format!("secrets {secret} file"));
        assert!(root().join(file).exists(), "{file}");
    }
}

#[test]
fn every_service_has_no_more_rights_than_it_needs() {
    let compose = compose();
    for (name, service) in services(&compose) {
        assert_eq!(service["read_only"].as_bool(), Some(true), "{name}");
        assert_eq!(texts(service, "cap_drop"), ["ALL"], "{name}");
        assert_eq!(texts(service, "security_opt"), ["no-new-privileges:true"], "{name}");
        for port in texts(service, "ports") {
            assert!(port.starts_with("127.0.0.1:"), "{name} is published to everybody: {port}");
        }
        if let Some(user) = service["user"].as_str() {
            assert!(
                user.split(':').all(|number| number.parse::<u32>().is_ok_and(|number| number > 0)),
                "{name}: {user}"
            );
        }
        let image = text(service, "image");
        assert!(
            is_ours(service) || !image.ends_with(":latest") && image.rsplit('/').next().unwrap().contains(':'),
            "{image}"
        );
    }
}

#[test]
fn every_awaited_service_has_a_healthcheck() {
    let compose = compose();
    let image = words(&instruction("HEALTHCHECK"));
    for (name, service) in services(&compose) {
        for (other, dependency) in service["depends_on"].as_mapping().into_iter().flatten() {
            assert_eq!(text(dependency, "condition"), "service_healthy", "{name}");
            let waited_for = &compose["services"][other];
            let says = is_ours(waited_for) && image.contains(&"--ready".to_owned())
                || !texts(waited_for, "healthcheck test").is_empty();
            assert!(says, "{name} waits for {other:?}");
        }
    }
    // An echo has no gateway.yaml to find its address in.
    let upstream = &compose["services"]["upstream"];
    let checked = texts(upstream, "healthcheck test").last().unwrap().rsplit(':').next();
    assert_eq!(checked, texts(upstream, "command").last().unwrap().rsplit(':').next());
}

#[test]
fn the_paths_and_addresses_of_compose_match_its_gateways() {
    let (compose, config) = (compose(), config());
    let redis = redis_of(&config);
    let conf = read("deploy/compose/redis/redis.conf");
    let setting = |name: &str| conf.lines().find_map(|line| line.strip_prefix(&format!("{name} "))).unwrap();
    assert_eq!(redis.target.to_string(), format!("redis:{}", setting("port")));
    assert_eq!(config.upstreams[0].endpoints[0].host, "upstream");
    let listens = *texts(&compose, "services upstream command").last().unwrap();
    assert_eq!(listens, format!("0.0.0.0:{}", config.upstreams[0].endpoints[0].port));

    let file = words(&instruction("CMD")).pop().unwrap();
    let folder = Path::new(&file).parent().unwrap().to_str().unwrap();
    let exposed = instruction("EXPOSE");
    let admin = config.admin.unwrap();
    let gateways: Vec<_> =
        services(&compose).filter(|(_, service)| is_ours(service) && service["command"].is_null()).collect();
    assert_eq!(u64::try_from(gateways.len()).unwrap(), redis.gateways);
    for (name, gateway) in gateways {
        let from =
            texts(gateway, "volumes").into_iter().find_map(|volume| volume.strip_suffix(&format!(":{folder}:ro")));
        let source = Path::new(from.unwrap_or_else(|| panic!("{name} has no {folder}")));
        assert!(root().join(source).join(Path::new(&file).file_name().unwrap()).exists());
        let ports = texts(gateway, "ports");
        let inside = ports[0].rsplit(':').next().unwrap();
        assert_eq!(inside, config.listeners[0].address.inet().unwrap().port().to_string());
        for port in [inside, &admin.port().to_string()] {
            assert!(exposed.split(' ').any(|exposed| exposed == port), "EXPOSE lacks {port}");
        }
        for other in ["upstream", "redis", "prometheus"] {
            let shared = texts(gateway, "networks");
            let networks = texts(&compose, &format!("services {other} networks"));
            assert!(networks.iter().any(|network| shared.contains(network)), "{name} does not reach {other}");
        }
        let stops = seconds(text(gateway, "stop_grace_period"));
        let drain = config.drain.delay.plus(config.drain.timeout).seconds();
        assert!(stops > drain, "{name} is killed after {stops} s, and drains for {drain}");
    }
    assert!(admin.ip().is_unspecified(), "from another container {admin} cannot be reached");
}

#[test]
fn the_redis_of_compose_admits_the_gateways_and_keeps_every_bucket() {
    let (config, compose) = (config(), compose());
    let redis = redis_of(&config);
    let users = read("deploy/compose/redis/users.acl");
    let password = read("deploy/compose/redis-password");
    let hash: String = Sha256::digest(password.trim_end()).iter().map(|byte| format!("{byte:02x}")).collect();
    let user = format!("user {} on #{hash} ", redis.login.username.as_deref().unwrap());
    let rights = users.lines().find_map(|line| line.strip_prefix(&user)).unwrap_or_else(|| panic!("no {user}"));
    // The same rights as in the documentation, but for the password.
    let page = read("docs/stores.md");
    let documented = page.lines().find_map(|line| line.strip_prefix("ACL SETUSER tollgate reset on >SECRET ")).unwrap();
    assert_eq!(rights, documented);
    assert!(rights.contains(&format!("~{}:* ", redis.prefix)), "{rights}");

    let conf = read("deploy/compose/redis/redis.conf");
    for line in
        ["maxmemory-policy noeviction", "appendonly yes", "appendfsync everysec", "aclfile /etc/redis/users.acl"]
    {
        assert!(conf.lines().any(|found| found == line), "redis.conf lacks {line}");
    }
    let volumes = texts(&compose, "services redis volumes");
    assert!(volumes.contains(&"./deploy/compose/redis:/etc/redis:ro"), "{volumes:?}");
    let command = texts(&compose, "services redis command");
    let (folder, file) = (command.last().unwrap(), command[1]);
    assert!(volumes.contains(&&*format!("redis:{folder}")), "redis.conf keeps its data in {folder}");
    assert_eq!(file, "/etc/redis/redis.conf");
    assert_eq!(texts(&compose, "services redis networks"), ["store"]);
    assert_eq!(at(&compose, "networks store internal").as_bool(), Some(true));
}

#[test]
fn prometheus_alertmanager_and_grafana_find_what_they_need() {
    let (compose, config) = (compose(), config());
    let admin = config.admin.unwrap().port();
    let prometheus: Value = serde_yaml::from_str(&read("deploy/prometheus/prometheus.yaml")).unwrap();
    let targets = texts(&prometheus, "scrape_configs 0 static_configs 0 targets");
    assert_eq!(targets, [format!("gateway-1:{admin}"), format!("gateway-2:{admin}")]);
    for file in texts(&prometheus, "rule_files") {
        assert!(root().join("deploy/prometheus").join(file).exists(), "{file}");
    }
    let mounted = |service: &str, file: &str| {
        texts(&compose, &format!("services {service} volumes")).into_iter().any(|volume| {
            let (from, to) = volume.trim_end_matches(":ro").split_once(':').unwrap();
            let rest = Path::new(file).strip_prefix(to).ok();
            rest.is_some_and(|rest| root().join(from).join(rest).exists() || root().join(from).is_file())
        })
    };
    for service in ["prometheus", "alertmanager"] {
        let named = texts(&compose, &format!("services {service} command"))[0].strip_prefix("--config.file=").unwrap();
        assert!(mounted(service, named), "{named}");
    }
    promtool(&["check", "config", "deploy/prometheus/prometheus.yaml"], "");
    let published = texts(&compose, "services alertmanager ports")[0].rsplit(':').next().unwrap();
    let targets = texts(&prometheus, "alerting alertmanagers 0 static_configs 0 targets");
    assert_eq!(targets, [format!("alertmanager:{published}")]);
    let networks = |service: &str| texts(&compose, &format!("services {service} networks")) == ["watch"];
    assert!(networks("prometheus") && networks("alertmanager"));

    let source: Value = serde_yaml::from_str(&read("deploy/grafana/provisioning/datasources/prometheus.yaml")).unwrap();
    let published = texts(&compose, "services prometheus ports")[0].rsplit(':').next().unwrap();
    assert_eq!(text(&source, "datasources 0 url"), format!("http://prometheus:{published}"));
    let provider: Value = serde_yaml::from_str(&read("deploy/grafana/provisioning/dashboards/tollgate.yaml")).unwrap();
    let dashboard = format!("{}/dashboard.json", text(&provider, "providers 0 options path"));
    assert!(mounted("grafana", &dashboard), "{dashboard}");
    assert!(mounted("grafana", "/etc/grafana/provisioning/datasources/prometheus.yaml"));
    assert_eq!(text(&compose, "services grafana environment GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"), dashboard);
}
