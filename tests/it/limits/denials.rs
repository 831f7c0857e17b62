//! Refusals by `action: deny` or `otherwise: deny`: the name of the rule or policy is reported wherever rules are named.

use serde_json::{Value, json};

use crate::status::document::eventually_reported;
use crate::support::access_log::{TO_FILE, wait_for, with_id};
use crate::support::{Gateway, Upstream, eventually, tollgate};

const POLICIES: &str = "
policies:
  - name: switch
    rules:
      - {name: closed, match: {path: /closed}, action: deny}
      - {name: trial, match: {path: /trial/*}, action: deny, mode: shadow}
  - name: members
    match: {path: /members}
    otherwise: deny
    rules: [{name: member, match: {header:x-member: yes}, action: allow}]
  - name: next
    match: {path: /trial/next}
    mode: shadow
    otherwise: deny
    rules: [{name: partner, match: {header:x-partner: x}, action: deny}]
exempt: [{path: /trial/exempt}]
";

const DENIED: &str = "rate_limiter_rejected_total";

fn labels(policy: &str, rule: &str, mode: &str) -> [String; 4] {
    [("policy", policy), ("rule", rule), ("mode", mode), ("reason", "denied")]
        .map(|(name, value)| format!("{name}=\"{value}\""))
}

#[track_caller]
fn expect(gateway: &Gateway, of: [&str; 3], count: f64) {
    let labels = labels(of[0], of[1], of[2]);
    gateway.expect(DENIED, &labels.each_ref().map(|label| &**label), count);
}

#[test]
fn a_deny_has_the_name_of_its_rule_or_policy_everywhere() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, &format!("{TO_FILE}{POLICIES}"));
    let text = crate::support::Client::connect(gateway.admin).get("/metrics", &[("Connection", "close")]).body;
    for (policy, rule, mode) in [
        ("switch", "closed", "enforce"),
        ("switch", "trial", "shadow"),
        ("members", "", "enforce"),
        ("next", "", "shadow"),
        ("next", "partner", "shadow"),
    ] {
        let series = labels(policy, rule, mode);
        let is_it = |line: &&str| line.starts_with(DENIED) && series.iter().all(|label| line.contains(&**label));
        let found: Vec<_> = text.lines().filter(is_it).collect();
        assert!(found.len() == 1 && found[0].ends_with(" 0"), "{series:?}: {found:?}");
    }
    let ask = |id: &str, path: &str, fields: &[(&str, &str)]| {
        gateway.client().get(path, &[&[("X-Request-Id", id)], fields].concat()).status
    };
    assert_eq!([ask("rule", "/closed", &[]), ask("policy", "/members", &[])], [403, 403]);
    assert_eq!(ask("member", "/members", &[("X-Member", "yes")]), 200);
    // A shadow never refuses, whether the request is exempt or not.
    let trials = [ask("s-1", "/trial/a", &[]), ask("s-2", "/trial/exempt", &[]), ask("s-3", "/trial/next", &[])];
    assert_eq!((trials, ask("s-4", "/trial/next", &[("X-Partner", "x")])), ([200; 3], 200));

    expect(&gateway, ["switch", "closed", "enforce"], 1.0);
    expect(&gateway, ["members", "", "enforce"], 1.0);
    expect(&gateway, ["switch", "trial", "shadow"], 4.0);
    expect(&gateway, ["next", "", "shadow"], 1.0);
    expect(&gateway, ["next", "partner", "shadow"], 1.0);
    gateway.expect("rate_limiter_decisions_total", &["refused"], 2.0);

    let lines = wait_for(&gateway, 7);
    for (id, policy, rule) in [
        ("rule", json!("switch"), json!("closed")),
        ("policy", json!("members"), Value::Null),
        ("member", Value::Null, Value::Null),
        ("s-1", Value::Null, Value::Null),
    ] {
        let line = with_id(&lines, id);
        assert_eq!((&line["policy"], &line["rule"]), (&policy, &rule), "{line}");
        assert!(line["cost"].is_null() && line["bucket"].is_null() && line["limits"].is_null(), "{line}");
    }

    let reported =
        eventually_reported(&gateway, "the refusals are counted", |reported| reported["refused"]["denied"] == 2);
    let rows: Vec<_> = reported["rows"].as_array().unwrap().iter().collect();
    let file = std::fs::read_to_string(gateway.file("gateway.yaml")).unwrap();
    let line = |name: &str| 1 + file.lines().position(|line| line.contains(&format!("name: {name}"))).unwrap();
    for (policy, rule, mode, at, refused) in [
        ("switch", "closed", "enforce", "closed", 1),
        ("switch", "trial", "shadow", "trial", 4),
        ("members", "", "enforce", "members", 1),
        ("next", "partner", "shadow", "partner", 1),
        ("next", "", "shadow", "next", 1),
    ] {
        let row = rows.iter().find(|row| row["policy"] == policy && row["rule"] == rule);
        let row = row.unwrap_or_else(|| panic!("no row of {policy}/{rule}: {rows:?}"));
        let expected = (&json!("deny"), &json!(mode), &json!(line(at)), &json!(refused));
        assert_eq!((&row["action"], &row["mode"], &row["line"], &row["refused"]), expected, "{row}");
    }
}

#[test]
fn explain_names_the_rule_or_policy_that_denied_a_logged_request() {
    let gateway = Gateway::start(&Upstream::start(), &format!("{TO_FILE}{POLICIES}"));
    for (id, path) in [("rule", "/closed"), ("policy", "/members")] {
        assert_eq!(gateway.client().get(path, &[("X-Request-Id", id)]).status, 403);
    }
    eventually("they are written", || {
        std::fs::read_to_string(gateway.file("access.jsonl")).is_ok_and(|log| log.lines().count() == 2)
    });
    let file = gateway.file("gateway.yaml").display().to_string();
    let text = std::fs::read_to_string(&file).unwrap();
    let line = |name: &str| 1 + text.lines().position(|line| line.contains(&format!("name: {name}"))).unwrap();
    for (id, by) in [
        ("rule", format!("by switch/closed  {file}:{}\n  no bucket is charged\n", line("closed"))),
        (
            "policy",
            format!("by members, none of whose rules applied  {file}:{}\n  no bucket is charged\n", line("members")),
        ),
    ] {
        let reported = tollgate(&["explain", "-c", &file, "--id", id]);
        assert!(reported.out.contains("REFUSED 403 denied; GET") && reported.out.ends_with(&by), "{reported:?}");
    }
    // The rules that denied them are not in the file any more.
    std::fs::write(&file, text.replace("closed,", "open,").replace("members", "others")).unwrap();
    for (id, name) in [("rule", "switch/closed"), ("policy", "members, none of whose rules applied")] {
        let reported = tollgate(&["explain", "-c", &file, "--id", id]);
        assert!(reported.out.contains(&format!("by {name}  (not in {file} any more)\n")), "{reported:?}");
    }
}
