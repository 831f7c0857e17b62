//! `lower(…)` and `trim(…)` around attributes: values in another case, or with white space around them, count as one.

use crate::support::{Gateway, Upstream};

#[test]
fn a_key_in_another_case_or_with_white_space_has_the_same_bucket() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &upstream,
        "
rules:
  - name: user
    limit_keys: [\"lower(trim(query:user))|ip:address\"]
    algorithm_config: {rate: 2/day}
    overrides: {\" trim( lower(query:user) )=  Eve \": {rate: 1/day}}",
    );
    let mut client = gateway.client();
    let mut ask = |target: &str| client.get(target, &[]).status;
    assert_eq!(["/?user=ann", "/?user=%20ANN%C2%A0", "/?user=Ann"].map(&mut ask), [200, 200, 429]);
    assert_eq!(["/?user=eve", "/?user=+EVE"].map(&mut ask), [200, 429]);
    // White space alone is no value, so the next alternative counts.
    assert_eq!(["/?user=%09", "/", "/?user=+"].map(&mut ask), [200, 200, 429]);
}

#[test]
fn conditions_compare_the_changed_value() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &upstream,
        "
exempt: [{\"lower(header:x-team)\": Ops}]
policies:
  - name: banned
    match: {\"trim(query:ban)\": {present: true}}
    rules: [{name: ban, match: {\"trim(lower(query:ban))\": [\" YES \", sure]}, action: deny}]
  - name: agents
    rules:
      - {name: bots, match: {\"lower(header:user-agent)\": {prefix: EvilBot}}, action: deny}
      - {name: paths, match: {\"lower(path)\": /Admin/*}, action: deny}
      - {name: others, limit_keys: [], expose: true, algorithm_config: {rate: 100/day}}",
    );
    let mut client = gateway.client();
    let mut ask = |target: &str, fields: &[(&str, &str)]| client.get(target, fields).status;
    for (target, status) in [
        ("/?ban=yes", 403),
        ("/?ban=%20Yes%20", 403),
        ("/?ban=SURE", 403),
        ("/?ban=no", 200),
        ("/?ban=%20", 200),
        ("/ADMIN/x", 403),
        ("/admin", 403),
        ("/administration", 200),
    ] {
        assert_eq!(ask(target, &[]), status, "{target}");
    }
    assert_eq!(ask("/", &[("User-Agent", "EVILBOT/1.0")]), 403);
    assert_eq!(ask("/", &[("User-Agent", "good evilbot")]), 200);
    // A repeated field is ambiguous, as without the function.
    assert_eq!(ask("/", &[("X-Team", "ops"), ("X-Team", "dev")]), 400);
    let mut pays = |team: &str| client.get("/", &[("X-Team", team)]).field("ratelimit").is_some();
    assert_eq!(["OPS", "oPs", "dev"].map(&mut pays), [false, false, true]);
}

#[test]
fn elements_of_a_list_and_values_of_a_body_are_changed_too() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &upstream,
        "
rules:
  - name: model
    limit_keys: [\"lower(request_json:/model)\"]
    algorithm_config: {rate: 1/day}",
    );
    let json = [("Content-Type", "application/json")];
    let ask = |body: &str| gateway.client().send("POST", "/", &json, body).status;
    assert_eq!([ask(r#"{"model":"A"}"#), ask(r#"{"model":"a"}"#), ask(r#"{"model":"b"}"#)], [200, 429, 200]);
}
