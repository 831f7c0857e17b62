//! The warnings of lints are true: for random policies, requests of every kind confirm each warning.

use std::collections::HashMap;
use std::path::Path;

use base::time::Timestamp;
use config::{Config, Environment};
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use request::client_address::ClientAddress;
use request::identity::Claims;
use request::request::Request;
use rules::denier::DenierId;
use rules::rule_set::{Answer, Ruling};
use serde_json::json;

const JWT: &str = "jwt: {algorithms: [HS256], keys: {secret: 0123456789abcdef0123456789abcdef}}\n";
const CONDITIONS: &[&str] = &[
    "path: /v1",
    "path: /v1/*",
    "path: [/v1/x/*, /v2]",
    "path: {prefix: /v1}",
    "path: {prefix: /v1/x}",
    "path: {not: [/v1/x/*, /v2]}",
    "path: {not: /v1/*}",
    "path: {regex: ^/v1/x}",
    "path: {suffix: /y}",
    "method: GET",
    "method: [GET, POST]",
    "method: {not: GET}",
    "header:a: x",
    "header:a: [x, y]",
    "header:a: {present: true}",
    "header:a: {present: false}",
    "header:a: {prefix: x}",
    "header:a: {suffix: y, not: y}",
    "header:a: {not: [x, y]}",
    "header:b: {present: true}",
    "ip:address: {cidr: 10.0.0.0/8}",
    "ip:address: {cidr: [10.1.0.0/16, 192.0.2.0/24]}",
    "ip:address: 10.1.2.3",
    "ip:address: {not: 10.1.2.3}",
];
const KEYS: &[&str] = &[
    "",
    "ip:address",
    "header:a",
    "header:b",
    "\"header:a|ip:address\"",
    "header:a, header:b",
    "\"header:a|header:b\"",
];

/// Conditions on attributes that may be lists.
const CLAIM_CONDITIONS: &[&str] = &[
    "jwt:roles: a",
    "jwt:roles: b",
    "jwt:roles: [a, b]",
    "jwt:roles: {not: a}",
    "jwt:roles: {not: [a, b]}",
    "jwt:roles: {in: [a, b], not: b}",
    "jwt:roles: {prefix: a}",
    "jwt:roles: {suffix: b, not: b}",
    "jwt:roles: {regex: ^a}",
    "jwt:roles: {present: true}",
    "jwt:roles: {present: false}",
    "words(jwt:scope): a",
    "words(jwt:scope): [a, b]",
    "words(jwt:scope): {not: a}",
    "words(jwt:scope): {present: true}",
    "words(jwt:scope): {present: false}",
    "jwt:sub: {present: true}",
];
const CLAIM_KEYS: &[&str] =
    &["", "ip:address", "jwt:roles", "jwt:sub", "\"jwt:roles|ip:address\"", "jwt:roles, jwt:sub"];

/// The text of one rule: its match, its limit keys, and its action.
#[derive(Clone, Debug)]
struct RuleText {
    matched: String,
    keys: &'static str,
    action: &'static str,
}

fn matched(conditions: &'static [&'static str]) -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(conditions), 0..3).prop_map(|conditions| {
        let mut by_attribute = HashMap::new();
        by_attribute.extend(conditions.into_iter().map(|one| (one.split(": ").next(), one)));
        by_attribute.into_values().collect::<Vec<_>>().join(", ")
    })
}

fn rules(conditions: &'static [&'static str], keys: &'static [&'static str]) -> impl Strategy<Value = Vec<RuleText>> {
    let action = prop::sample::select(vec!["charge", "charge", "allow", "deny", "charge, mode: shadow"]);
    let rule = (matched(conditions), prop::sample::select(keys), action);
    prop::collection::vec(rule.prop_map(|(matched, keys, action)| RuleText { matched, keys, action }), 1..14)
}

fn parse(scope: &str, otherwise: &str, rules: &[RuleText]) -> Config {
    let rule = |(number, RuleText { matched, keys, action }): (usize, &RuleText)| {
        let action = match action.strip_prefix("charge") {
            Some(mode) => format!("algorithm_config: {{rps: 1, burst: 1}}{mode}"),
            None => format!("action: {action}"),
        };
        format!("      - {{name: r{number}, match: {{{matched}}}, limit_keys: [{keys}], {action}}}\n")
    };
    let rules: String = rules.iter().enumerate().map(rule).collect();
    let file = format!(
        "upstream: http://a\n{JWT}policies:\n  - name: p\n    match: {{{scope}}}\n    otherwise: {otherwise}\n    rules:\n{rules}"
    );
    let (variable, read) = (|_: &str| None, |_: &Path| Err(std::io::ErrorKind::NotFound.into()));
    let surroundings = Environment { variable: &variable, folder: Path::new(""), read: &read };
    Config::parse("gateway.yaml", file.as_bytes(), surroundings).unwrap_or_else(|problems| panic!("{problems}\n{file}"))
}

