//! Tests sliding logs end to end: fields, refusals, overrides, a restart, and gateways with different windows.

use std::time::Duration;

use crate::support::{Gateway, Orphan, Redis, Upstream, tollgate};

#[test]
fn any_window_grants_its_limit_and_a_refusal_tells_when_enough_has_left_it() {
    let upstream = Upstream::start();
    let rules = "
rules:
  - name: sms
    limit_keys: [header:x-user]
    limits:
      second: {rps: 1000, burst: 1000}
      day: {algorithm: sliding_log, limit: 5, window: 24h, cost_source: header:x-cost, min_cost: 0.5}";
    let gateway = Gateway::start(&upstream, rules);
    let mut client = gateway.client();
    let mut ask = |cost: &str| client.get("/", &[("X-User", "a"), ("X-Cost", cost)]);
    let granted = ask("2");
    assert!(granted.field("ratelimit-policy").unwrap().contains("\"sms.day\";q=5;w=86400"), "{granted:?}");
    assert!(granted.field("ratelimit").unwrap().contains("\"sms.day\";r=3;t=86400"), "{granted:?}");
    assert_eq!([ask("2.5").status, ask("0.1").status], [200, 200]);
    let refused = ask("0.5");
    assert_eq!((refused.status, refused.field("x-tollgate-reason").as_deref()), (429, Some("sliding_log_exceeded")));
    let (reset, retry_after) = (refused.number("ratelimit-reset"), refused.number("retry-after"));
    assert!((80_000..=86_400).contains(&reset) && retry_after >= reset, "{refused:?}");
    let body: serde_json::Value = serde_json::from_str(&refused.body).unwrap();
    assert_eq!((&body["violated-policies"], body.get("resets_at")), (&serde_json::json!(["sms.day"]), None));
    let never = ask("5.5");
    assert_eq!((never.status, never.field("x-tollgate-reason").as_deref()), (429, Some("cost_too_large")));
    gateway.expect("rate_limiter_rejected_total", &["sliding_log_exceeded"], 1.0);
    let bucket = |action: &str| {
        let (file, admin) = (gateway.file("gateway.yaml").display().to_string(), gateway.admin.to_string());
        let limit = ["bucket", action, "-c", &file, "--admin", &admin, "sms", "header:x-user=a"].map(str::to_owned);
        tollgate(&limit.iter().map(String::as_str).collect::<Vec<_>>()).out
    };
    let shown = bucket("show");
    assert!(shown.contains("5 in any 1d") && shown.contains("0 left of 5, full in"), "{shown}");
    assert!(bucket("reset").contains("had 0 of 5 left"));
    assert_eq!(ask("5").status, 200);
}

#[test]
fn an_override_and_a_shadow_have_other_limits_in_the_same_window() {
    let upstream = Upstream::start();
    let rules = "
rules:
  - name: plan
    limit_keys: [header:x-user]
    algorithm: sliding_log
    algorithm_config: {limit: 2, window: 1d, shadow: {limit: 1}}
    overrides: {acme: {limit: 3}}";
    let gateway = Gateway::start(&upstream, rules);
    let mut client = gateway.client();
    let mut codes = |user: &str| (0..4).map(|_| client.get("/", &[("X-User", user)]).status).collect::<Vec<_>>();
    assert_eq!(codes("a"), [200, 200, 429, 429]);
    assert_eq!(codes("acme"), [200, 200, 200, 429]);
    gateway.expect("rate_limiter_rejected_total", &["sliding_log_exceeded", "shadow"], 3.0);
}

fn rule(limit: u64, window: &str) -> String {
    format!(
        "rules: [{{name: a, limit_keys: [], algorithm: sliding_log, algorithm_config: {{limit: {limit}, window: {window}}}}}]\n"
    )
}

fn granted(gateway: &Gateway, requests: usize) -> usize {
    let mut client = gateway.client();
    (0..requests).filter(|_| client.get("/", &[]).status == 200).count()
}

#[test]
fn a_log_of_hundreds_of_grants_is_kept_over_a_restart_and_an_upgrade() {
    let upstream = Upstream::start();
    let store = "store: {memory: {file: buckets.tgb}}\n";
    let mut gateway = Gateway::start(&upstream, &format!("{store}{}", rule(400, "1d")));
    assert_eq!(granted(&gateway, 300), 300);
    gateway.signal("TERM");
    gateway.wait();
    gateway.start_again();
    assert_eq!(granted(&gateway, 60), 60);
    gateway.signal("USR2");
    let next = Orphan::of(&gateway, 1);
    gateway.wait();
    assert_eq!(granted(&gateway, 60), 40);
    assert!(next.is_running());
}

/// Changed numbers: the reports of `check --against` and of a reload, and the effect on past grants.
#[test]
fn a_changed_file_keeps_the_grants_and_says_so() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, &rule(4, "1d"));
    assert_eq!(granted(&gateway, 3), 3);
    let old = std::fs::read_to_string(gateway.file("gateway.yaml")).unwrap();
    std::fs::write(gateway.file("old.yaml"), old).unwrap();
    let change = |rules: &str, says: &str| {
        gateway.reload(&upstream, rules);
        let path = |name: &str| gateway.file(name).display().to_string();
        let checked = tollgate(&["check", "--against", &path("old.yaml"), &path("gateway.yaml")]);
        assert!(checked.out.contains(&format!("{says}\nok\n")), "{checked:?}");
    };
    change(
        &rule(5, "1d"),
        "buckets kept: policy default, limit a: was 4 in any 1d, is 5 in any 1d; what was spent stays spent",
    );
    assert_eq!(granted(&gateway, 3), 2);
    change(
        &rule(6, "2d"),
        "buckets kept: policy default, limit a: was 4 in any 1d, is 6 in any 2d; what was spent stays spent",
    );
    assert_eq!(granted(&gateway, 3), 1);
    let other = rule(6, "2d").replace("sliding_log", "sliding_window");
    change(&other, "buckets reset: policy default, limit a: algorithm was sliding_log, is sliding_window");
    assert_eq!(granted(&gateway, 7), 6);
}

/// Two gateways on one Redis: first one of them has a shorter window, then the other.
#[test]
fn a_gateway_with_a_shorter_window_opens_no_longer_one_again() {
    let (upstream, redis) = (Upstream::start(), Redis::start());
    let start = |window: &str| Gateway::start(&upstream, &format!("{}{}", redis.patient_store(), rule(40, window)));
    let (day, second) = (start("1d"), start("1s"));
    assert_eq!(granted(&day, 50), 40);
    std::thread::sleep(Duration::from_millis(1_100));
    // The grants of the day have left the second; not one of them is forgotten.
    assert_eq!(granted(&second, 30), 30);
    assert_eq!(granted(&day, 5), 0);
    // A reload with the longer window counts what is in the log.
    second.reload(&upstream, &format!("{}{}", redis.patient_store(), rule(71, "1d")));
    assert_eq!(granted(&second, 5), 1);
}
