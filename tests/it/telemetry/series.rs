//! The series that exist, and when the series of a changed configuration are removed.

use crate::support::{Client, Gateway, Redis, Upstream, eventually, now, print_measured};

/// Returns every series of `/metrics`, without its value. Each call counts as a scrape.
fn scrape(gateway: &Gateway) -> Vec<String> {
    let text = Client::connect(gateway.admin).get("/metrics", &[("Connection", "close")]).body;
    let series = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let mut series: Vec<_> = series.map(|line| line.rsplit_once(' ').unwrap().0.to_owned()).collect();
    series.sort();
    series
}

/// Returns the number of series whose name or labels contain this text.
fn count(series: &[String], text: &str) -> usize {
    series.iter().filter(|one| one.contains(text)).count()
}

#[test]
fn what_a_reload_removed_is_scraped_twice_more() {
    let upstream = Upstream::start();
    let issuer = |name: &str| {
        let keys = format!("keys: {{jwks_url: \"http://127.0.0.1:1/{name}\"}}");
        format!("\n    - {{issuer: https://{name}.example, algorithms: [ES256], {keys}}}")
    };
    let rule = |name: &str, condition: &str| {
        format!("\n      - {{name: {name}, {condition}limit_keys: [ip:address], algorithm_config: {{rate: 100/day}}}}")
    };
    let config = |issuers: &[String], rules: &[String], more: &str| {
        format!("jwt:\n  issuers:{}\npolicies:\n  - name: main\n    rules:{}{more}", issuers.concat(), rules.concat())
    };
    let extra = "\n  - {name: extra, rules: [{name: closed, match: {path: /closed}, action: deny}]}";
    let rules = [rule("stays", "match: {path: /s}, "), rule("goes", "")];
    let both = config(&[issuer("old"), issuer("new")], &rules, extra);
    let one = config(&[issuer("new")], &rules[..1], "");
    let gateway = Gateway::start(&upstream, &both);
    for _ in 0..3 {
        assert_eq!(gateway.client().get("/", &[]).status, 200);
    }
    let removed = ["rule=\"goes\"", "policy=\"extra\"", "issuer=\"https://old.example\""];
    let stays = ["rule=\"stays\"", "policy=\"main\"", "issuer=\"https://new.example\""];
    let before = scrape(&gateway);
    for text in removed.iter().chain(&stays) {
        assert!(count(&before, text) > 0, "{text}");
    }
    gateway.reload(&upstream, &one);
    let labels = ["rule=\"goes\""];
    assert_eq!(gateway.metric("rate_limiter_allowed_total", &labels), 3.0, "its last value is to be scraped");
    let second = scrape(&gateway);
    for text in removed {
        assert_eq!(count(&second, text), count(&before, text), "{text}");
    }
    let after = scrape(&gateway);
    for text in removed {
        assert_eq!(count(&after, text), 0, "{text}");
    }
    for text in stays {
        assert!(count(&after, text) > 0, "{text}");
    }
    // A rule that comes back later begins at 0, and one that comes back before two scrapes goes on.
    gateway.reload(&upstream, &both);
    assert_eq!(gateway.metric("rate_limiter_allowed_total", &labels), 0.0);
    assert_eq!(gateway.client().get("/", &[]).status, 200);
    gateway.expect("rate_limiter_allowed_total", &labels, 1.0);
    gateway.reload(&upstream, &one);
    assert_eq!(gateway.metric("rate_limiter_allowed_total", &labels), 1.0);
    gateway.reload(&upstream, &both);
    for _ in 0..4 {
        assert_eq!(gateway.metric("rate_limiter_allowed_total", &labels), 1.0);
    }
}

