//! Rules for roles and scopes: claims that are lists, in tokens, in the log, in `explain` and in `replay`.

use std::fmt::Write;

use base::pseudonym::PseudonymKey;
use serde_json::{Value, json};

use crate::support::access_log::{wait_for, with_id};
use crate::support::mint::{Signer, epoch, with};
use crate::support::{Gateway, Upstream, tollgate};

const SECRET: &str = "0123456789abcdef0123456789abcdef";
const JWT: &str = "jwt: {algorithms: [HS256], keys: {secret: 0123456789abcdef0123456789abcdef}}\n";

const RULES: &str = "
policies:
  - name: roles
    rules:
      - {name: banned, match: {jwt:roles: banned}, action: deny}
      - {name: admin, match: {jwt:realm.roles: [admin, root]}, limit_keys: [jwt:sub], algorithm_config: {rate: 99/day}}
      - {name: lead, match: {jwt:roles: {prefix: team-, suffix: -lead}}, limit_keys: [jwt:sub], algorithm_config: {rate: 99/day}}
      - {name: numbered, match: {jwt:roles: {regex: '^[0-9]+$', not: [0, none]}}, limit_keys: [jwt:sub], algorithm_config: {rate: 99/day}}
      - {name: writer, match: {words(jwt:scope): write}, limit_keys: [jwt:sub], algorithm_config: {rate: 99/day}}
      - {name: whole, match: {jwt:scope: read all}, limit_keys: [jwt:sub], algorithm_config: {rate: 99/day}}
      - {name: by-role, match: {jwt:roles: [solo, pair]}, limit_keys: [jwt:roles], algorithm_config: {rate: 99/day}}
      - {name: some, match: {jwt:roles: {present: true}}, limit_keys: [jwt:sub], algorithm_config: {rate: 99/day}}
      - {name: none, match: {jwt:roles: {present: false}}, limit_keys: [jwt:sub], algorithm_config: {rate: 99/day}}
";

/// Returns the claims of a request besides `sub`, and the rule that applies.
fn rows() -> Vec<(Value, &'static str)> {
    vec![
        (json!({"roles": ["dev", "banned"]}), "banned"),
        (json!({"roles": "banned"}), "banned"),
        (json!({"realm": {"roles": ["dev", "root"]}}), "admin"),
        (json!({"realm": {"roles": ["dev", "admin"]}, "roles": ["banned"]}), "banned"),
        // Each operator by itself.
        (json!({"roles": ["team-a", "qa-lead"]}), "lead"),
        (json!({"roles": ["team-a-lead"]}), "lead"),
        (json!({"roles": ["team-a", "qa"]}), "some"),
        (json!({"roles": ["dev", 7]}), "numbered"),
        (json!({"roles": [7, "none"]}), "some"),
        (json!({"roles": [7, 0]}), "some"),
        (json!({"scope": "read write"}), "writer"),
        (json!({"scope": ["read", "write"]}), "writer"),
        (json!({"scope": "read writer"}), "none"),
        (json!({"scope": "read all"}), "whole"),
        (json!({"scope": ["read all"]}), "whole"),
        (json!({"scope": ["read", "all"]}), "none"),
        // As a limit key a list is missing.
        (json!({"roles": "solo"}), "by-role"),
        (json!({"roles": ["solo"]}), "some"),
        (json!({"roles": ["solo", "pair"]}), "some"),
        // Empty, or with anything but texts and integers in it.
        (json!({"roles": []}), "none"),
        (json!({"roles": ["banned", true]}), "none"),
        (json!({"roles": ["banned", 1.5]}), "none"),
        (json!({"roles": ["banned", null]}), "none"),
        (json!({"roles": ["banned", ["dev"]]}), "none"),
        (json!({"roles": [{"name": "banned"}]}), "none"),
        (json!({}), "none"),
    ]
}

