//! `overrides` on real requests, end to end.

use identity::api_key_file;
use request::identity::KnownKey;

use crate::support::{Client, Gateway, Upstream};

/// Returns the codes of these requests. Each has a target and fields.
#[track_caller]
fn codes(client: &mut Client, requests: &[(&str, &[(&str, &str)])]) -> Vec<u16> {
    requests.iter().map(|(target, fields)| client.get(target, fields).status).collect()
}

#[test]
fn an_override_changes_the_numbers_of_one_value() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &upstream,
        "
rules:
  - name: org
    limit_keys: [header:x-org]
    algorithm_config: {rate: 1/day}
    overrides: {acme: {rate: 3/day}}",
    );
    let mut client = gateway.client();
    let (acme, other): (&[_], &[_]) = (&[("X-Org", "acme")], &[("X-Org", "other")]);
    assert_eq!(codes(&mut client, &[("/", acme), ("/", acme), ("/", acme), ("/", acme)]), [200, 200, 200, 429]);
    assert_eq!(codes(&mut client, &[("/", other), ("/", other)]), [200, 429]);
}

#[test]
fn an_override_applies_however_its_value_is_spelt() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &upstream,
        "
policies:
  - name: address
    rules:
      - name: ip
        limit_keys: [ip:address]
        algorithm_config: {rate: 1/day}
        overrides: {\"::ffff:127.0.0.1\": {rate: 100/day}}
  - name: host
    rules:
      - name: host
        limit_keys: [host]
        algorithm_config: {rate: 1/day}
        overrides: {API.example.com: {rate: 2/day}}",
    );
    let host: &[_] = &[("Host", "Api.Example.com:80")];
    assert_eq!(codes(&mut gateway.client(), &[("/", host), ("/", host), ("/", host)]), [200, 200, 429]);
}

const KEY: &str = "acme-3fQk0bCz7LrYw1xA";

#[test]
fn an_override_of_an_api_key_does_not_apply_to_a_header_with_its_id() {
    let upstream = Upstream::start();
    let key = api_key_file::line(KEY.as_bytes(), &KnownKey::new("acme", "gold"));
    let gateway = Gateway::before(&upstream)
        .with(
            "
api_keys: {from: header:x-api-key, file: keys.txt}
rules:
  - name: org
    limit_keys: [\"key:id|header:x-org\"]
    algorithm_config: {rate: 1/day}
    overrides: {\"key:id=acme\": {rate: 3/day}, \"header:X-Org=initech\": {rate: 2/day}}",
        )
        .file("keys.txt", &(key + "\n"))
        .start();
    let mut client = gateway.client();
    let (forged, holder): (&[_], &[_]) = (&[("X-Org", "acme")], &[("X-Api-Key", KEY), ("X-Org", "initech")]);
    let named: &[_] = &[("X-Org", "initech")];
    assert_eq!(codes(&mut client, &[("/", forged), ("/", forged)]), [200, 429]);
    assert_eq!(codes(&mut client, &[("/", holder); 4]), [200, 200, 200, 429]);
    assert_eq!(codes(&mut client, &[("/", named); 3]), [200, 200, 429]);
}

#[test]
fn with_several_limit_keys_the_first_matching_override_applies() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &upstream,
        "
rules:
  - name: both
    limit_keys: [\"lower(header:x-user)\", query:room]
    algorithm_config: {rate: 1/day}
    overrides:
      query:room=a=b: {rate: 3/day}
      \"lower( header:X-User )=ANN\": {rate: 2/day}",
    );
    let mut client = gateway.client();
    let (ann, bob): (&[_], &[_]) = (&[("X-User", "Ann")], &[("X-User", "Bob")]);
    let targets = |target, fields, count| vec![(target, fields); count];
    assert_eq!(codes(&mut client, &targets("/?room=c", bob, 2)), [200, 429]);
    assert_eq!(codes(&mut client, &targets("/?room=c", ann, 3)), [200, 200, 429]);
    assert_eq!(codes(&mut client, &targets("/?room=a=b", bob, 4)), [200, 200, 200, 429]);
    assert_eq!(codes(&mut client, &targets("/?room=a=b", ann, 4)), [200, 200, 200, 429]);
}

#[test]
fn with_one_limit_key_an_override_may_omit_its_name() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &upstream,
        "
rules:
  - name: org
    limit_keys: [header:x-org]
    algorithm_config: {rate: 1/day}
    overrides: {\"header:x-org=acme\": {rate: 2/day}, \"a=b\": {rate: 2/day}}",
    );
    let mut client = gateway.client();
    for org in ["acme", "a=b"] {
        let fields: &[_] = &[("X-Org", org)];
        assert_eq!(codes(&mut client, &[("/", fields); 3]), [200, 200, 429], "{org}");
    }
}

#[test]
fn with_several_limits_an_override_names_the_limit() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &upstream,
        "
rules:
  - name: org
    limit_keys: [header:x-org, method]
    limits:
      burst: {rate: 3/day}
      month: {algorithm: fixed_window, limit: 2, window: month}
    overrides:
      header:x-org=acme: {month: {limit: 9}}
      header:x-org=initech: {burst: {rate: 9/day}, month: {limit: 4}}
      header:x-org=ours: {burst: {limit: unlimited}, month: {limit: unlimited}}
      header:x-org=theirs: {burst: {limit: unlimited}}",
    );
    let mut client = gateway.client();
    let mut passed = |org: &str| {
        let answers: Vec<_> = (0..12).map(|_| client.get("/", &[("X-Org", org)])).collect();
        let policies = answers[0].field("ratelimit-policy").unwrap_or_default();
        let names: Vec<_> = ["burst", "month"].into_iter().filter(|name| policies.contains(name)).collect();
        (answers.iter().filter(|answer| answer.status == 200).count(), names)
    };
    assert_eq!(passed("other"), (2, vec!["burst", "month"]));
    assert_eq!(passed("acme"), (3, vec!["burst", "month"]));
    assert_eq!(passed("initech"), (4, vec!["burst", "month"]));
    assert_eq!(passed("ours"), (12, vec![]));
    assert_eq!(passed("theirs"), (2, vec!["month"]));
    // Who is unlimited is not unmatched: the rule applies.
    assert_eq!(gateway.metric("rate_limiter_unmatched_total", &[]), 0.0);
}
