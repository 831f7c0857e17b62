//! `meter`: rules of several plans count in the same buckets, end to end.

use serde_json::Value;

use crate::support::{Client, Gateway, Redis, Upstream, tollgate};

/// Each plan has its own numbers, and the monthly use is counted for the customer.
const PLANS: &str = "
rules:
  - name: free
    match: {header:x-plan: free}
    limit_keys: [header:x-user]
    limits:
      second: {rps: 1000, burst: 1000}
      month: {algorithm: fixed_window, limit: 3, window: month, meter: api-month}
  - name: pro
    match: {header:x-plan: pro}
    limit_keys: [header:x-user]
    algorithm: fixed_window
    algorithm_config: {limit: 5, window: month}
    meter: api-month
";

/// Returns the codes of `times` requests, and the level that the last response states.
fn ask(client: &mut Client, plan: &str, user: &str, times: usize) -> (Vec<u16>, String) {
    let answers: Vec<_> = (0..times).map(|_| client.get("/", &[("X-Plan", plan), ("X-User", user)])).collect();
    let level = answers.last().and_then(|answer| answer.field("ratelimit")).unwrap_or_default();
    (answers.iter().map(|answer| answer.status).collect(), level)
}

#[track_caller]
fn has_left(level: &str, limit: &str, left: u64) {
    assert!(level.contains(&format!("\"{limit}\";r={left};t=")), "{level}");
}

#[test]
fn a_customer_who_changes_the_plan_keeps_what_was_used_on_every_gateway() {
    let (redis, upstream) = (Redis::start(), Upstream::start());
    let store = redis.patient_store();
    let gateways = [(); 2].map(|()| Gateway::start(&upstream, &format!("{PLANS}{store}")));
    let [mut one, mut other] = [gateways[0].client(), gateways[1].client()];
    let (codes, level) = ask(&mut one, "free", "ann", 2);
    assert_eq!(codes, [200, 200]);
    has_left(&level, "free.month", 1);
    // The upgrade.
    let (codes, level) = ask(&mut other, "pro", "ann", 1);
    assert_eq!(codes, [200]);
    has_left(&level, "pro", 2);
    assert_eq!(ask(&mut one, "pro", "ann", 3).0, [200, 200, 429]);
    // A downgrade below what is used refuses until the month has passed.
    let (codes, level) = ask(&mut other, "free", "ann", 2);
    assert_eq!(codes, [429, 429]);
    has_left(&level, "free.month", 0);
    // Others have a month of their own. A gateway that has just refused asks again for who has another plan by now.
    assert_eq!(ask(&mut other, "free", "bob", 4).0, [200, 200, 200, 429]);
    assert_eq!(ask(&mut other, "pro", "bob", 3).0, [200, 200, 429]);
    let file = gateways[0].file("gateway.yaml").display().to_string();
    let bucket = |words: &[&str]| {
        let answer = tollgate(&[&["bucket"], &words[..1], &["-c", &file], &words[1..]].concat());
        assert_eq!(answer.code, Some(0), "{answer:?}");
        answer.out
    };
    let shown = bucket(&["show", "api-month", "header:x-user=ann"]);
    assert!(shown.contains("default/free.month  header:x-user \"ann\"  3/month UTC  bucket "), "{shown}");
    assert!(shown.contains(" of meter api-month\n  0 left of 3, full in "), "{shown}");
    assert!(shown.contains(" of meter api-month\n  0 left of 5, full in "), "{shown}");
    assert!(!shown.contains("free.second"), "{shown}");
    let reset: Value = serde_json::from_str(&bucket(&["reset", "api-month", "header:x-user=ann", "--json"])).unwrap();
    let buckets = reset["buckets"].as_array().unwrap();
    assert_eq!((buckets.len(), &buckets[0]["meter"]), (2, &Value::from("api-month")), "{reset}");
    assert_eq!(buckets[0]["bucket"], buckets[1]["bucket"]);
    assert_eq!(bucket(&["show", "pro", "header:x-user=ann"]).matches("5 left of 5").count(), 1);
}

#[test]
fn a_shadow_counts_in_buckets_of_its_own_whatever_its_meter() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &upstream,
        "