#[test]
fn a_limit_has_the_series_that_can_move_from_the_start() {
    const PLAIN: [&str; 4] = [
        "rate_limiter_allowed_total",
        "rate_limiter_near_limit_total",
        "rate_limiter_rejected_total",
        "rate_limiter_requests_total",
    ];
    let rules = "
  - {name: plain, limit_keys: [ip:address], algorithm_config: {rate: 9/s}}
  - {name: tried, mode: shadow, limit_keys: [ip:address], algorithm_config: {rate: 9/s}}
  - {name: priced, limit_keys: [ip:address], algorithm_config: {rate: 9/s, cost_source: query:cost}}
  - {name: capped, limit_keys: [ip:address], algorithm_config: {rate: 9/s, cost_source: query:cost, max_cost: 9}}
  - {name: open, on_store_failure: allow, limit_keys: [ip:address], algorithm_config: {rate: 9/s}}
  - {name: closed, on_store_failure: deny, limit_keys: [ip:address], algorithm_config: {rate: 9/s}}
";
    let other = "
  - name: other
    rules: [{name: else, limit_keys: [ip:address], algorithm_config: {rate: 9/s}}]
  - name: all
    otherwise: deny
    rules: [{name: some, match: {path: /x}, action: allow}]";
    let upstream = Upstream::start();
    let config = format!("policies:\n  - name: main\n    rules:{}{other}", rules.replace('\n', "\n    "));
    let of = |series: &[String], rule: &str| {
        let own = series.iter().filter(|one| one.contains(&format!("rule=\"{rule}\"")));
        let mut names: Vec<_> = own.map(|one| one.split_once('{').unwrap().0.to_owned()).collect();
        names.sort();
        names
    };
    let reasons = |series: &[String], rule: &str| -> Vec<String> {
        let rejected = series
            .iter()
            .filter(|one| one.starts_with("rate_limiter_rejected_total") && one.contains(&format!("rule=\"{rule}\"")));
        rejected.map(|one| one.split_once("reason=\"").unwrap().1.split_once('"').unwrap().0.to_owned()).collect()
    };
    let gateway = Gateway::start(&upstream, &config);
    let memory = scrape(&gateway);
    assert_eq!(of(&memory, "plain"), PLAIN);
    assert_eq!(of(&memory, "closed"), PLAIN);
    assert_eq!(of(&memory, "tried"), [PLAIN[0], PLAIN[2], PLAIN[3]]);
    assert_eq!(reasons(&memory, "plain"), ["token_bucket_exceeded"]);
    assert_eq!(reasons(&memory, "priced"), ["cost_too_large", "token_bucket_exceeded"]);
    assert_eq!(reasons(&memory, "capped"), ["token_bucket_exceeded"]);
    let unmatched: Vec<_> = memory.iter().filter(|one| one.starts_with("rate_limiter_unmatched_total")).collect();
    assert_eq!(unmatched.len(), 2, "{unmatched:?}");
    let of_calls = [
        "rate_limiter_store_calls_total",
        "rate_limiter_store_call_duration_seconds",
        "rate_limiter_store_batch_requests",
        "rate_limiter_breaker_open",
        "source=\"cached\"",
        "source=\"fallback\"",
        "tollgate_refused_requests_total{reason=\"store_unavailable\"",
    ];
    assert_eq!(of_calls.map(|text| count(&memory, text)), [0; 7]);
    assert_eq!(gateway.metric("rate_limiter_store_up", &[]), 1.0);
    drop(gateway);

    let redis = Redis::start();
    let gateway = Gateway::start(&upstream, &format!("{}\n{config}", redis.store("local")));
    let shared = scrape(&gateway);
    for text in of_calls {
        assert!(count(&shared, text) > 0, "{text}");
    }
    assert_eq!([&memory, &shared].map(|series| causes(series)), [[""; 0]; 2]);
}

/// Returns the series with a label of causes.
fn causes(series: &[String]) -> Vec<&str> {
    let is_of_cause = |one: &&str| {
        ["cause=\"", "kind=\"", "mode=\"enforce\",reason=\"store_unavailable\""].iter().any(|label| one.contains(label))
    };
    series.iter().map(String::as_str).filter(is_of_cause).collect()
}

#[test]
fn series_of_causes_appear_with_their_first_event_and_stay_over_reloads() {
    let upstream = Upstream::start();
    let mut redis = Redis::start();
    let rule = |name: &str, action: &str| {
        format!(
            "\n  - {{name: {name}, match: {{path: /{name}}}, limit_keys: [ip:address], on_store_failure: {action}, \
             algorithm_config: {{rate: 9/s}}}}"
        )
    };
    let config = |rules: &[String]| format!("{}\nrules:{}", redis.store("local"), rules.concat());
    let (open, closed) = (rule("open", "allow"), rule("closed", "deny"));
    let both = config(&[open.clone(), closed]);
    let one = config(&[open]);
    let gateway = Gateway::start(&upstream, &both);
    assert_eq!(causes(&scrape(&gateway)), [""; 0]);
    redis.kill();
    gateway.expect("rate_limiter_store_up", &[], 0.0);
    assert_eq!(["/open", "/closed"].map(|path| gateway.client().get(path, &[]).status), [200, 503]);
    let found = scrape(&gateway);
    for (rule, action) in [("open", "allow"), ("closed", "deny")] {
        let labels = format!("policy=\"default\",rule=\"{rule}\",action=\"{action}\",cause=\"");
        assert_eq!(count(&found, &labels), 1, "{found:?}");
    }
    let rejected = "rule=\"closed\",mode=\"enforce\",reason=\"store_unavailable\"";
    assert_eq!(count(&found, rejected), 1, "{found:?}");
    assert!(count(&found, "rate_limiter_store_errors_total{") > 0, "{found:?}");
    // A reload keeps those of rules that stay, and their counts.
    let reload = |text: &str| {
        gateway.reload(&upstream, text);
        (0..3).for_each(|_| drop(scrape(&gateway)));
        scrape(&gateway)
    };
    let kept = reload(&format!("{both}\n# Changed."));
    assert_eq!((count(&kept, "cause=\""), count(&kept, rejected)), (2, 1), "{kept:?}");
    gateway.expect("rate_limiter_fallback_decisions_total", &["rule=\"open\""], 1.0);
    assert_eq!(gateway.client().get("/open", &[]).status, 200);
    gateway.expect("rate_limiter_fallback_decisions_total", &["rule=\"open\""], 2.0);
    let kept = reload(&one);
    assert_eq!((count(&kept, "rule=\"open\",action=\"allow\"") >= 1, count(&kept, rejected)), (true, 0), "{kept:?}");
}

