//! The limits in access log lines: each applied limit, the strictest first, and the one that decided.

use base::pseudonym::PseudonymKey;
use ledger::algorithm::AlgorithmKind;
use ledger::bucket_key::{Descriptor, KeySeed, LimitIdentity};
use serde_json::{Value, json};

use crate::support::access_log::{SECRET, TO_FILE, wait_for, with_id};
use crate::support::{Gateway, Redis, Upstream};

/// Returns the name of a bucket in a log with the key `SECRET`.
fn bucket(limit: &LimitIdentity<'_>, value: &str) -> String {
    let mut descriptor = Descriptor::default();
    descriptor.push(0, value.as_bytes());
    PseudonymKey::secret(SECRET.as_bytes()).bucket(&KeySeed::new(limit).key(&descriptor).0).to_string()
}

#[test]
fn a_line_names_every_limit_that_applied_and_the_strictest_first() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &upstream,
        &format!(
            "
hash_key: {SECRET}
retry_after_jitter: {{share: 0, max: 0s}}
policies:
  - name: plan
    rules:
      - name: free
        limit_keys: [query:user]
        limits: {{second: {{rps: 0.05, burst: 4, fixed_cost: 1.5}}, day: {{rate: 100/day}}}}
  - name: next
    mode: shadow
    rules: [{{name: trial, match: {{path: /}}, limit_keys: [query:user], algorithm_config: {{rate: 1/day}}}}]
  - name: alone
    mode: shadow
    rules: [{{name: only, match: {{path: /shadow}}, limit_keys: [], algorithm_config: {{rate: 9/day}}}}]
{TO_FILE}"
        ),
    );
    let mut client = gateway.client();
    for (id, target, code) in [
        ("first", "/?user=ann", 200),
        ("second", "/?user=ann", 200),
        ("third", "/?user=ann", 429),
        ("fourth", "/shadow", 200),
        ("fifth", "/else", 200),
    ] {
        assert_eq!(client.get(target, &[("X-Request-Id", id)]).status, code, "{id}");
    }
    let lines = wait_for(&gateway, 5);
    let keys = ["query:user".to_owned()];
    let limit = |limit| LimitIdentity {
        policy: "plan",
        rule: "free",
        limit,
        mode: "enforce",
        algorithm: AlgorithmKind::TokenBucket,
        keys: &keys,
    };
    let shadow = LimitIdentity { policy: "next", rule: "trial", limit: "", mode: "shadow", ..limit("") };
    let (second, day, trial) = (bucket(&limit("second"), "ann"), bucket(&limit("day"), "ann"), bucket(&shadow, "ann"));
    let of_rule = |line: &Value| {
        let fields = ["policy", "rule", "cost", "remaining", "bucket", "source", "retry_after"];
        Value::Array(fields.iter().map(|field| line[field].clone()).collect())
    };
    let limits_of = |line: &Value| -> Vec<Value> {
        let fields = ["policy", "rule", "mode", "verdict", "cost", "remaining", "bucket"];
        let limits = line["limits"].as_array().cloned().unwrap_or_default();
        limits.iter().map(|limit| fields.iter().map(|field| limit[field].clone()).collect()).collect()
    };
    let first = with_id(&lines, "first");
    assert_eq!(of_rule(first), json!(["plan", "free.second", 1.5, 2.5, second, "store", null]));
    let of_day = |left: u64| json!(["plan", "free.day", "enforce", "allow", 1, left, day]);
    assert_eq!(
        limits_of(first),
        [
            json!(["plan", "free.second", "enforce", "allow", 1.5, 2.5, second]),
            of_day(99),
            json!(["next", "trial", "shadow", "allow", 1, 0, trial]),
        ]
    );
    let second_line = with_id(&lines, "second");
    assert_eq!(limits_of(second_line)[2], json!(["next", "trial", "shadow", "deny", 1, 0, trial]));
    // Refused: the shadow was not asked, and what could have paid says so.
    let third = with_id(&lines, "third");
    // Half a token comes back in ten seconds.
    let retry_after = third["retry_after"].as_u64().unwrap();
    assert!(third["rule"] == "free.second" && (5..=10).contains(&retry_after), "{third}");
    assert!(third["remaining"].as_f64().unwrap() < 1.5, "{third}");
    let verdicts: Vec<_> = limits_of(third).iter().map(|limit| limit[3].clone()).collect();
    assert_eq!(verdicts, [json!("deny"), json!("allow")]);
    // A shadow alone decides nothing.
    let fourth = with_id(&lines, "fourth");
    assert!(fourth["rule"].is_null() && fourth["source"].is_null(), "{fourth}");
    assert_eq!(limits_of(fourth).len(), 1);
    assert_eq!(limits_of(fourth)[0][1], "only");
    let fifth = with_id(&lines, "fifth");
    assert!(fifth["rule"].is_null() && fifth["limits"].is_null() && fifth["kind"] == "allowed", "{fifth}");
}

#[test]
fn a_decision_without_the_store_names_its_source() {
    let (mut redis, upstream) = (Redis::start(), Upstream::start());
    let gateway = Gateway::start(
        &upstream,
        &format!(
            "{}
rules:
  - {{name: strict, match: {{path: /strict}}, limit_keys: [header:x-user], on_store_failure: deny, algorithm_config: {{rate: 9/day}}}}
  - {{name: open, match: {{path: /open}}, limit_keys: [header:x-user], on_store_failure: allow, algorithm_config: {{rate: 9/day}}}}
  - {{name: one, limit_keys: [header:x-user], algorithm_config: {{rate: 1/day}}}}
{TO_FILE}",
            redis.patient_store().replace("deny", "local")
        ),
    );
    let (mut client, mut asked) = (gateway.client(), 1);
    let mut ask = |id: &str, target: &str, code: u16| {
        assert_eq!(client.get(target, &[("X-User", "a"), ("X-Request-Id", id)]).status, code, "{id}");
    };
    ask("asked", "/", 200);
    // What is known of a bucket counts for a second: on a busy machine the first may come later.
    let known = (0..20).map(|number| format!("known-{number}")).find(|id| {
        ask(id, "/", 429);
        asked += 1;
        with_id(&wait_for(&gateway, asked), id)["source"] == "cached"
    });
    let known = known.expect("each was asked for");
    redis.kill();
    ask("denied", "/strict", 503);
    ask("open", "/open", 200);
    ask("local", "/", 429);
    let lines = wait_for(&gateway, asked + 3);
    for (id, rule, source, remaining) in [
        ("asked", "one", "store", json!(0)),
        (&known, "one", "cached", json!(0)),
        ("denied", "strict", "fallback", json!(null)),
        ("open", "open", "fallback", json!(null)),
        ("local", "one", "fallback", json!(0)),
    ] {
        let line = with_id(&lines, id);
        assert_eq!((&line["rule"], &line["source"]), (&json!(rule), &json!(source)), "{line}");
        // Whatever came back meanwhile is less than a thousandth of a second's worth.
        let left = line["remaining"].as_f64().unwrap_or_default();
        assert!(line["remaining"].is_null() == remaining.is_null() && left < 0.01, "{line}");
    }
}
