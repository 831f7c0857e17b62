//! Overrides in a separate file: the gateway reads it and its changes, and all commands know it.

use crate::support::{Gateway, Upstream, eventually, tollgate};

const CONFIG: &str = "
rules:
  - name: org
    limit_keys: [header:x-org]
    algorithm_config: {rate: 1/day}
    overrides: {first: {rate: 2/day}}
    overrides_file: {file: contracts.csv, max_shrink: 40%}
  - name: rest
    limit_keys: [query:user]
    limits:
      day: {algorithm: fixed_window, limit: 1, window: 1d}
      month: {algorithm: fixed_window, limit: 9, window: 30d}
    overrides_file: users.yaml
check: {allow: [unverified_key, double_first_period]}
";
const CONTRACTS: &str = "# ours\r\nvalue,rate,burst\r\nacme,3/day,\r\nfirst,4/day,\r\n\"a, b\",,2\r\nglobex,9/day,9\n";
const USERS: &str = "ann: {day: {limit: 2}}\nbob: {day: {limit: unlimited}, month: {limit: 3}}\n";

fn start() -> Gateway {
    let files = [("contracts.csv", CONTRACTS), ("users.yaml", USERS)];
    Gateway::before(&Upstream::start()).with(CONFIG).files(&files).start()
}

/// Returns how many of ten requests pass.
fn pass(gateway: &Gateway, target: &str, org: Option<&str>) -> usize {
    let fields: Vec<_> = org.map(|org| ("X-Org", org)).into_iter().collect();
    let mut client = gateway.client();
    (0..10).filter(|_| client.get(target, &fields).status == 200).count()
}

#[test]
fn a_file_of_overrides_gives_values_their_numbers_and_is_followed() {
    let gateway = start();
    // What stands in the rule comes first.
    for (org, count) in [("acme", 3), ("first", 2), ("a, b", 2), ("other", 1)] {
        assert_eq!(pass(&gateway, "/", Some(org)), count, "{org}");
    }
    for (user, count) in [("ann", 2), ("bob", 3), ("eve", 1)] {
        assert_eq!(pass(&gateway, &format!("/?user={user}"), None), count, "{user}");
    }
    gateway.expect("tollgate_list_entries", &["file=\"contracts.csv\""], 4.0);
    gateway.expect("tollgate_list_entries", &["file=\"users.yaml\""], 2.0);
    assert!(gateway.metric("tollgate_list_last_success_timestamp_seconds", &["file=\"contracts.csv\""]) > 1e9);
    // A new contract holds at once, and what was spent stays spent.
    std::fs::write(gateway.file("contracts.csv"), CONTRACTS.replace("acme,3", "acme,8")).unwrap();
    eventually("the change is in force", || {
        gateway.has_logged("overrides have other numbers; what was spent stays spent")
    });
    assert_eq!(pass(&gateway, "/", Some("acme")), 5);
}

#[test]
fn a_wrong_line_and_a_file_that_has_shrunk_change_nothing_and_are_named() {
    let gateway = start();
    std::fs::write(gateway.file("contracts.csv"), "value,rate\nacme,8/day\nother,often\n").unwrap();
    let wrong =
        "contracts.csv:3:7: other.rate: must be a rate like 20/s, 600/min, 5000/hour, 10000/day or 100/15m, is `often`";
    eventually("the line is named", || gateway.has_logged(wrong));
    assert_eq!((pass(&gateway, "/", Some("acme")), pass(&gateway, "/", Some("other"))), (3, 1));
    let file = gateway.file("gateway.yaml");
    let checked = tollgate(&["check", file.to_str().unwrap()]);
    assert!(checked.err.contains(wrong) && checked.err.ends_with("1 problem\n"), "{checked:?}");
    std::fs::write(gateway.file("contracts.csv"), "value,rate\nacme,8/day\nglobex,8/day\n").unwrap();
    eventually("it is refused", || gateway.has_logged("the list has 2 of 4 entries left, and may lose 40% at once"));
    assert_eq!(pass(&gateway, "/", Some("a, b")), 2);
    std::fs::remove_file(gateway.file("users.yaml")).unwrap();
    eventually("it is missed", || gateway.has_logged("rules[1].overrides_file: must be a readable file"));
    assert_eq!(pass(&gateway, "/?user=ann", None), 2);
}

#[test]
fn explain_replay_and_bucket_know_the_overrides_of_a_file() {
    let gateway = start();
    let file = gateway.file("gateway.yaml");
    let file = file.to_str().unwrap();
    let explained = tollgate(&["explain", "-c", file, "-H", "X-Org: a, b", "/"]);
    assert!(explained.out.contains("1/day burst 2"), "{explained:?}");
    let line = "203.0.113.1 - - [21/Nov/2026:12:00:00 +0000] \"GET /?user=ann HTTP/1.1\" 200 5 \"-\" \"curl\"\n";
    let log = gateway.file("a.log");
    std::fs::write(&log, line.repeat(3)).unwrap();
    let replayed = tollgate(&["replay", "-c", file, "--absent", "header:x-org", "--json", log.to_str().unwrap()]);
    assert_eq!(replayed.json()["files"][0]["refused"], 1, "{replayed:?}");
    assert_eq!(pass(&gateway, "/", Some("acme")), 3);
    let shown =
        tollgate(&["bucket", "show", "-c", file, "--admin", &gateway.admin.to_string(), "org", "header:x-org=acme"]);
    assert!(shown.out.contains("burst 3 (override)"), "{shown:?}");
}

#[test]
fn a_hundred_thousand_overrides_start_and_reload() {
    let lines: String = (0..100_000).map(|number| format!("customer-{number},,{}\n", 2 + number % 5)).collect();
    let content = format!("value,rate,burst\n{lines}");
    let config = CONFIG.split("  - name: rest").next().unwrap();
    let gateway = Gateway::before(&Upstream::start()).with(config).files(&[("contracts.csv", &content)]).start();
    gateway.expect("tollgate_list_entries", &["file=\"contracts.csv\""], 100_000.0);
    assert_eq!((pass(&gateway, "/", Some("customer-99999")), pass(&gateway, "/", Some("customer-1"))), (6, 3));
    std::fs::write(gateway.file("contracts.csv"), format!("{content}one-more,,2\n")).unwrap();
    eventually("one too many is named", || {
        gateway.has_logged("contracts.csv:100002:1: is one override too many: at most 100000, there are 100001")
    });
}
