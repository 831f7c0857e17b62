//! Limits of budgets that an override or a credential names.

use identity::api_key_file;
use request::identity::KnownKey;

use super::{get, upstream};
use crate::support::{Client, Gateway};

const KEY: &str = "a-key-of-acme-0123456789";

/// Spends 5 with each request until one is refused. Returns how many were admitted.
fn admitted(mut ask: impl FnMut(&mut Client) -> u16, gateway: &Gateway) -> u64 {
    let mut client = gateway.client();
    let mut admitted = 0;
    loop {
        match ask(&mut client) {
            200 => admitted += 1,
            429 => return admitted,
            status => panic!("{status}"),
        }
        // What it held is free, and its cost is spent.
        gateway.expect("rate_limiter_held", &["rule=\"spend\""], 0.0);
    }
}

const NUMBERS: &str = "window: 366d, reserve: 5, cost_source: \"response_header:x-cost\", default_cost: 3";

#[test]
fn an_override_gives_a_budget_another_limit() {
    let (upstream, _finish) = upstream::start();
    let gateway = Gateway::start(
        &upstream,
        &format!(
            "
rules:
  - name: spend
    limit_keys: [header:x-user]
    algorithm: fixed_window
    algorithm_config: {{limit: 20, {NUMBERS}}}
    overrides: {{bob: {{limit: 50}}}}"
        ),
    );
    let of = |user: &str| admitted(|client| client.get("/cost/5", &[("X-User", user)]).status, &gateway);
    assert_eq!((of("ann"), of("bob")), (4, 10));
    let refused = get(&gateway, "/cost/5", "bob");
    assert_eq!(refused.field("x-tollgate-reason").as_deref(), Some("fixed_window_exceeded"));
}

#[test]
fn a_key_names_the_limit_of_its_budget() {
    let (upstream, _finish) = upstream::start();
    let line = api_key_file::line(KEY.as_bytes(), &KnownKey::new("acme", "gold"));
    let file = format!("#columns id plan quota\n{line} 35\n");
    let gateway = Gateway::before(&upstream)
        .file("keys.txt", &file)
        .with(&format!(
            "
api_keys: {{from: header:x-api-key, file: keys.txt}}
rules:
  - name: spend
    limit_keys: [key:id]
    algorithm: fixed_window
    algorithm_config: {{limit: {{from: key:quota, default: 20, max: 1000}}, {NUMBERS}}}"
        ))
        .start();
    assert_eq!(admitted(|client| client.get("/cost/5", &[("X-Api-Key", KEY)]).status, &gateway), 7);
}
