//! The schema has the defaults, the bounds of numbers and the spellings of values that the code has.

use std::sync::LazyLock;

use config::Config;
use config::warning::Warnings;
use serde_json::{Value, json};

use super::{Property, Schema};
use crate::config::bad_files;
use crate::support::short_or_long;

/// Files that together make every key possible.
const WHOLE: [&str; 42] = [
    "
upstream: http://127.0.0.1:9000
cors: [{origins: ['https://app.example']}]
error_pages: [{body_file: empty.txt}]
rules:
  - {name: listed, match: {header:x-a: {in_file: {file: empty.txt}}}, action: allow}
  - {name: rest, limit_keys: [ip:address], algorithm_config: {rps: 1, burst: 5}}",
    "
upstream: http://127.0.0.1:9000
policies:
  - name: p
    rules:
      - name: a
        limit_keys: [path]
        algorithm: leaky_bucket
        algorithm_config: {rps: 1, queue: 20, max_wait: 1s, shadow: {rps: 1, queue: 20, max_wait: 1s}}",
    "
upstream: http://127.0.0.1:9000
rules:
  - name: a
    limit_keys: [path]
    algorithm: leaky_bucket
    algorithm_config: {rps: 1, queue: 20, max_wait: 1s, shadow: {rps: 1, queue: 20, max_wait: 1s}}",
    "
upstream: http://127.0.0.1:9000
policies:
  - name: p
    rules:
      - name: a
        limit_keys: [path]
        algorithm: fixed_window
        algorithm_config: {limit: 20, window: month, shadow: {limit: 20}}",
    "
upstream: http://127.0.0.1:9000
rules:
  - name: a
    limit_keys: [path]
    algorithm: fixed_window
    algorithm_config: {limit: 20, window: month, shadow: {limit: 20}}",
    "
upstream: http://127.0.0.1:9000
policies:
  - name: p
    rules:
      - name: a
        limit_keys: [path]
        algorithm: sliding_log
        algorithm_config: {limit: 20, window: 1d, shadow: {limit: 20}}",
    "
upstream: http://127.0.0.1:9000
policies:
  - name: p
    rules:
      - name: a
        limit_keys: [path]
        algorithm: sliding_window
        algorithm_config: {limit: 20, window: 1h, shadow: {limit: 20}}",
    "
upstream: http://127.0.0.1:9000
rules:
  - name: a
    limit_keys: [path]
    algorithm: sliding_log
    algorithm_config: {limit: 20, window: 1d, shadow: {limit: 20}}",
    "
upstream: http://127.0.0.1:9000
rules:
  - name: a
    limit_keys: [path]
    algorithm: sliding_window
    algorithm_config: {limit: 20, window: 1h, shadow: {limit: 20}}",
    "
upstream: http://127.0.0.1:9000
policies:
  - name: p
    rules:
      - name: a
        limit_keys: [path]
        algorithm: concurrency
        algorithm_config: {limit: 20, max_hold: 1h, shadow: {limit: 20}}",
    "
upstream: http://127.0.0.1:9000
rules:
  - name: a
    limit_keys: [path]
    algorithm: concurrency
    algorithm_config: {limit: 20, max_hold: 1h, shadow: {limit: 20}}",
    "
upstream: http://127.0.0.1:9000
access_log: {to: stdout}
usage: {path: /usage}
listeners: [{address: 127.0.0.1:8081}]
store: {redis: {url: redis://127.0.0.1}}
jwt: {issuers: [{issuer: a, algorithms: [HS256], keys: {secret: 0123456789abcdef0123456789abcdef}}]}
policies:
  - name: p
    rules:
      - {name: a, limit_keys: [path], algorithm_config: {rps: 1, burst: 20, shadow: {rps: 1, burst: 2}}}",
    "
upstream: http://127.0.0.1:9000
jwt: {algorithms: [HS256], keys: {secret: 0123456789abcdef0123456789abcdef}, invalid_limit: {rps: 1, burst: 20}}
usage: {path: /usage, limit: {rps: 1, burst: 20}}
api_keys: {from: header:x-api-key, file: api-keys.txt}
store: {memory: {file: buckets.tgb}}
rules:
  - {name: a, limit_keys: [path], algorithm_config: {rps: 1, burst: 20, shadow: {rps: 1, burst: 2}}}",
    "
upstream: http://127.0.0.1:9000
store: {postgres: {url: postgres://u@127.0.0.1/d}}",
    "
upstream: http://127.0.0.1:9000
store: {memory: {}, home: {postgres: {url: postgres://u@127.0.0.1/d}, region: eu, regions: [eu]}}
rules:
  - {name: a, limit_keys: [path], algorithm_config: {rps: 1, burst: 20}}",
    "
upstream: http://127.0.0.1:9000
store: {memory: {}, home: {redis: {sentinel: {master: a, nodes: [127.0.0.1]}}, region: eu, regions: [eu]}}
rules:
  - {name: a, limit_keys: [path], algorithm_config: {rps: 1, burst: 20}}",
    "
upstream: http://127.0.0.1:9000
store: {memory: {}, home: {redis: {cluster: {nodes: [127.0.0.1]}}, region: eu, regions: [eu]}}
rules:
  - {name: a, limit_keys: [path], algorithm_config: {rps: 1, burst: 20}}",
    "
upstream: http://127.0.0.1:9000
store: {memory: {}, home: {redis: {url: redis://127.0.0.1}, region: eu, regions: [eu]}}
rules:
  - {name: a, scope: global, lease: {share: 5%}, limit_keys: [path], algorithm_config: {rps: 1, burst: 20}}
  - name: b
    limit_keys: [path]
    limits:
      s: {rps: 1, burst: 20, scope: global, lease: {share: 5%}}
      d: {algorithm: fixed_window, limit: 20, window: month, scope: global, lease: {share: 5%}}",
    "
upstream: http://127.0.0.1:9000
jwt: {algorithms: [HS256], keys: {secret: 0123456789abcdef0123456789abcdef}}
rules:
  - {name: a, limit_keys: [path], algorithm_config: {rps: 1, burst: 20, cost_source: query:cost}}",
    "
upstream: http://127.0.0.1:9000
store: {redis: {sentinel: {master: a, nodes: [127.0.0.1]}}}
rules:
  - {name: a, limit_keys: [path], algorithm_config: {rps: 1, burst: 20}}",
    "
upstream: http://127.0.0.1:9000
store: {redis: {cluster: {nodes: [127.0.0.1]}}}
rules:
  - {name: a, limit_keys: [path], algorithm_config: {rps: 1, burst: 20}}",
    "
upstreams: {api: {endpoints: [http://127.0.0.1:9000]}}
routes:
  - {name: a, match: {path: /a/*}, redirect: {scheme: https}, response_headers: {set: {X-A: a}, remove: [x-b]}}",
    "
upstreams: {api: {endpoints: [http://127.0.0.1:9000]}}
routes:
  - {name: a, match: {path: /a/*}, respond: {status: 200}, response_headers: {remove: [x-b]}}",
    "
upstreams: {api: {endpoints: [http://127.0.0.1:9000]}}
routes:
  - name: a
    match: {path: /a/*}
    upstream: {api: 1}
    retries: {max: 1}
    request_headers: {set: {X-A: a}}
    response_headers: {set: {X-A: a}}",
    "
upstreams: {api: {endpoints: [http://127.0.0.1:9000]}}
routes: [{name: a, upstream: api}]",
    "
upstream: http://127.0.0.1:9000
listeners: [{address: 127.0.0.1:0, tls: {certificates: [{cert_file: server.pem, key_file: server.key}]}}]
",
    "\
upstream: http://127.0.0.1:9000
rules:
  - {name: a, limit_keys: [], algorithm: token_bucket, algorithm_config: {rate: 100/s, cost_source: response_header:x-cost, reserve: 1}}
",
    "\
upstream: http://127.0.0.1:9000
rules:
  - {name: a, limit_keys: [], algorithm: fixed_window, algorithm_config: {limit: 100, window: 1d, cost_source: response_header:x-cost, reserve: 1}}
",
    "\
upstream: http://127.0.0.1:9000
rules:
  - {name: a, limit_keys: [], algorithm: token_bucket, algorithm_config: {rps: 1000000, burst: 1000000000, cost_source: llm_tokens, reserve: {worst: {default_output: 5}}}}
",
    "\
upstream: http://127.0.0.1:9000
rules:
  - {name: a, limit_keys: [], algorithm: fixed_window, algorithm_config: {limit: 1000000000, window: 1d, cost_source: llm_tokens, reserve: {worst: {default_output: 5}}}}
",
    "\
upstream: http://127.0.0.1:9000
policies:
  - name: p
    rules:
      - {name: a, limit_keys: [], algorithm: token_bucket, algorithm_config: {rps: 1000000, burst: 1000000000, cost_source: llm_tokens, reserve: {worst: {default_output: 5}}}}
",
    "\
upstream: http://127.0.0.1:9000
policies:
  - name: p
    rules:
      - {name: a, limit_keys: [], algorithm: fixed_window, algorithm_config: {limit: 1000000000, window: 1d, cost_source: llm_tokens, reserve: {worst: {default_output: 5}}}}
",
    "\
upstream: http://127.0.0.1:9000
rules:
  - {name: a, limit_keys: [], algorithm: token_bucket, algorithm_config: {rate: 100/s, cost_source: response_header:x-cost, reserve: {from: request_json:/a, default: 1}}}
",
    "\
upstream: http://127.0.0.1:9000
rules:
  - {name: a, limit_keys: [], algorithm: fixed_window, algorithm_config: {limit: 100, window: 1d, cost_source: response_header:x-cost, reserve: {learn: 95%, min: 1, default: 1}}}
",
    "\
upstream: http://127.0.0.1:9000
policies:
  - name: p
    rules:
      - {name: a, limit_keys: [], algorithm: token_bucket, algorithm_config: {rate: 100/s, cost_source: response_header:x-cost, reserve: 1}}
",
    "\
upstream: http://127.0.0.1:9000
policies:
  - name: p
    rules:
      - {name: a, limit_keys: [], algorithm: fixed_window, algorithm_config: {limit: 100, window: 1d, cost_source: response_header:x-cost, reserve: 1}}
",
    "\
upstream: http://127.0.0.1:9000
rules:
  - {name: a, limit_keys: [], algorithm: token_bucket, algorithm_config: {rate: 100/s, cost_source: llm_tokens, reserve: 1, weights: {}}}
",
    "\
upstream: http://127.0.0.1:9000
rules:
  - {name: a, limit_keys: [], algorithm: fixed_window, algorithm_config: {limit: 100, window: 1d, cost_source: llm_tokens, reserve: 1, weights: {}}}
",
    "\
upstream: http://127.0.0.1:9000
policies:
  - name: p
    rules:
      - {name: a, limit_keys: [], algorithm: token_bucket, algorithm_config: {rate: 100/s, cost_source: llm_tokens, reserve: 1, weights: {}}}
",
    "\
upstream: http://127.0.0.1:9000
policies:
  - name: p
    rules:
      - {name: a, limit_keys: [], algorithm: fixed_window, algorithm_config: {limit: 100, window: 1d, cost_source: llm_tokens, reserve: 1, weights: {}}}
",
    "\
upstream: http://127.0.0.1:9000
prices: {file: prices.csv}
rules:
  - {name: a, limit_keys: [], algorithm: fixed_window, algorithm_config: {limit: 2.50, window: 1d, cost_source: llm_cost, reserve: 1}}
",
    "\
upstream: http://127.0.0.1:9000
rules:
  - {name: a, limit_keys: [], algorithm: fixed_window, algorithm_config: {limit: 100, window: 1d}, meter: m}
records: {to: records.jsonl, meters: [m], subject: [ip:address]}
",
];

fn whole_files() -> [Value; 42] {
    static FILES: LazyLock<[Value; 42]> = LazyLock::new(|| WHOLE.map(|text| serde_yaml::from_str(text).unwrap()));
    FILES.clone()
}

/// Sets a key. `*` is the first member of a list. Returns whether the key's parent exists.
fn set(value: &mut Value, path: &[&str], to: &Value) -> bool {
    match (path, value) {
        (["*", rest @ ..], Value::Array(list)) => list.first_mut().is_some_and(|inner| set(inner, rest, to)),
        ([last], Value::Object(map)) => {
            map.insert((*last).to_owned(), to.clone());
            true
        }
        ([key, rest @ ..], Value::Object(map)) if rest.first() != Some(&"*") => {
            set(map.entry(*key).or_insert(json!({})), rest, to)
        }
        ([key, rest @ ..], Value::Object(map)) => map.get_mut(*key).is_some_and(|inner| set(inner, rest, to)),
        _ => false,
    }
}

/// Whether the key exists.
fn has(value: &Value, path: &[&str]) -> bool {
    match path {
        [] => true,
        ["*", rest @ ..] => value.get(0).is_some_and(|inner| has(inner, rest)),
        [key, rest @ ..] => value.get(key).is_some_and(|inner| has(inner, rest)),
    }
}

/// Returns the algorithm of the first rule.
fn algorithm_of(file: &Value) -> &str {
    let rules = file.pointer("/rules").or_else(|| file.pointer("/policies/0/rules"));
    rules.and_then(|rules| rules[0]["algorithm"].as_str()).unwrap_or("token_bucket")
}

/// Returns what a file means, without positions and warnings. Warnings are left out, because a key may state its default.
fn meaning(file: &Value) -> Option<String> {
    static POSITION: LazyLock<regex::Regex> = LazyLock::new(|| regex::Regex::new(r"Position \{[^}]*\}").unwrap());
    let config = bad_files::parse(file.to_string().as_bytes()).ok()?;
    let text = format!("{:?}", Config { hash: String::new(), warnings: Warnings::default(), ..config });
    Some(POSITION.replace_all(&text, "").into_owned())
}

#[test]
fn every_default_applies_without_the_key() {
    let schema = Schema::shipped();
    let mut defaults = 0;
    for Property { path, said, .. } in schema.declared_properties() {
        let Some(default) = said.get("default") else { continue };
        let mut tried = 0;
        for file in whole_files().iter().filter(|file| !has(file, &path)) {
            let mut with = file.clone();
            if let Some(found) = set(&mut with, &path, default).then(|| meaning(&with)).flatten() {
                assert_eq!(found, meaning(file).unwrap(), "{path:?}: {default}");
                tried += 1;
            }
        }
        assert!(tried > 0, "{path:?}: no file to try it in");
        defaults += 1;
    }
    assert!(defaults > 40, "{defaults} defaults");
}

#[test]
fn a_bound_of_a_number_is_that_of_check() {
    let schema = Schema::shipped();
    let mut bounds = 0;
    for Property { path, algorithm, resolved, .. } in schema.declared_properties() {
        for (bound, beyond) in [("minimum", -1), ("maximum", 1)] {
            let Some(bound) = schema.bound(resolved, bound) else { continue };
            let accepted = |value: i64| {
                let mut files = whole_files().to_vec();
                files.retain(|file| algorithm.is_none_or(|named| named == algorithm_of(file)));
                files.retain_mut(|file| set(file, &path, &json!(value)));
                files.iter().filter(|file| bad_files::parse(file.to_string().as_bytes()).is_ok()).count()
            };
            assert!(accepted(bound) > 0, "{path:?}: check refuses {bound}");
            assert_eq!(accepted(bound + beyond), 0, "{path:?}: check accepts {}", bound + beyond);
            bounds += 1;
        }
    }
    assert!(bounds > 20, "{bounds} bounds");
}

const SPELLINGS_OF_VALUES: [&str; 54] = [
    "0",
    "1",
    "-1",
    "07",
    "+7",
    "1.5",
    "1.0",
    "1e3",
    ".5",
    "true",
    "True",
    "yes",
    "auto",
    "0s",
    "5m",
    "1d",
    "05h",
    "1.5s",
    "0B",
    "64KiB",
    "1GB",
    "unlimited",
    "a",
    "a/b",
    "a.b-c_d",
    "10.0.0.0/8",
    "10.0.0.1",
    "::1",
    "2001:db8::/32",
    "1.2.3.4:80",
    "[::1]:80",
    "[fe80::1%2]:80",
    "http://a",
    "http://a:080/",
    "http://[::1]:1",
    "https://a/b@c",
    "redis://a",
    "header:x",
    "rediss://u:p@[::1]:6380/2",
    "postgres://u@a,b:1/d",
    "limits.bucket",
    "async",
    "query:x+y",
    "cookie:a|b",
    "lower( host )",
    "trim( lower(host ) )",
    "a | b",
    "path |lower(query:a b)",
    "10/s",
    "100/15m",
    "shadow",
    "fixed",
    "2026-11-30T23:00:00Z",
    "2026-11-30 23:00:00.5+01:00",
];

#[test]
fn the_schema_accepts_every_spelling_that_check_accepts() {
    let schema = Schema::shipped();
    let quoted = SPELLINGS_OF_VALUES.iter().map(|text| json!(text));
    let plain = SPELLINGS_OF_VALUES.iter().filter_map(|text| serde_yaml::from_str(text).ok());
    let values: Vec<Value> = quoted.chain(plain.filter(|value: &Value| !value.is_string())).collect();
    let (mut accepted, mut refused) = (0, 0);
    for (number, Property { path, resolved, .. }) in schema.declared_properties().into_iter().enumerate() {
        let files = whole_files().into_iter().filter(|file| has(file, &path[..path.len() - 1]));
        for mut file in files.take(short_or_long(1, usize::MAX)) {
            // In the short form each key is tried with a third of the values.
            let step = short_or_long(3, 1);
            for value in values.iter().skip(number % step).step_by(step) {
                let value = if resolved["type"] == json!("array") { json!([value]) } else { value.clone() };
                set(&mut file, &path, &value);
                if !schema.refuses(&file) {
                    accepted += 1;
                    continue;
                }
                refused += 1;
                let right = bad_files::parse(file.to_string().as_bytes()).is_ok();
                assert!(!right, "{file}\n{:?}", schema.refusal(&file));
            }
        }
    }
    assert!(accepted > 300 && refused > 3000, "{accepted} {refused}");
}
