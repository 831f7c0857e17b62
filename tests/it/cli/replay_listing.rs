//! `tollgate replay` and `check` say what the access log must list, and with it every request is decided.

use serde_json::{Value, json};

use crate::support::access_log::{SECRET, token, wait_for};
use crate::support::mint::epoch;
use crate::support::{Gateway, Upstream, tollgate};

const NOW: &str = "
policies:
  - name: plan
    rules:
      - {name: free, match: {jwt:plan: free}, limit_keys: [jwt:sub], algorithm_config: {rate: 9/day}}
      - {name: anonymous, limit_keys: [ip:address], algorithm_config: {rate: 9/day}}
";

/// The rules to try: another tier, and rules that compare parts of texts.
const NEXT: &str = "
policies:
  - name: plan
    rules:
      - {name: pro, match: {jwt:plan: [pro, team]}, limit_keys: [jwt:sub], algorithm_config: {rate: 9/day}}
      - {name: beta, match: {header:x-beta: {prefix: b}}, limit_keys: [jwt:sub], algorithm_config: {rate: 1/day}}
      - {name: free, match: {jwt:plan: free}, limit_keys: [jwt:sub], algorithm_config: {rate: 2/day}}
      - {name: anonymous, limit_keys: [ip:address], algorithm_config: {rate: 9/day}}
  - {name: v2, rules: [{name: all, match: {path: /v2/*}, limit_keys: [], algorithm_config: {rate: 9/day}}]}
";

/// Runs a gateway with this key `access_log`, and returns the replay of its log under the next rules, as text and as JSON.
fn replay(listing: &str) -> (String, Value) {
    let upstream = Upstream::start();
    let common = format!("hash_key: {SECRET}\njwt: {{algorithms: [HS256], keys: {{secret: {SECRET}}}}}\n");
    let gateway = Gateway::start(&upstream, &format!("{common}access_log: {{to: access.jsonl{listing}}}\n{NOW}"));
    gateway.replace("next.yaml", &format!("upstream: http://127.0.0.1:9000\n{common}{NEXT}"));
    let authorization = token(&json!({"sub": "ann", "plan": "free", "exp": epoch() + 600}));
    let mut client = gateway.client();
    // Once a line has an attribute, lines without it are of requests without it.
    assert_eq!(client.get("/v2/a", &[("Authorization", &authorization), ("X-Beta", "b7")]).status, 200);
    for _ in 0..4 {
        assert_eq!(client.get("/v2/a", &[("Authorization", &authorization)]).status, 200);
    }
    assert_eq!(client.get("/", &[]).status, 200);
    wait_for(&gateway, 6);
    let [now, next, log] = ["gateway.yaml", "next.yaml", "access.jsonl"].map(|name| gateway.file(name));
    let [now, next, log] = [&now, &next, &log].map(|file| file.to_str().unwrap());
    let text = tollgate(&["replay", "-c", now, "--against", next, log]);
    (text.out, tollgate(&["replay", "-c", now, "--against", next, "--json", log]).json())
}

#[test]
fn replay_says_what_to_log_and_then_decides_every_request() {
    let counts =
        |found: &Value| ["allowed", "refused", "undecided"].map(|key| found["files"][1][key].as_u64().unwrap());
    let (text, found) = replay("");
    assert_eq!(counts(&found), [0, 0, 6], "{text}");
    let (_, listing) = text.split_once("log what is missing, access_log: {").unwrap_or_else(|| panic!("{text}"));
    let (listing, _) = listing.split_once('}').unwrap();
    // The requests have these attributes, so that no report may say to take them as missing.
    assert!(!text.contains("--absent"), "{text}");
    let (text, found) = replay(&format!(", {listing}"));
    assert_eq!(counts(&found), [4, 2, 0], "{text}");
    assert!(!text.contains("log what is missing"), "{text}");
}

#[test]
fn check_names_what_the_access_log_lacks() {
    let upstream = Upstream::start();
    let text = format!("jwt: {{algorithms: [HS256], keys: {{secret: {SECRET}}}}}\n{NEXT}");
    let gateway = Gateway::start(&upstream, &format!("hash_key: {SECRET}\n{text}"));
    let warned = |log: &str| {
        gateway.replace("logged.yaml", &format!("upstream: http://127.0.0.1:9000\nhash_key: {SECRET}\n{log}\n{text}"));
        let file = gateway.file("logged.yaml");
        tollgate(&["check", file.to_str().unwrap()]).err
    };
    let report = warned("access_log: {to: stdout, values: [host]}");
    let expected = "  hint: add attributes: [jwt:plan, jwt:sub, ip:address], values: [header:x-beta, path]\n";
    assert!(report.contains("warning unlogged_attribute: access_log: ") && report.contains(expected), "{report}");
    let listed = "attributes: [jwt:plan, jwt:sub, ip:address], values: [header:x-beta, path]";
    assert!(!warned(&format!("access_log: {{to: stdout, {listed}}}")).contains("unlogged_attribute"));
    assert!(!warned("").contains("unlogged_attribute"));
}
