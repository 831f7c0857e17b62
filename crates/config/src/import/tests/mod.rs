//! Tests of the imports from proxies: the rules that their files become, and what is named as lost.

mod kong_references;
mod nginx_files;
mod nginx_places;

use std::path::Path;

use super::{Import, ImportedFile, import_kong, import_nginx};
use crate::config::Config;
use crate::language::environment::Environment;

/// Returns the rules of an import, without comments and the settings before them, and the losses. The whole file must be valid.
#[track_caller]
fn rules(Import { text, losses }: Import) -> (String, Vec<String>) {
    let read = |path: &Path| match path == Path::new("api-keys.txt") {
        true => Ok(format!("{} ann gold", "0".repeat(64)).into_bytes()),
        false => Err(std::io::ErrorKind::NotFound.into()),
    };
    let environment = Environment { variable: &|_| None, folder: Path::new(""), read: &read };
    if let Err(problems) = Config::parse("gateway.yaml", text.as_bytes(), environment) {
        panic!("{problems}\n{text}");
    }
    let rules = text.split_once("policies:\n").map_or("", |(_, rules)| rules);
    let lines = rules.lines().filter(|line| !line.trim_start().starts_with('#'));
    (lines.map(|line| format!("{}\n", line.trim_end())).collect(), losses.iter().map(super::Loss::line).collect())
}

#[track_caller]
fn nginx(text: &str) -> (String, Vec<String>) {
    rules(
        import_nginx(&[ImportedFile { name: "nginx.conf", bytes: text.as_bytes() }])
            .unwrap_or_else(|problems| panic!("{problems}")),
    )
}

#[track_caller]
fn kong(text: &str) -> (String, Vec<String>) {
    rules(
        import_kong(&ImportedFile { name: "kong.yaml", bytes: text.as_bytes() })
            .unwrap_or_else(|problems| panic!("{problems}")),
    )
}