fn token(claims: &Value) -> String {
    let claims = with(&with(claims, "sub", json!("ann")), "exp", json!(epoch() + 600));
    format!("Bearer {}", Signer::hs256(SECRET).token(&json!({"alg": "HS256"}), &claims))
}

/// Returns the rule that decided.
fn decided(gateway: &Gateway, claims: &Value, id: &str) -> String {
    let response = gateway.client().get("/", &[("Authorization", &token(claims)), ("X-Request-Id", id)]);
    let policy = response.field("RateLimit-Policy").unwrap_or_default();
    match response.status {
        403 => "banned".to_owned(),
        _ => policy.split(';').next().unwrap_or_default().trim_matches('"').to_owned(),
    }
}

#[test]
fn a_rule_applies_if_one_element_of_a_list_is_what_it_expects() {
    // A short list of rules is searched one by one, a long one by an index.
    let more: String = (0..20).fold(String::new(), |mut more, number| {
        let _ = writeln!(more, "      - {{name: r{number}, match: {{jwt:roles: r{number}}}, action: allow}}");
        more
    });
    let short = RULES.lines().filter(|line| !line.contains("name: whole") && !line.contains("name: by-role"));
    let short = short.collect::<Vec<_>>().join("\n") + "\n";
    for (rules, missing) in [(&short, ["whole", "by-role"]), (&(RULES.to_owned() + &more), ["", ""])] {
        let gateway = Gateway::start(&Upstream::start(), &format!("{JWT}{rules}"));
        for (claims, rule) in rows().iter().filter(|(_, rule)| !missing.contains(rule)) {
            assert_eq!(decided(&gateway, claims, "id"), *rule, "{claims}");
        }
    }
}

