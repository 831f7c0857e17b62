//! Files that together make every key possible, and how a key is set in one of them.

use std::sync::LazyLock;

use serde_json::{Value, json};

const WHOLE: [&str; 20] = [
    "
upstream: http://127.0.0.1:9000
cors: [{origins: ['https://app.example']}]
error_pages: [{body_file: empty.txt}]
rules:
  - {name: listed, match: {header:x-a: {in_file: {file: empty.txt}}}, action: allow}
  - {name: rest, limit_keys: [ip:address], algorithm_config: {rps: 1, burst: 5}}",
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
  - {name: a, limit_keys: [], algorithm: token_bucket, algorithm_config: {rate: 100/s, cost_source: response_header:x-cost, reserve: {from: request_json:/a, default: 1}}}
",
    "\
upstream: http://127.0.0.1:9000
rules:
  - {name: a, limit_keys: [], algorithm: fixed_window, algorithm_config: {limit: 100, window: 1d, cost_source: response_header:x-cost, reserve: {learn: 95%, min: 1, default: 1}}}
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

/// Rules, each of which is in two files: under `rules`, and in a policy.
const RULES: [&str; 11] = [
    "{name: a, limit_keys: [path], algorithm: leaky_bucket, algorithm_config: {rps: 1, queue: 20, max_wait: 1s, shadow: {rps: 1, queue: 20, max_wait: 1s}}}",
    "{name: a, limit_keys: [path], algorithm: fixed_window, algorithm_config: {limit: 20, window: month, shadow: {limit: 20}}}",
    "{name: a, limit_keys: [path], algorithm: sliding_log, algorithm_config: {limit: 20, window: 1d, shadow: {limit: 20}}}",
    "{name: a, limit_keys: [path], algorithm: sliding_window, algorithm_config: {limit: 20, window: 1h, shadow: {limit: 20}}}",
    "{name: a, limit_keys: [path], algorithm: concurrency, algorithm_config: {limit: 20, max_hold: 1h, shadow: {limit: 20}}}",
    "{name: a, limit_keys: [], algorithm: token_bucket, algorithm_config: {rps: 1000000, burst: 1000000000, cost_source: llm_tokens, reserve: {worst: {default_output: 5}}}}",
    "{name: a, limit_keys: [], algorithm: fixed_window, algorithm_config: {limit: 1000000000, window: 1d, cost_source: llm_tokens, reserve: {worst: {default_output: 5}}}}",
    "{name: a, limit_keys: [], algorithm: token_bucket, algorithm_config: {rate: 100/s, cost_source: response_header:x-cost, reserve: 1}}",
    "{name: a, limit_keys: [], algorithm: fixed_window, algorithm_config: {limit: 100, window: 1d, cost_source: response_header:x-cost, reserve: 1}}",
    "{name: a, limit_keys: [], algorithm: token_bucket, algorithm_config: {rate: 100/s, cost_source: llm_tokens, reserve: 1, weights: {}}}",
    "{name: a, limit_keys: [], algorithm: fixed_window, algorithm_config: {limit: 100, window: 1d, cost_source: llm_tokens, reserve: 1, weights: {}}}",
];

pub fn whole_files() -> Vec<Value> {
    static FILES: LazyLock<Vec<Value>> = LazyLock::new(|| {
        let parsed = |text: &str| serde_yaml::from_str::<Value>(text).unwrap();
        let of_rule = |rule: &str| {
            let (upstream, rules) = ("http://127.0.0.1:9000", [parsed(rule)]);
            let policies = [json!({"name": "p", "rules": rules})];
            [json!({"upstream": upstream, "rules": rules}), json!({"upstream": upstream, "policies": policies})]
        };
        WHOLE.into_iter().map(parsed).chain(RULES.into_iter().flat_map(of_rule)).collect()
    });
    FILES.clone()
}

/// Sets a key. `*` is the first member of a list. Returns whether the key's parent exists.
pub fn set(value: &mut Value, path: &[&str], to: &Value) -> bool {
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
pub fn has(value: &Value, path: &[&str]) -> bool {
    match path {
        [] => true,
        ["*", rest @ ..] => value.get(0).is_some_and(|inner| has(inner, rest)),
        [key, rest @ ..] => value.get(key).is_some_and(|inner| has(inner, rest)),
    }
}

/// Returns the algorithm of the first rule.
pub fn algorithm_of(file: &Value) -> &str {
    let rules = file.pointer("/rules").or_else(|| file.pointer("/policies/0/rules"));
    rules.and_then(|rules| rules[0]["algorithm"].as_str()).unwrap_or("token_bucket")
}