#[test]
fn the_example_of_the_documentation_is_imported_from_nginx() {
    let (rules, losses) = nginx(
        "
limit_req_zone $binary_remote_addr zone=address:10m rate=10r/s;
limit_req_zone $binary_remote_addr zone=reports:10m rate=5r/s;
limit_conn_zone $http_x_api_key zone=inflight:10m;
server {
    listen 8080;
    limit_conn inflight 8;
    location / { limit_req zone=address burst=20 nodelay; proxy_pass http://127.0.0.1:9000; }
    location /reports/ { limit_req zone=reports burst=20 delay=8; limit_req_status 429; proxy_pass http://127.0.0.1:9000; }
}",
    );
    assert_eq!(losses, [""; 0]);
    assert_eq!(
        rules,
        "  - name: \"address\"
    rules:
      - name: \"not-address\"
        match: {path: {prefix: \"/reports/\"}}
        action: allow
      - name: \"address\"
        limit_keys: [\"ip:address\"]
        algorithm: token_bucket
        algorithm_config: {rps: 10, burst: 21}
  - name: \"reports\"
    rules:
      - name: \"reports\"
        match: {path: {prefix: \"/reports/\"}}
        limit_keys: [\"ip:address\"]
        algorithm: leaky_bucket
        algorithm_config: {rps: 5, delay_after: 8, queue: 12, max_wait: 3s}
  - name: \"inflight\"
    rules:
      - name: \"inflight\"
        limit_keys: [\"header:x-api-key\"]
        algorithm: concurrency
        algorithm_config: {limit: 8}
"
    );
}

#[test]
fn the_limits_of_a_zone_share_buckets_and_stand_in_the_order_of_nginx() {
    let (rules, losses) = nginx(
        "
http {
    limit_req_zone $binary_remote_addr zone=all:10m rate=30r/m;
    limit_req zone=all burst=5;
    server { server_name a.example.com; location = /free { limit_req_dry_run on; } location ~ ^/v[12]/ { limit_req zone=all; } }
    server { server_name *.example.com; limit_req_dry_run on; }
    server { listen 80 default_server; server_name _; location /x { limit_req zone=all burst=9; location /x/y/ {} } }
}",
    );
    assert_eq!(losses, [""; 0]);
    let lines: Vec<&str> = rules.lines().map(str::trim).filter(|line| !line.starts_with("limit_keys")).collect();
    let names = ["all", "all-2", "all-3", "all-4", "all-5", "all-6", "all-7"].map(|name| format!("- name: \"{name}\""));
    assert_eq!(
        lines,
        [
            "- name: \"all\"",
            "rules:",
            &names[0],
            "match: {host: [\"a.example.com\"], path: \"/free\"}",
            "mode: shadow",
            "meter: \"all\"",
            "algorithm: leaky_bucket",
            "algorithm_config: {rate: 30/min, queue: 5, max_wait: 10s}",
            &names[1],
            "match: {host: [\"a.example.com\"], path: {regex: \"^/v[12]/\"}}",
            "meter: \"all\"",
            "algorithm: leaky_bucket",
            "algorithm_config: {rate: 30/min, queue: 0, max_wait: 1s}",
            &names[2],
            "match: {host: [\"a.example.com\"]}",
            "meter: \"all\"",
            "algorithm: leaky_bucket",
            "algorithm_config: {rate: 30/min, queue: 5, max_wait: 10s}",
            &names[3],
            "match: {host: {suffix: \".example.com\"}}",
            "mode: shadow",
            "meter: \"all\"",
            "algorithm: leaky_bucket",
            "algorithm_config: {rate: 30/min, queue: 5, max_wait: 10s}",
            &names[4],
            "match: {path: {prefix: \"/x/y/\"}}",
            "meter: \"all\"",
            "algorithm: leaky_bucket",
            "algorithm_config: {rate: 30/min, queue: 9, max_wait: 18s}",
            &names[5],
            "match: {path: {prefix: \"/x\"}}",
            "meter: \"all\"",
            "algorithm: leaky_bucket",
            "algorithm_config: {rate: 30/min, queue: 9, max_wait: 18s}",
            &names[6],
            "meter: \"all\"",
            "algorithm: leaky_bucket",
            "algorithm_config: {rate: 30/min, queue: 5, max_wait: 10s}",
        ]
    );
}

#[test]
fn what_nginx_says_beyond_gateway_yaml_is_named_with_its_place() {
    let (rules, losses) = nginx(
        "include conf.d/*.conf;
limit_req_zone $limit_key zone=mapped:1m rate=1r/s;
limit_req_zone $binary_remote_addr zone=odd:1m rate=1r/h;
limit_req_zone $binary_remote_addr zone=ok:1m rate=1r/s;
server {
  server_name ~^api\\d+$; limit_req_status 444; limit_rate 10k;
  location / { limit_req zone=mapped; }
  location @named { limit_req zone=ok; }
  if ($x) { limit_req zone=ok; }
}
server { location / { limit_req zone=gone; limit_req zone=ok sideways; } }",
    );
    assert_eq!(rules, "");
    assert_eq!(
        losses,
        [
            "nginx.conf:1:1: include: conf.d/*.conf is not read: name the files that it includes too, if they have limits",
            "nginx.conf:2:1: limit_req_zone: counts by `$limit_key`, which is no attribute here: zone mapped is left out",
            "nginx.conf:3:1: limit_req_zone: must have a rate like 10r/s or 30r/m, is `1r/h`",
            "nginx.conf:5:1: server_name: ~^api\\d+$ is left out: a host is no regular expression here",
            "nginx.conf:6:26: limit_req_status: is 444: refusals have the status 429",
            "nginx.conf:6:48: limit_rate: the speed of a response is not limited",
            "nginx.conf:7:3: zone: the limit of zone mapped is left out, because the zone is not imported",
            "nginx.conf:8:3: location: is no path of requests: it is left out",
            "nginx.conf:9:3: if: limits in such a block are left out",
            "nginx.conf:11:1: server: no host leads to this server here: its limits are left out",
            "nginx.conf:11:10: zone: the limit of zone gone is left out, because the zone is not imported",
            "nginx.conf:11:44: limit_req: has a parameter `sideways` that is not known: it is left out",
        ]
    );
}

#[test]
fn a_file_that_is_not_of_nginx_or_of_kong_is_a_problem_with_its_place() {
    let files = [ImportedFile { name: "a.conf", bytes: b"http {" }, ImportedFile { name: "b.conf", bytes: b"\xff" }];
    let problems = import_nginx(&files).unwrap_err();
    assert_eq!(
        problems.report(),
        ["a.conf:1:1: must have a block that ends with `}`", "b.conf: must be UTF-8 text", "2 problems"]
    );
    for (text, problem) in [
        ("services: []\n", "k.yaml:1:1: must be a declarative file of Kong, with `_format_version`"),
        ("a: [\n", "k.yaml:2:1: "),
    ] {
        let problems = import_kong(&ImportedFile { name: "k.yaml", bytes: text.as_bytes() }).unwrap_err();
        assert!(problems.report()[0].starts_with(problem), "{problems}");
    }
}

#[test]
fn the_example_of_the_documentation_is_imported_from_kong() {
    let file = "
_format_version: \"3.0\"
plugins:
  - {name: key-auth, config: {key_names: [apikey]}}
  - {name: rate-limiting, config: {minute: 100, month: 50000, limit_by: consumer, policy: redis, fault_tolerant: true, redis: {host: redis.internal}}}
";
    let imported = import_kong(&ImportedFile { name: "kong.yaml", bytes: file.as_bytes() }).unwrap();
    for line in [
        "store: {redis: {url: \"redis://redis.internal:6379\"}}",
        "on_store_failure: allow",
        "api_keys: {from: [\"header:apikey\"], file: api-keys.txt}",
    ] {
        assert!(imported.text.lines().any(|written| written == line), "{line}: {}", imported.text);
    }
    let (rules, losses) = rules(imported);
    let no_key = "kong.yaml:4:5: key-auth: answers 401 without a key, and here such a request passes: ";
    assert!(losses.len() == 1 && losses[0].starts_with(no_key), "{losses:?}");
    assert_eq!(
        rules,
        "  - name: \"kong\"
    rules:
      - name: \"global\"
        limit_keys: [\"key:id|ip:address\"]
        limits:
          \"minute\": {algorithm: fixed_window, limit: 100, window: 1m}
          \"month\": {algorithm: fixed_window, limit: 50000, window: month}
"
    );
}

#[test]
fn plugins_of_kong_decide_in_the_order_of_what_they_are_bound_to() {
    let (rules, losses) = kong("
_format_version: \"3.0\"
services:
  - name: shop
    url: http://shop
    plugins: [{name: rate-limiting, config: {second: 5, limit_by: service}}]
    routes:
      - {name: items, paths: [/items]}
      - {name: cart, paths: [/items/cart], methods: [POST], plugins: [{name: rate-limiting, config: {hour: 10, limit_by: ip}}]}
  - {name: free, routes: [{name: help, paths: [\"~/items/[a-z]+/help$\"], hosts: [\"*.example.com\", help.example.com]}]}
consumers:
  - {username: ann, plugins: [{name: rate-limiting-advanced, config: {limit: [7, 9], window_size: [30, 99999999]}}]}
plugins: [{name: key-auth}, {name: rate-limiting, enabled: false, config: {minute: 1}}]
");
    assert_eq!(losses.len(), 3, "{losses:?}");
    assert_eq!(losses[0], "kong.yaml:4:5: services: are not imported: set `upstream`, or `upstreams` and `routes`");
    assert!(losses[1].starts_with("kong.yaml:12:82: config.limit: is not imported: "), "{}", losses[1]);
    assert_eq!(
        rules,
        "  - name: \"kong\"
    rules:
      - name: \"no-limit-help\"
        match: {host: {suffix: \".example.com\"}, path: {regex: \"^/items/[a-z]+/help$$\"}}
        action: allow
      - name: \"no-limit-help-2\"
        match: {host: [\"help.example.com\"], path: {regex: \"^/items/[a-z]+/help$$\"}}
        action: allow
      - name: \"cart\"
        match: {path: [\"/items/cart/*\"], method: [\"POST\"]}
        limit_keys: [\"ip:address\"]
        algorithm: fixed_window
        algorithm_config: {limit: 10, window: 1h}
      - name: \"items\"
        match: {path: [\"/items/*\"]}
        limit_keys: []
        algorithm: fixed_window
        algorithm_config: {limit: 5, window: 1s}
        expose: true
  - name: \"kong-advanced\"
    rules:
      - name: \"ann\"
        match: {\"key:id\": \"ann\"}
        limit_keys: [\"key:id|ip:address\"]
        algorithm: sliding_window
        algorithm_config: {limit: 7, window: 30s}
"
    );
}

#[test]
fn what_kong_says_beyond_gateway_yaml_is_named_with_its_place() {
    let (rules, losses) = kong(
        "
_format_version: \"3.0\"
plugins:
  - {name: cors}
  - {name: rate-limiting, config: {minute: 5, limit_by: path, path: /a}}
  - {name: rate-limiting, consumer: ann, config: {minute: 5}}
  - {name: rate-limiting, route: r, config: {limit_by: ip}}
  - {name: rate-limiting, config: {minute: 5, error_code: 503, hide_client_headers: false, sync_rate: null}}
consumer_groups: []
consumers: [{username: ann}]
routes: [{name: r}]
",
    );
    assert_eq!(rules.matches("name: \"global\"").count(), 1, "{rules}");
    assert_eq!(
        losses,
        [
            "kong.yaml:4:5: plugins: the plugin cors is not imported",
            "kong.yaml:5:35: config.limit_by: is path, which is not imported: the plugin is left out",
            "kong.yaml:6:5: consumer: is not known without `key-auth`: the plugin is left out",
            "kong.yaml:7:45: config: has no limit that can be imported: the plugin is left out",
            "kong.yaml:8:47: config.error_code: is not imported",
            "kong.yaml:9:18: consumer_groups: are not imported",
        ]
    );
}

#[test]
fn the_beginning_of_a_file_is_imported_or_is_a_problem() {
    let nginx =
        "limit_req_zone ${binary_remote_addr} zone=a:1m rate=1r/s; server { location \"/\\x\" { limit_req zone=a; } }";
    let kong =
        "_format_version: \"3.0\"\nroutes: [{paths: [/a]}]\nplugins: [{name: rate-limiting, config: {minute: 5}}]\n";
    for (text, is_nginx) in [(nginx, true), (kong, false)] {
        for length in 0..text.len() {
            let file = ImportedFile { name: "a", bytes: &text.as_bytes()[..length] };
            let imported = if is_nginx { import_nginx(&[file]) } else { import_kong(&file) };
            match imported {
                Ok(imported) => assert!(imported.text.starts_with("# Imported"), "{length}"),
                Err(problems) => assert!(!problems.problems.is_empty(), "{length}"),
            }
        }
    }
}