#[test]
fn explain_names_the_rule_that_decides_and_the_element() {
    let gateway = Gateway::start(&Upstream::start(), &format!("{JWT}{RULES}"));
    let file = gateway.file("gateway.yaml").display().to_string();
    for (claims, rule) in rows() {
        let claims = with(&claims, "sub", json!("ann")).to_string();
        let told = tollgate(&["explain", "-c", &file, "--claims", &claims, "--json", "/"]).json();
        let rules = told["policies"][0]["rules"].as_array().unwrap();
        let applies: Vec<_> = rules.iter().filter(|rule| rule["applies"] == "yes").map(|rule| &rule["name"]).collect();
        assert_eq!(applies, [rule], "{claims}");
    }
    let page = |claims: &str| tollgate(&["explain", "-c", &file, "--claims", claims, "/"]).out;
    let lead = page(r#"{"sub":"ann","roles":["dev","team-a","qa-lead"]}"#);
    for part in [
        r#"jwt:roles has "dev", "team-a", "qa-lead", wants "banned""#,
        r#"jwt:roles has "team-a" and jwt:roles has "qa-lead""#,
    ] {
        assert!(lead.contains(part), "{part}: {lead}");
    }
    let banned = page(r#"{"sub":"ann","roles":["dev","banned"]}"#);
    assert!(banned.contains(r#"deny: refuses with 403, before any charge; jwt:roles has "banned""#), "{banned}");
    let writer = page(r#"{"sub":"ann","scope":"read write"}"#);
    assert!(writer.contains(r#"words(jwt:scope) has "write""#), "{writer}");
}

#[test]
fn a_logged_list_is_replayed_as_it_was_decided() {
    let log = "access_log: {to: access.jsonl, attributes: [jwt:sub, jwt:roles, jwt:realm.roles, jwt:scope]}\n";
    // The log has names: it cannot decide parts of a text, nor its words.
    let rules = RULES.lines().filter(|line| !["lead", "numbered", "writer"].iter().any(|name| line.contains(name)));
    let rules = rules.collect::<Vec<_>>().join("\n");
    let gateway = Gateway::start(&Upstream::start(), &format!("{JWT}{log}{rules}\n"));
    let rows = rows();
    for (index, (claims, _)) in rows.iter().enumerate() {
        decided(&gateway, claims, &format!("r-{index}"));
    }
    let lines = wait_for(&gateway, rows.len());
    let name = |text: &str| PseudonymKey::default().value("jwt:roles", text.as_bytes()).to_string();
    assert_eq!(with_id(&lines, "r-0")["attributes"]["jwt:roles"], json!([name("dev"), name("banned")]));
    assert_eq!(with_id(&lines, "r-1")["attributes"]["jwt:roles"], json!(name("banned")));
    assert_eq!(with_id(&lines, "r-7")["attributes"]["jwt:roles"], json!([name("dev"), name("7")]));
    assert!(with_id(&lines, "r-19")["attributes"].get("jwt:roles").is_none());

    let path = |name: &str| gateway.file(name).display().to_string();
    let (file, log) = (path("gateway.yaml"), path("access.jsonl"));
    let told = tollgate(&["replay", "-c", &file, "--json", &log]).json();
    let denied = lines.iter().filter(|line| line["code"] == 403).count();
    let counts = ["allowed", "refused", "undecided"].map(|key| told["files"][0][key].as_u64().unwrap());
    assert_eq!(counts, [rows.len() as u64 - denied as u64, denied as u64, 0], "{told}");
    assert!(denied > 2, "{lines:?}");

    let told = tollgate(&["explain", "-c", &file, "--id", "r-0", "--log", &log]).out;
    assert!(told.contains(&format!("jwt:roles  {}\n", name("dev"))), "{told}");
    assert!(told.contains(&format!("jwt:roles  {}  \"banned\"\n", name("banned"))), "{told}");
}

#[test]
fn the_words_of_a_logged_scope_are_not_known() {
    let log = "access_log: {to: access.jsonl, attributes: [jwt:sub, jwt:scope]}\n";
    let rules = "rules: [{name: writer, match: {words(jwt:scope): write}, action: deny}]\n";
    let gateway = Gateway::start(&Upstream::start(), &format!("{JWT}{log}{rules}"));
    for scope in [json!({"scope": "read"}), json!({"scope": "read all"}), json!({"sub": "bob"})] {
        decided(&gateway, &scope, "id");
    }
    wait_for(&gateway, 3);
    let path = |name: &str| gateway.file(name).display().to_string();
    let told = tollgate(&["replay", "-c", &path("gateway.yaml"), "--json", &path("access.jsonl")]).json();
    // The words of the two that have a scope: what was decided then is decided again.
    let file = &told["files"][0];
    assert_eq!(
        file["as_logged"],
        json!([{"policy": "default", "lines": 2, "lacking": ["words(jwt:scope)"]}]),
        "{told}"
    );
    assert_eq!(file["missing"], json!([{"attribute": "words(jwt:scope)", "lines": 1}]), "{told}");
}

#[test]
fn a_log_of_an_application_may_have_lists() {
    let gateway = Gateway::start(&Upstream::start(), &format!("{JWT}{RULES}"));
    let log = gateway.file("app.jsonl");
    let line = |claims: &Value| {
        let at = "2026-11-21T14:51:52Z";
        format!("{}\n", json!({"at": at, "sub": "ann", "claims": claims, "realm": claims["realm"]["roles"]}))
    };
    let rows = rows();
    std::fs::write(&log, rows.iter().map(|(claims, _)| line(claims)).collect::<String>()).unwrap();
    let map = "time=at,jwt:sub=sub,jwt:roles=claims.roles,jwt:realm.roles=realm,jwt:scope=claims.scope";
    let path = |name: &str| gateway.file(name).display().to_string();
    let told = tollgate(&["replay", "-c", &path("gateway.yaml"), "--map", map, "--json", &path("app.jsonl")]).json();
    let denied = rows.iter().filter(|(_, rule)| *rule == "banned").count();
    let counts = ["allowed", "refused", "undecided"].map(|key| told["files"][0][key].as_u64().unwrap());
    assert_eq!(counts, [rows.len() as u64 - denied as u64, denied as u64, 0], "{told}");
}
