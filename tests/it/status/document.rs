//! The response with the status page, and the document that the page loads.

use serde_json::{Value, json};

use crate::support::{Client, Gateway, Response, Upstream, eventually, now, print_measured};

pub const BROWSER: (&str, &str) = ("Accept", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8");

pub const RULES: &str = "
policies:
  - name: block
    rules:
      - {name: partner, match: {query:partner: x}, action: deny, expires: 2999-01-01T00:00:00Z}
      - {name: probes, match: {path: /healthz}, action: allow}
  - name: plans
    rules:
      - {name: user, limit_keys: [query:user], algorithm_config: {rate: 2/day, burst: 2, shadow: {rate: 1/day, burst: 1}}}
      - {name: several, match: {path: /several}, limit_keys: [ip:address], limits: {s: {rate: 9/s}, d: {rate: 99/day}}}
  - name: next
    mode: shadow
    rules:
      - {name: trial, limit_keys: [query:user], algorithm_config: {rate: 1/day, burst: 1}}";

pub fn ask(gateway: &Gateway, target: &str, fields: &[(&str, &str)]) -> Response {
    Client::connect(gateway.admin).get(target, fields)
}

pub fn document(gateway: &Gateway) -> Value {
    let response = ask(gateway, "/status.json", &[]);
    assert_eq!((response.status, response.field("content-type").as_deref()), (200, Some("application/json")));
    response.json()
}

/// Waits for a document for which `holds` is true. A document is sent again for half a second.
#[track_caller]
pub fn eventually_reported(gateway: &Gateway, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
    let mut reported = Value::Null;
    eventually(what, || {
        reported = document(gateway);
        holds(&reported)
    });
    reported
}

fn row<'d>(document: &'d Value, rule: &str, mode: &str) -> &'d Value {
    let rows = document["rows"].as_array().unwrap();
    rows.iter().find(|row| row["rule"] == rule && row["mode"] == mode).unwrap_or_else(|| panic!("no {rule} {mode}"))
}

#[test]
fn a_browser_gets_the_page_and_others_the_list() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, RULES);
    let page = ask(&gateway, "/", &[BROWSER]);
    assert_eq!((page.status, page.field("content-type").as_deref()), (200, Some("text/html; charset=utf-8")));
    assert!(page.body.starts_with("<!doctype html>") && page.body.contains("<noscript>"));
    let policy = page.field("content-security-policy").unwrap();
    for directive in ["default-src 'none'", "script-src 'sha256-", "style-src 'sha256-", "connect-src 'self'"] {
        assert!(policy.contains(directive), "{policy}");
    }
    assert!(policy.contains("frame-ancestors 'none'") && !policy.contains("unsafe"), "{policy}");
    for (name, value) in
        [("x-content-type-options", "nosniff"), ("cache-control", "no-store"), ("referrer-policy", "no-referrer")]
    {
        assert_eq!(page.field(name).as_deref(), Some(value));
        assert_eq!(ask(&gateway, "/status.json", &[]).field(name).as_deref(), Some(value));
    }
    for fields in [&[][..], &[("Accept", "*/*")]] {
        let list = ask(&gateway, "/", fields);
        assert_eq!((list.status, list.field("content-type").as_deref()), (200, Some("text/plain; charset=utf-8")));
        assert!(list.body.contains("/metrics\n/status.json\n"), "{}", list.body);
        assert_eq!((list.field("vary"), page.field("vary")), (Some("Accept".into()), Some("Accept".into())));
    }
}

#[test]
fn the_page_and_its_document_are_for_get_and_head() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "");
    for target in ["/", "/status.json"] {
        let head = Client::connect(gateway.admin).send("HEAD", target, &[BROWSER], "");
        assert_eq!((head.status, &*head.body), (200, ""));
        assert!(head.number("content-length") > 500);
        for method in ["POST", "PUT", "DELETE"] {
            assert_eq!(Client::connect(gateway.admin).send(method, target, &[BROWSER], "").status, 405);
        }
    }
    // None of it is on the public listener.
    gateway.client().get("/status.json", &[]);
    assert_eq!(upstream.last().line, "GET /status.json HTTP/1.1");
}