#[test]
fn a_hundred_plans_of_two_limits_on_redis_have_fewer_than_1500_series() {
    let plan = |number: usize| {
        format!(
            "\n  - {{name: plan-{number}, match: {{header:x-plan: p{number}}}, limit_keys: [ip:address], limits: {{second: \
             {{rate: 9/s}}, day: {{rate: 900/day}}}}}}"
        )
    };
    let redis = Redis::start();
    let plans: String = (0..100).map(plan).collect();
    let gateway = Gateway::start(&Upstream::start(), &format!("{}\nrules:{plans}", redis.store("local")));
    let series = scrape(&gateway);
    print_measured(&format!("100 plans of two limits on Redis: {} series", series.len()));
    assert!(series.len() < 1500, "{} series", series.len());
    // Each limit has its own from the start.
    for name in ["requests", "allowed", "rejected", "near_limit"] {
        assert_eq!(count(&series, &format!("rate_limiter_{name}_total{{policy=\"default\"")), 200, "{name}");
    }
}

#[test]
fn an_issuer_whose_keys_were_never_fetched_has_a_series_at_0() {
    let upstream = Upstream::start();
    let gateway =
        Gateway::start(&upstream, "jwt: {algorithms: [ES256], keys: {jwks_url: \"http://127.0.0.1:1/keys\"}}");
    let name = "tollgate_jwks_last_success_timestamp_seconds{issuer=\"default\"}";
    eventually("the fetch fails", || gateway.has_logged("keys not fetched"));
    assert_eq!(count(&scrape(&gateway), name), 1);
    gateway.expect("tollgate_jwks_last_success_timestamp_seconds", &[], 0.0);
    let status = Client::connect(gateway.admin).get("/status.json", &[]).json();
    assert_eq!(status["issuers"], serde_json::json!([{"issuer": "default", "fetched": null}]));
}

/// Returns 20 rules whose names differ in every round.
fn renamed(round: usize) -> String {
    let rule = |number: usize| {
        format!(
            "\n  - {{name: r{round}-{number}, limit_keys: [ip:address], match: {{path: /{number}}}, algorithm_config: {{rate: 9/s}}}}"
        )
    };
    format!("rules:{}", (0..20).map(rule).collect::<String>())
}

#[test]
fn two_hundred_reloads_of_renamed_rules_leave_lines_and_memory_as_they_are() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, &renamed(0));
    let first = scrape(&gateway).len();
    let reload = |round: usize| {
        let text = Gateway::text(&format!("http://{}", upstream.address), &renamed(round));
        std::fs::write(gateway.file("gateway.yaml.new"), text).unwrap();
        std::fs::rename(gateway.file("gateway.yaml.new"), gateway.file("gateway.yaml")).unwrap();
        gateway.signal("HUP");
        let log = || std::fs::read_to_string(gateway.file("stderr")).unwrap();
        eventually("the configuration is in force", || log().matches("configuration reloaded").count() >= round);
        assert_eq!(gateway.client().get("/1", &[]).status, 200);
    };
    let start = now();
    let mut resident = Vec::new();
    // Nothing scrapes for half of the reloads; during the other half, as often as they happen.
    for round in 1..=100 {
        reload(round);
        resident.push(gateway.resident_bytes());
    }
    let lines: Vec<usize> = (0..3).map(|_| scrape(&gateway).len()).collect();
    for round in 101..=200 {
        reload(round);
        let lines = scrape(&gateway).len();
        // Those of this reload and of the two before it at most.
        assert!(lines < 3 * first, "{lines} lines, {first} at the start");
        resident.push(gateway.resident_bytes());
    }
    let (early, late) = (resident[20..60].iter().max().unwrap(), resident[160..].iter().max().unwrap());
    print_measured(&format!(
        "series: {first} lines, {lines:?} after 100 reloads, at most {early} bytes early and {late} late, {:?}",
        start.elapsed()
    ));
    assert!(lines[0] <= 2 * first, "{lines:?} lines, {first} at the start");
    assert!(lines[2] <= first + 4, "{lines:?} lines, {first} at the start");
    assert!(late < &(early + (8 << 20)), "{early} bytes, then {late}");
}