/// Returns the rulings for requests of every kind.
fn rulings(config: &Config) -> Vec<Ruling> {
    let mut found = Vec::new();
    for path in ["/v1", "/v1/", "/v1/x", "/v1/x/y", "/v1x/y", "/v2", "/v2/y", "/", "/~"] {
        for method in ["GET", "POST", "~"] {
            for (a, b) in [
                ("", ""),
                ("x", ""),
                ("y", ""),
                ("xy", ""),
                ("~", ""),
                ("", "z"),
                ("x", "z"),
                ("y", "z"),
                ("~", "z"),
                ("xy", "z"),
                // It ends with y, and begins with nothing that a condition names.
                ("/y", ""),
                ("/y", "z"),
            ] {
                for address in ["10.1.2.3", "10.1.0.0", "10.0.0.0", "192.0.2.0", "203.0.113.77"] {
                    let mut head = http::Request::builder().method(method).uri(path);
                    for (name, value) in [("a", a), ("b", b)].into_iter().filter(|(_, value)| !value.is_empty()) {
                        head = head.header(name, value);
                    }
                    let (head, ()) = head.body(()).unwrap().into_parts();
                    let client = ClientAddress::new(address.parse().unwrap(), 64);
                    let request = Request::new(&head, client).with_destination("default", "default");
                    found.push(config.rules.plan(&request, Timestamp(1)));
                }
            }
        }
    }
    found
}

/// Returns the rulings for requests with claims of every kind.
fn rulings_by_claims(config: &Config) -> Vec<Ruling> {
    let (head, ()) = http::Request::new(()).into_parts();
    let client = ClientAddress::new("203.0.113.77".parse().unwrap(), 64);
    let values = json!([
        null,
        "a",
        "b",
        "ab",
        "/a",
        "/b",
        "~",
        "/~",
        ["a"],
        ["b"],
        ["~"],
        ["a", "b"],
        ["b", "a"],
        ["a", "c"],
        ["b", "c"],
        ["c", "ab"],
        ["a", "ab"],
        ["a", "b", "~"],
        [],
        ["a", true]
    ]);
    let scopes = json!([null, "a", "b", "a b", "a c", "~", "/~", ["b", "c a"]]);
    let mut found = Vec::new();
    for roles in values.as_array().unwrap() {
        for scope in scopes.as_array().unwrap() {
            for sub in [json!(null), json!("~"), json!(["~"])] {
                let claims = json!({"roles": roles, "scope": scope, "sub": sub});
                let claims = Claims::new(claims.as_object().unwrap().clone(), None);
                let request = Request::new(&head, client).with_destination("default", "default");
                let request = Request { claims: Some(&claims), ..request };
                found.push(config.rules.plan(&request, Timestamp(1)));
            }
        }
    }
    found
}

/// Returns the indexes of the rules that a lint reports.
fn named(config: &Config, lint: &str, what: &str) -> Vec<usize> {
    let warnings = config.warnings.warnings.iter();
    let of_lint = warnings.filter(|warning| warning.name == lint && warning.what.starts_with(what));
    let number = |path: &str| path.strip_prefix("policies[0].rules[")?.split(']').next()?.parse().ok();
    of_lint.map(|warning| number(&warning.path).unwrap()).collect()
}