rules:
  - {name: next, mode: shadow, limit_keys: [header:x-user], algorithm_config: {rate: 1/day}, meter: day}
  - {name: free, match: {header:x-plan: free}, limit_keys: [header:x-user], algorithm_config: {rate: 3/day, shadow: {rate: 2/day}}, meter: day}
  - {name: pro, limit_keys: [header:x-user], algorithm_config: {rate: 4/day}, meter: day}",
    );
    let mut client = gateway.client();
    assert_eq!(ask(&mut client, "free", "ann", 4).0, [200, 200, 200, 429]);
    assert_eq!(ask(&mut client, "pro", "ann", 2).0, [200, 429]);
    // Of the four requests that passed, `next` would let one pass; of the three under `free`, its shadow two.
    gateway.expect("rate_limiter_rejected_total", &["rule=\"next\"", "shadow"], 3.0);
    gateway.expect("rate_limiter_rejected_total", &["rule=\"free\"", "shadow"], 1.0);
}

#[test]
fn a_meter_that_is_added_starts_with_full_buckets_and_is_named() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, PLANS);
    let mut client = gateway.client();
    assert_eq!(ask(&mut client, "pro", "ann", 6).0, [200, 200, 200, 200, 200, 429]);
    gateway.reload(&upstream, &PLANS.replace("limit: 5", "limit: 6"));
    assert_eq!(ask(&mut client, "pro", "ann", 2).0, [200, 429]);
    gateway.reload(&upstream, &PLANS.replace("api-month", "calls"));
    gateway.expect_logged("policy default, limit free.month: meter was api-month, is calls");
    gateway.expect_logged("policy default, limit pro: meter was api-month, is calls");
    assert_eq!(ask(&mut client, "pro", "ann", 6).0, [200, 200, 200, 200, 200, 429]);
}

#[test]
fn rules_of_one_meter_share_a_bucket_of_tokens_as_well() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &upstream,
        "
rules:
  - {name: read, match: {method: GET}, limit_keys: [header:x-user], algorithm_config: {rate: 10/day}, meter: calls}
  - {name: write, limit_keys: [header:x-user], algorithm_config: {rate: 10/day, fixed_cost: 4}, meter: calls}",
    );
    let mut client = gateway.client();
    let user: &[_] = &[("X-User", "ann")];
    let mut codes = |method: &str, times: usize| -> Vec<u16> {
        (0..times).map(|_| client.send(method, "/", user, "").status).collect()
    };
    assert_eq!(codes("GET", 2), [200, 200]);
    assert_eq!(codes("POST", 3), [200, 200, 429]);
    assert_eq!(codes("GET", 1), [429]);
}

#[test]
fn explain_names_the_meter_and_what_an_override_leaves_unlimited() {
    let upstream = Upstream::start();
    let overrides = "    overrides: {acme: {month: {limit: unlimited}}, initech: {month: {limit: 7}}}\n  - name: pro";
    let gateway = Gateway::start(&upstream, &PLANS.replace("  - name: pro", overrides));
    let (file, admin) = (gateway.file("gateway.yaml").display().to_string(), gateway.admin.to_string());
    let explain = |user: &str| {
        let fields = ["X-Plan: free".to_owned(), format!("X-User: {user}")];
        let live = ["--live", "--admin", &admin];
        let words = ["explain", "-c", &file, "-H", &fields[0], "-H", &fields[1], "http://a/"];
        let answer = tollgate(&[&words[..7], &live, &words[7..]].concat());
        assert_eq!(answer.code, Some(0), "{answer:?}");
        answer.out
    };
    ask(&mut gateway.client(), "pro", "ann", 2);
    let ann = explain("ann");
    assert!(ann.contains("  3/month UTC until ") && ann.contains(" of meter api-month  1 left"), "{ann}");
    let initech = explain("initech");
    assert!(initech.contains("  7/month UTC (override) until "), "{initech}");
    let acme = explain("acme");
    assert!(acme.contains("free.month   key header:x-user \"acme\"  unlimited (override): no charge"), "{acme}");
    assert!(acme.contains("\nPASSES: free.second would pay 1, and hold 999 then\n"), "{acme}");
    let bucket = tollgate(&["bucket", "show", "-c", &file, "--admin", &admin, "free.month", "header:x-user=acme"]);
    assert_eq!(bucket.code, Some(1));
    assert!(bucket.err.contains("limit free.month is unlimited for header:x-user \"acme\""), "{bucket:?}");
}
