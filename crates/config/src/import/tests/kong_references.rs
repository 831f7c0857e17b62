//! Tests of the import from Kong: to what plugins refer, and where they count.

use super::{ImportedFile, import_kong, kong, rules};

#[test]
fn plugins_may_refer_by_id() {
    let (rules, losses) = kong(
        "
_format_version: \"3.0\"
services: [{id: 5e, url: http://shop}, {name: free, id: f1, url: http://free}]
routes:
  - {name: items, id: 1a, service: {id: 5e}, paths: [/items]}
  - {id: 2b, service: free, paths: [/free]}
consumers: [{username: ann, id: 0c}]
plugins:
  - {name: key-auth}
  - {name: rate-limiting, service: {id: 5e}, config: {second: 5, limit_by: ip}}
  - {name: rate-limiting, route: {id: 2b}, config: {second: 6, limit_by: ip}}
  - {name: rate-limiting, consumer: 0c, route: 1a, config: {second: 7, limit_by: ip}}
",
    );
    let names: Vec<&str> = rules.lines().filter_map(|line| line.strip_prefix("      - name: ")).collect();
    assert_eq!(names, ["\"ann\"", "\"items\"", "\"2b\""]);
    assert!(rules.contains("match: {path: [\"/items/*\"], \"key:id\": \"ann\"}"), "{rules}");
    assert_eq!(losses.len(), 2, "{losses:?}");
}

#[test]
fn one_plugin_of_each_name_counts() {
    let text = "
_format_version: \"3.0\"
services:
  - url: http://s
    routes:
      - name: r
        paths: [/x]
        plugins: [{name: rate-limiting-advanced, config: {limit: [1000], window_size: [60], identifier: ip}}]
plugins:
  - {name: key-auth, config: {key_names: [apikey], hide_credentials: true, key_in_query: true}}
  - {name: rate-limiting, config: {minute: 10, limit_by: ip, policy: local}}
  - {name: rate-limiting, route: r, config: {hour: 20, limit_by: ip, policy: redis, redis: {host: a}}}
";
    let imported = import_kong(&ImportedFile { name: "kong.yaml", bytes: text.as_bytes() }).unwrap();
    let keys = "api_keys: {from: [\"header:apikey\", \"query:apikey\"], file: api-keys.txt, forward: false}\n";
    assert!(imported.text.contains(keys), "{}", imported.text);
    let (rules, losses) = rules(imported);
    // Kong counts a request to /x by a plugin of either name.
    let names: Vec<&str> = rules.lines().filter_map(|line| line.trim().strip_prefix("- name: ")).collect();
    assert_eq!(names, ["\"kong\"", "\"r\"", "\"global\"", "\"kong-advanced\"", "\"r-2\""], "{rules}");
    let rest: Vec<&str> = losses.iter().filter_map(|loss| Some(loss.split_once(": ")?.1)).collect();
    assert!(rest[2].starts_with("key-auth: answers 401 without a key, and here such a request passes: "), "{losses:?}");
    assert!(rest[1].starts_with("config.policy: counts in each node of Kong for itself, "), "{losses:?}");
    assert_eq!(rest.len(), 3, "{losses:?}");
}

#[test]
fn a_reference_to_nothing_and_a_plugin_without_a_rule_are_named() {
    let (rules, losses) = kong(
        "
_format_version: \"3.0\"
services:
  - url: http://shop
    plugins: [{name: rate-limiting, config: {second: 9}}]
routes: [{name: a, paths: [/a], service: gone}]
plugins:
  - {name: rate-limiting, route: {id: gone}, config: {second: 5, limit_by: ip}}
  - {name: rate-limiting, route: a, config: {second: 5, limit_by: ip}}
  - {name: rate-limiting, route: a, config: {second: 9, limit_by: ip}}
  - {name: rate-limiting, consumer_group: gold, config: {second: 5, limit_by: ip}}
",
    );
    assert_eq!(rules.matches("- name: ").count(), 2, "{rules}");
    let none = "plugins: no rule comes of this plugin: no request reaches it, or another plugin limits the same ones";
    assert_eq!(
        losses[1..],
        [
            format!("kong.yaml:5:15: {none}"),
            "kong.yaml:6:42: service: gone is no service of this file: what refers to it is left out".to_owned(),
            "kong.yaml:8:34: route: gone is no route of this file: what refers to it is left out".to_owned(),
            format!("kong.yaml:10:5: {none}"),
            "kong.yaml:11:43: consumer_group: is not imported: the plugin is left out".to_owned(),
        ]
    );
}

/// Returns the losses of plugins with this in their `config`.
fn losses_of(configs: &[&str]) -> Vec<String> {
    let plugin =
        |config: &&str| format!("  - {{name: rate-limiting, config: {{second: 5, limit_by: ip, {config}}}}}\n");
    let plugins: String = configs.iter().map(plugin).collect();
    let (_, losses) = kong(&format!("_format_version: \"3.0\"\nplugins:\n{plugins}"));
    losses.iter().map(|loss| loss.split_once(": ").unwrap().1.to_owned()).collect()
}

#[test]
fn settings_of_redis_that_are_not_imported_are_named() {
    let losses = losses_of(&[
        "policy: redis, redis: {host: redis.internal, port: 6380, password: secret, username: u, ssl: true, database: 2, timeout: 2000}",
    ]);
    let see = "is not imported: see `store.redis`";
    assert_eq!(
        losses,
        ["password", "username", "ssl", "database", "timeout"].map(|key| format!("config.redis.{key}: {see}"))
    );
    assert_eq!(losses_of(&["policy: redis, redis: {host: r, database: 0, ssl: false, password: null}"]), [""; 0]);
    assert_eq!(losses_of(&["policy: redis, redis_host: r, redis_port: 6380"]), [""; 0]);
    assert_eq!(losses_of(&["policy: local, redis: {password: secret}"]), [""; 0]);
    assert_eq!(
        losses_of(&["policy: redis, redis_host: r, redis_password: secret"]),
        ["config.redis_password: is not imported"]
    );
}

#[test]
fn a_place_to_count_that_is_not_imported_is_named() {
    assert_eq!(losses_of(&["policy: cluster"]), ["config.policy: is cluster, which is not imported: set `store`"]);
    let no_host = "config.redis: has no host and port that can be imported: set `store`";
    assert_eq!(losses_of(&["policy: redis"]), [no_host]);
    assert_eq!(losses_of(&["policy: redis, redis: {host: \"{vault://env/host}\"}"]), [no_host]);
    assert_eq!(losses_of(&["policy: redis, redis: {host: r, port: 0}"]), [no_host]);
    let two = losses_of(&["policy: redis, redis: {host: r}", "policy: redis, redis: {host: s}"]);
    assert!(two.contains(
        &"config.redis: counts in another Redis, or with another `fault_tolerant`, than a plugin before it".to_owned()
    ));
}
