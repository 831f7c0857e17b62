//! Warnings of lints are true: for random policies, requests of every kind confirm each of them.

use std::collections::HashMap;
use std::path::Path;

use proptest::prelude::*;
use tollgate::base::time::Timestamp;
use tollgate::config::{Config, Environment};
use tollgate::limit::denier::DenierId;
use tollgate::limit::request::{ClientAddress, Request};
use tollgate::limit::rule_set::{Answer, Ruling};

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

/// The text of one rule: its match, its limit keys, and its action.
#[derive(Clone, Debug)]
struct RuleText {
    matched: String,
    keys: &'static str,
    action: &'static str,
}

fn matched() -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(CONDITIONS), 0..3).prop_map(|conditions| {
        let mut by_attribute = HashMap::new();
        by_attribute.extend(conditions.into_iter().map(|one| (one.split(": ").next(), one)));
        by_attribute.into_values().collect::<Vec<_>>().join(", ")
    })
}

fn rules() -> impl Strategy<Value = Vec<RuleText>> {
    let action = prop::sample::select(vec!["charge", "charge", "allow", "deny", "charge, mode: shadow"]);
    let rule = (matched(), prop::sample::select(KEYS), action);
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
        "upstream: http://a\npolicies:\n  - name: p\n    match: {{{scope}}}\n    otherwise: {otherwise}\n    rules:\n{rules}"
    );
    let (variable, read) = (|_: &str| None, |_: &Path| Err(std::io::ErrorKind::NotFound.into()));
    let surroundings = Environment { variable: &variable, folder: Path::new(""), read: &read };
    Config::parse("gateway.yaml", file.as_bytes(), surroundings).unwrap_or_else(|problems| panic!("{problems}\n{file}"))
}

/// The rulings for requests of every kind.
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
            ] {
                for address in ["10.1.2.3", "10.1.0.0", "10.0.0.0", "192.0.2.0", "203.0.113.77"] {
                    let mut head = http::Request::builder().method(method).uri(path);
                    for (name, value) in [("a", a), ("b", b)].into_iter().filter(|(_, value)| !value.is_empty()) {
                        head = head.header(name, value);
                    }
                    let (head, ()) = head.body(()).unwrap().into_parts();
                    let client = ClientAddress::new(address.parse().unwrap(), 64);
                    let request =
                        Request { head: &head, client, claims: None, key: None, route: "default", upstream: "default" };
                    found.push(config.rules.plan(&request, Timestamp(1)));
                }
            }
        }
    }
    found
}

/// The indexes of the rules that a lint reports.
fn named(config: &Config, lint: &str, what: &str) -> Vec<usize> {
    let warnings = config.warnings.warnings.iter();
    let of_lint = warnings.filter(|warning| warning.name == lint && warning.what.starts_with(what));
    let number = |path: &str| path.strip_prefix("policies[0].rules[")?.split(']').next()?.parse().ok();
    of_lint.map(|warning| number(&warning.path).unwrap()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(crate::support::short_or_long(40, 1000)))]

    #[test]
    fn every_warning_of_the_order_of_rules_is_true(
        scope in matched(),
        otherwise in prop::sample::select(vec!["allow", "deny"]),
        rules in rules(),
    ) {
        let config = parse(&scope, otherwise, &rules);
        let with = |number: usize, action| {
            let mut rules = rules.clone();
            rules[number].action = action;
            let config = parse(&scope, otherwise, &rules);
            let denier = |id: DenierId| config.rules.denier(id).unwrap();
            // The index of a rule that denies is another one when rules before it do not.
            let text = |Ruling { answer, unmatched, shadow_denials }: Ruling| match answer {
                Answer::Denied(by) => format!("denied by {:?}", denier(by)),
                other => format!("{other:?} {unmatched:?} {:?}", shadow_denials.into_iter().map(denier).collect::<Vec<_>>()),
            };
            rulings(&config).into_iter().map(text).collect::<Vec<_>>()
        };
        for number in [named(&config, "unreachable_rule", "never applies"), named(&config, "late_deny", "never holds")].concat() {
            prop_assert_eq!(with(number, "deny"), with(number, "allow"), "rule {} applies", number);
        }
        for number in named(&config, "late_deny", "does not hold") {
            let mut first = rules.clone();
            let deny = first.remove(number);
            first.insert(0, deny);
            let denied = |ruling: &Ruling| matches!(ruling.answer, Answer::Denied(_));
            let (now, then) = (rulings(&config), rulings(&parse(&scope, otherwise, &first)));
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
    }
}

#[test]
fn a_rule_that_can_never_apply_opens_no_policy() {
    let rule = |matched: &str, keys| RuleText { matched: matched.to_owned(), keys, action: "charge" };
    let rules = [rule("path: /v1", "\"header:a|ip:address\""), rule("path: {not: /v1/*}", "header:a")];
    assert_eq!(named(&parse("path: /v1", "allow", &rules), "open_policy", ""), [0; 0]);
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