#[test]
fn the_document_has_every_rule_with_its_line_and_counts_what_metrics_count() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, RULES);
    let first = document(&gateway);
    assert_eq!(first["status"], "ready");
    assert_eq!(first["version"], env!("CARGO_PKG_VERSION"));
    assert!(!first["host"].as_str().unwrap().is_empty());
    assert_eq!((&first["store"]["kind"], &first["store"]["up"]), (&"memory".into(), &true.into()));
    assert_eq!(first["config"]["last_reload_successful"], true);
    assert!(first["now"].as_f64().unwrap() >= first["config"]["loaded"].as_f64().unwrap());

    let text = std::fs::read_to_string(gateway.file("gateway.yaml")).unwrap();
    let line = |name: &str| 1 + text.lines().position(|line| line.contains(&format!("name: {name},"))).unwrap();
    let warning = json!({"name": "unverified_key", "path": "policies[1].rules[0].limit_keys", "line": line("user")});
    assert_eq!(first["warnings"][0], warning);
    let rows = first["rows"].as_array().unwrap();
    let named: Vec<_> =
        rows.iter().map(|row| [&row["rule"], &row["mode"], &row["action"]].map(|v| v.as_str().unwrap())).collect();
    assert_eq!(
        named,
        [
            ["partner", "enforce", "deny"],
            ["probes", "enforce", "allow"],
            ["user", "enforce", "charge"],
            ["user", "shadow", "charge"],
            ["several.s", "enforce", "charge"],
            ["several.d", "enforce", "charge"],
            ["trial", "shadow", "charge"],
        ]
    );
    for (rule, name) in [("partner", "partner"), ("user", "user"), ("several.d", "several"), ("trial", "trial")] {
        let row = rows.iter().find(|row| row["rule"] == rule).unwrap();
        assert_eq!(row["line"], line(name), "{rule}");
    }
    assert_eq!(row(&first, "partner", "enforce")["until"], 32_472_144_000.0);
    assert_eq!(row(&first, "user", "enforce")["keys"], "query:user");
    assert!(row(&first, "user", "enforce")["numbers"].as_str().unwrap().contains("2/d"), "{first}");

    let mut client = gateway.client();
    for _ in 0..5 {
        client.get("/?user=the-name-of-a-client", &[]);
    }
    client.get("/?partner=x", &[]);
    client.get("/unmatched", &[]);
    let reported = eventually_reported(&gateway, "seven requests are reported", |reported| {
        reported["answers"]["gateway"] == 4 && reported["answers"]["upstream"] == 3
    });
    for (rule, mode, asked, allowed, refused) in [
        ("user", "enforce", 5, 2, 3),
        ("user", "shadow", 2, 1, 1),
        ("trial", "shadow", 2, 1, 1),
        ("several.s", "enforce", 0, 0, 0),
    ] {
        let row = row(&reported, rule, mode);
        let counts = ["asked", "allowed", "refused"].map(|count| row[count].as_u64().unwrap());
        assert_eq!(counts, [asked, allowed, refused], "{rule} {mode}");
    }
    assert_eq!(row(&reported, "user", "enforce")["near"], 1);
    assert_eq!((&reported["decisions"]["refused"], &reported["decisions"]["allowed"]), (&4.into(), &2.into()));
    assert_eq!((&reported["refused"]["token_bucket_exceeded"], &reported["refused"]["denied"]), (&3.into(), &1.into()));
    // Not `block`, which limits nobody.
    assert_eq!(reported["unmatched"], json!({"plans": 1, "next": 1}));
    // Those that asked the store.
    assert_eq!(reported["decision_seconds"]["counts"].as_array().unwrap().last().unwrap(), 5);
    let upstream_seconds = &reported["upstream_seconds"];
    let [bounds, counts] = ["bounds", "counts"].map(|part| upstream_seconds[part].as_array().unwrap().len());
    assert_eq!(bounds + 1, counts);
    // Rates are reckoned by it.
    assert!(reported["uptime"].as_f64().unwrap() > first["uptime"].as_f64().unwrap());
    assert_eq!(reported["started"], first["started"]);
    // A single endpoint has its own row.
    let endpoint = upstream.address.to_string();
    assert_eq!(
        (&reported["endpoints"][0]["endpoint"], &reported["endpoints"][0]["requests"]),
        (&json!(endpoint), &json!(3))
    );
    // Nothing that a client has sent.
    let text =
        reported.to_string().replace(&gateway.admin.to_string(), "its own address").replace(&endpoint, "upstream");
    assert!(!text.contains("the-name-of-a-client") && !text.contains("127.0.0.1"), "{text}");
}

#[test]
fn the_document_reports_a_reload_and_an_invalid_file() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, RULES);
    let first = document(&gateway);
    gateway.reload(&upstream, "rules: [{name: other, limit_keys: [ip:address], algorithm_config: {rate: 1/s}}]");
    let reported = eventually_reported(&gateway, "the other file is reported", |reported| {
        reported["config"]["hash"] != first["config"]["hash"]
    });
    let rules: Vec<_> = reported["rows"].as_array().unwrap().iter().map(|row| row["rule"].as_str().unwrap()).collect();
    assert_eq!(rules, ["other"]);
    assert_eq!(reported["warnings"], json!([]));
    assert_eq!(reported["unmatched"].as_object().unwrap().len(), 0);
    std::fs::write(gateway.file("gateway.yaml"), "rules: 1").unwrap();
    gateway.signal("HUP");
    let wrong = eventually_reported(&gateway, "the wrong file is reported", |reported| {
        reported["config"]["last_reload_successful"] == false
    });
    assert_eq!(wrong["config"]["hash"], reported["config"]["hash"]);
}

#[test]
fn the_document_of_a_thousand_rules_is_bounded_and_cached() {
    use std::fmt::Write as _;

    let upstream = Upstream::start();
    let mut rules = String::from("rules:");
    for number in 0..1000 {
        let limit = "algorithm_config: {rate: 100/s, burst: 200}";
        let _ = write!(
            rules,
            "\n  - {{name: customer-{number:04}, match: {{path: /{number}/*}}, limit_keys: [ip:address], {limit}}}"
        );
    }
    let gateway = Gateway::start(&upstream, &rules);
    let mut client = Client::connect(gateway.admin);
    let start = now();
    let first = client.get("/status.json", &[]);
    let took = start.elapsed();
    assert_eq!(first.json()["rows"].as_array().unwrap().len(), 1000);
    assert!(first.body.len() < 250_000, "{} bytes", first.body.len());
    // However many look, it is made twice a second at most.
    let start = now();
    let uptimes: Vec<_> = (0..20).map(|_| client.get("/status.json", &[]).json()["uptime"].to_string()).collect();
    let made = uptimes.windows(2).filter(|pair| pair[0] != pair[1]).count();
    assert!(made as u128 <= start.elapsed().as_millis() / 500 + 1, "{made} within {:?}", start.elapsed());
    print_measured(&format!("status.json, 1000 rules: {} bytes, made in {took:?}", first.body.len()));
}