/// Checks the warnings of the order of these rules against the rulings for requests of every kind.
fn check_order(
    scope: &str,
    otherwise: &str,
    rules: &[RuleText],
    rulings: impl Fn(&Config) -> Vec<Ruling>,
) -> TestCaseResult {
    let config = parse(scope, otherwise, rules);
    let with = |number: usize, action| {
        let mut rules = rules.to_vec();
        rules[number].action = action;
        let config = parse(scope, otherwise, &rules);
        let denier = |id: DenierId| config.rules.denier(id).unwrap();
        // The index of a rule that denies is another one when rules before it do not.
        let text = |Ruling { answer, unmatched, shadow_denials, .. }: Ruling| match answer {
            Answer::Denied(by) => format!("denied by {:?}", denier(by)),
            other => {
                format!("{other:?} {unmatched:?} {:?}", shadow_denials.into_iter().map(denier).collect::<Vec<_>>())
            }
        };
        rulings(&config).into_iter().map(text).collect::<Vec<_>>()
    };
    for number in
        [named(&config, "unreachable_rule", "never applies"), named(&config, "late_deny", "never holds")].concat()
    {
        prop_assert_eq!(with(number, "deny"), with(number, "allow"), "rule {} applies", number);
    }
    for number in named(&config, "late_deny", "does not hold") {
        let mut first = rules.to_vec();
        let deny = first.remove(number);
        first.insert(0, deny);
        let denied = |ruling: &Ruling| matches!(ruling.answer, Answer::Denied(_));
        let (now, then) = (rulings(&config), rulings(&parse(scope, otherwise, &first)));
        let passes = now.iter().zip(&then).any(|(now, then)| !denied(now) && denied(then));
        prop_assert!(passes, "rule {} denies all that it names", number);
    }
    for _ in named(&config, "open_policy", "") {
        let left = |ruling: &Ruling| {
            let free = matches!(&ruling.answer, Answer::Charge(plan) if plan.enforced.is_empty());
            free && !ruling.unmatched.is_empty()
        };
        prop_assert!(rulings(&config).iter().any(left), "it is not open");
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(crate::support::short_or_long(40, 1000)))]

    #[test]
    fn every_warning_of_the_order_of_rules_is_true(
        scope in matched(CONDITIONS),
        otherwise in prop::sample::select(vec!["allow", "deny"]),
        rules in rules(CONDITIONS, KEYS),
    ) {
        check_order(&scope, otherwise, &rules, rulings)?;
    }

    #[test]
    fn every_warning_of_the_order_is_true_where_claims_are_lists(
        scope in matched(CLAIM_CONDITIONS),
        otherwise in prop::sample::select(vec!["allow", "deny"]),
        rules in rules(CLAIM_CONDITIONS, CLAIM_KEYS),
    ) {
        check_order(&scope, otherwise, &rules, rulings_by_claims)?;
    }
}

#[test]
fn a_deny_is_late_for_a_value_that_no_rule_names() {
    let rule = |matched: &str, keys, action| RuleText { matched: matched.to_owned(), keys, action };
    let (scope, rules) = (
        "header:a: {suffix: y, not: y}",
        [
            rule("header:a: {prefix: x}", "", "deny"),
            rule("path: /v1", "", "charge"),
            rule("", "header:a, header:b", "deny"),
        ],
    );
    assert_eq!(named(&parse(scope, "allow", &rules), "late_deny", "does not hold"), [2]);
    check_order(scope, "allow", &rules, rulings).unwrap();
}

#[test]
fn a_rule_that_can_never_apply_opens_no_policy() {
    let rule = |matched: &str, keys| RuleText { matched: matched.to_owned(), keys, action: "charge" };
    let rules = [rule("path: /v1", "\"header:a|ip:address\""), rule("path: {not: /v1/*}", "header:a")];
    assert_eq!(named(&parse("path: /v1", "allow", &rules), "open_policy", ""), [0; 0]);
}

#[test]
fn a_list_may_have_what_two_rules_expect() {
    let rule = |matched: &str| RuleText { matched: matched.to_owned(), keys: "ip:address", action: "charge" };
    let unreachable = |scope: &str, rules: [&str; 2]| {
        named(&parse(scope, "allow", &rules.map(rule)), "unreachable_rule", "never applies")
    };
    // Of a scalar, the match of the policy rules out the second rule.
    assert_eq!(unreachable("header:a: x", ["header:b: z", "header:a: y"]), [1]);
    assert_eq!(unreachable("jwt:roles: a", ["header:b: z", "jwt:roles: b"]), [0; 0]);
    assert_eq!(unreachable("words(jwt:scope): a", ["header:b: z", "words(jwt:scope): b"]), [0; 0]);
    assert_eq!(unreachable("header:a: x", ["header:a: {not: y}", "header:b: z"]), [1]);
    assert_eq!(unreachable("jwt:roles: x", ["jwt:roles: {not: y}", "header:b: z"]), [0; 0]);
    // What holds for one element or for none holds for a list too.
    assert_eq!(unreachable("", ["jwt:roles: [a, b]", "jwt:roles: b"]), [1]);
    assert_eq!(unreachable("", ["jwt:roles: {present: true}", "jwt:roles: {prefix: b}"]), [1]);
    assert_eq!(unreachable("jwt:roles: {not: [a, b]}", ["header:b: z", "jwt:roles: a"]), [1]);
}

#[test]
fn a_policy_of_a_thousand_tiers_is_examined_quickly() {
    let tier = |number: usize| RuleText {
        matched: format!("header:a: t{}", number % 999),
        keys: "header:a",
        action: "charge",
    };
    let rules: Vec<_> = (0..1000).map(tier).collect();
    let config = parse("", "deny", &rules);
    assert_eq!(named(&config, "unreachable_rule", "never applies"), [999]);
}
