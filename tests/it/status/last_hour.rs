//! The history of the last hour.

use serde_json::{Value, json};

use super::document::{RULES, ask};
use crate::support::{Gateway, Upstream, eventually, now, print_measured};

fn hour(gateway: &Gateway) -> Value {
    let response = ask(gateway, "/history.json", &[]);
    assert_eq!((response.status, response.field("content-type").as_deref()), (200, Some("application/json")));
    assert_eq!(response.field("cache-control").as_deref(), Some("no-store"));
    response.json()
}

#[track_caller]
fn eventually_kept(gateway: &Gateway, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
    let mut reported = Value::Null;
    eventually(what, || {
        reported = hour(gateway);
        holds(&reported)
    });
    reported
}

fn sum(column: &Value) -> u64 {
    column.as_array().unwrap().iter().map(|count| count.as_u64().unwrap()).sum()
}

#[test]
fn a_page_that_is_opened_later_shows_the_hour_before() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, RULES);
    let mut client = gateway.client();
    for _ in 0..5 {
        client.get("/?user=the-name-of-a-client", &[]);
    }
    let reported = eventually_kept(&gateway, "five requests are kept", |reported| sum(&reported["requests"]) == 5);
    assert_eq!((sum(&reported["refused"]), sum(&reported["errors"])), (3, 0));
    let user = &reported["limits"]["plans/user enforce"];
    assert_eq!([sum(&user[0]), sum(&user[1])], [2, 3]);
    assert!(reported["decision_p99"].as_array().unwrap().last().unwrap().as_f64().unwrap() > 0.0);
    let points = reported["end"].as_array().unwrap().len();
    for column in ["seconds", "requests", "refused", "errors", "decision_p99"] {
        assert_eq!(reported[column].as_array().unwrap().len(), points, "{column}");
    }
    // A limit without requests has no line, and no client is named.
    assert!(reported["limits"].get("plans/several.s enforce").is_none());
    assert!(!reported.to_string().contains("the-name-of-a-client"));
}

#[test]
fn rules_that_stay_keep_their_hour_over_a_reload_and_those_that_go_drop_it() {
    let upstream = Upstream::start();
    let rule = |name: &str| {
        format!("\n  - {{name: {name}, match: {{path: /{name}}}, limit_keys: [], algorithm_config: {{rate: 1000/s}}}}")
    };
    let gateway = Gateway::start(&upstream, &format!("rules:{}{}", rule("stays"), rule("goes")));
    let mut client = gateway.client();
    for _ in 0..4 {
        client.get("/stays", &[]);
        client.get("/goes", &[]);
    }
    eventually_kept(&gateway, "both are kept", |reported| sum(&reported["requests"]) == 8);
    gateway.reload(&upstream, &format!("rules:{}", rule("stays")));
    client.get("/stays", &[]);
    let reported = eventually_kept(&gateway, "one more is kept", |reported| sum(&reported["requests"]) == 9);
    assert_eq!(reported["limits"].as_object().unwrap().keys().collect::<Vec<_>>(), ["default/stays enforce"]);
    assert_eq!(sum(&reported["limits"]["default/stays enforce"][0]), 5);
    // A restart begins with an empty history.
    let restarted = Gateway::start(&upstream, &format!("rules:{}", rule("stays")));
    assert_eq!((sum(&hour(&restarted)["requests"]), &hour(&restarted)["limits"]), (0, &json!({})));
}

#[test]
fn the_history_of_a_thousand_rules_has_the_busiest() {
    let upstream = Upstream::start();
    let rule = |number| {
        format!(
            "\n  - {{name: r{number}, match: {{path: /{number}}}, limit_keys: [], algorithm_config: {{rate: 9/s}}}}"
        )
    };
    let gateway = Gateway::start(&upstream, &format!("rules:{}", (0..1000).map(rule).collect::<String>()));
    let mut client = gateway.client();
    for number in 0..300 {
        client.get(&format!("/{number}"), &[]);
    }
    for _ in 0..3 {
        client.get("/999", &[]);
    }
    let start = now();
    let reported = eventually_kept(&gateway, "all are kept", |reported| sum(&reported["requests"]) == 303);
    assert_eq!(reported["limits"].as_object().unwrap().len(), 200);
    assert_eq!(sum(&reported["limits"]["default/r999 enforce"][0]), 3);
    print_measured(&format!(
        "history.json, 1000 rules: {} bytes, within {:?}",
        reported.to_string().len(),
        start.elapsed()
    ));
}
