//! The rules of a file, applied to real requests.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::support::{Client, Gateway, Upstream, tollgate};

/// A request without additional fields.
const NONE: &[(&str, &str)] = &[];

/// Returns the codes of these requests. Each has a target and fields.
#[track_caller]
fn codes(client: &mut Client, requests: &[(&str, &[(&str, &str)])]) -> Vec<u16> {
    requests.iter().map(|(target, fields)| client.get(target, fields).status).collect()
}

#[test]
fn the_first_rule_that_applies_decides_and_tiers_follow_a_header() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &upstream,
        "
rules:
  - name: gold
    match: {header:x-plan: gold}
    limit_keys: [header:x-user]
    algorithm_config: {rate: 3/day}
  - name: silver
    match: {header:x-plan: [silver, bronze]}
    limit_keys: [header:x-user]
    algorithm_config: {rate: 2/day}
  - name: anonymous
    limit_keys: [ip:address]
    algorithm_config: {rate: 1/day}",
    );
    let mut client = gateway.client();
    let gold: &[_] = &[("X-Plan", "gold"), ("X-User", "ann")];
    assert_eq!(codes(&mut client, &[("/", gold); 4]), [200, 200, 200, 429]);
    let other: &[_] = &[("X-Plan", "gold"), ("X-User", "bob")];
    assert_eq!(codes(&mut client, &[("/", other)]), [200]);
    let bronze: &[_] = &[("X-Plan", "bronze"), ("X-User", "ann")];
    assert_eq!(codes(&mut client, &[("/", bronze); 3]), [200, 200, 429]);
    // A plan without its user is passed over, and the next rule is tried.
    let nobody: &[_] = &[("X-Plan", "gold")];
    assert_eq!(codes(&mut client, &[("/", nobody), ("/", &[])]), [200, 429]);
    assert_eq!(upstream.seen().len(), 7);
}

#[test]
fn a_path_segment_is_one_tenant_however_the_path_is_spelt() {
    let upstream = Upstream::start();
    let rules = "
policies:
  - name: tenants
    match: {path_segment:1: tenants}
    rules:
      - name: tenant
        limit_keys: [path_segment:2]
        algorithm_config: {rate: 2/day}
        overrides: {vip: {rate: 3/day}}
      - {name: list, limit_keys: [], algorithm_config: {rate: 1/day}}";
    let gateway = Gateway::start(&upstream, rules);
    let mut client = gateway.client();
    let mut codes =
        |targets: &[&str]| codes(&mut client, &targets.iter().map(|target| (*target, NONE)).collect::<Vec<_>>());
    assert_eq!(codes(&["/tenants/acme", "/x/../tenants//./%61cme;v=1/users?a", "/tenants/acme/"]), [200, 200, 429]);
    assert_eq!(codes(&["/tenants/vip/1", "/tenants/vip/2", "/tenants/vip/3", "/tenants/vip/4"]), [200, 200, 200, 429]);
    // Without a tenant the rule does not apply, and no rule does to other paths.
    assert_eq!(codes(&["/tenants/", "/tenants", "/other/acme", "/"]), [200, 429, 200, 200]);
    // A path without a single reading has no segments.
    assert_eq!(codes(&["/tenants/..;/x", "/tenants/a%2fb", "//tenants/acme"]), [400, 400, 400]);
    let file = gateway.file("gateway.yaml").display().to_string();
    let admin = gateway.admin.to_string();
    let shown = tollgate(&["bucket", "show", "-c", &file, "--admin", &admin, "tenant", "path_segment:2=%61cme"]);
    assert!(shown.out.contains("path_segment:2 \"acme\""), "{}{}", shown.out, shown.err);
    let wrong = tollgate(&["bucket", "show", "-c", &file, "--admin", &admin, "tenant", "path_segment:2=a/b"]);
    assert_eq!((wrong.code, wrong.err.contains("must be one segment of a path")), (Some(1), true), "{}", wrong.err);
    let explained = tollgate(&["explain", "-c", &file, "http://a/tenants/%61cme/users"]);
    assert!(explained.out.contains("key path_segment:2 \"acme\""), "{}", explained.out);
    let refused = tollgate(&["explain", "-c", &file, "http://a/tenants/a%2fb"]);
    assert!(refused.out.contains("the path has no single reading, and a rule reads it"), "{}", refused.out);
}

#[test]
fn every_policy_counts_and_a_refusal_charges_none_of_them() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &upstream,
        "
policies:
  - name: ceiling
    rules:
      - {name: all, limit_keys: [ip:address], algorithm_config: {rate: 10/day}}
  - name: export
    match: {path: /export/*}
    rules:
      - {name: exports, limit_keys: [ip:address], algorithm_config: {rate: 2/day}}",
    );
    let mut client = gateway.client();
    assert_eq!(codes(&mut client, &[("/export/1", NONE); 5]), [200, 200, 429, 429, 429]);
    let plain = client.get("/", &[]);
    assert_eq!(plain.field("ratelimit").as_deref(), Some("\"all\";r=7;t=25920"), "{plain:?}");
    assert_eq!(codes(&mut client, &[("/", NONE); 8]), [200, 200, 200, 200, 200, 200, 200, 429]);
}

#[test]
fn actions_allow_and_deny_without_a_charge() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &upstream,
        "
exempt:
  - {header:x-internal: \"yes\"}
policies:
  - name: kill
    rules:
      - {name: partner, match: {header:x-partner: acme}, action: deny}
  - name: plan
    otherwise: deny
    rules:
      - {name: health, match: {path: /health}, action: allow}
      - {name: user, limit_keys: [header:x-user], algorithm_config: {rate: 1/day}}",
    );
    let mut client = gateway.client();
    let denied = client.get("/health", &[("X-Partner", "acme")]);
    assert_eq!((denied.status, denied.field("x-tollgate-reason").as_deref()), (403, Some("denied")));
    assert_eq!(denied.field("ratelimit"), None);
    assert_eq!(codes(&mut client, &[("/health", NONE); 3]), [200, 200, 200]);
    let user: &[_] = &[("X-User", "ann")];
    assert_eq!(codes(&mut client, &[("/", user), ("/", user), ("/", &[])]), [200, 429, 403]);
    // The exempt pay nothing, but a `deny` holds for them.
    let exempt: &[_] = &[("X-Internal", "yes"), ("X-User", "bob")];
    assert_eq!(codes(&mut client, &[("/", exempt), ("/", exempt), ("/", exempt)]), [200, 200, 200]);
    let both: &[_] = &[("X-Internal", "yes"), ("X-Partner", "acme")];
    assert_eq!(codes(&mut client, &[("/", both)]), [403]);
    gateway.expect("rate_limiter_decisions_total", &["exempt"], 3.0);
    gateway.expect("rate_limiter_decisions_total", &["unlimited"], 3.0);
    gateway.expect("rate_limiter_decisions_total", &["refused"], 4.0);
}

#[test]
fn a_request_that_matches_no_rule_passes_and_is_counted() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &upstream,
        "
rules:
  - {name: user, limit_keys: [header:x-user], algorithm_config: {rate: 1/day}}",
    );
    let response = gateway.client().get("/", &[]);
    assert_eq!((response.status, response.field("ratelimit-policy")), (200, None));
    gateway.expect("rate_limiter_unmatched_total", &["policy=\"default\""], 1.0);
}

#[test]
fn an_identity_that_the_upstream_might_read_otherwise_is_refused() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &upstream,
        "
rules:
  - {name: key, limit_keys: [header:x-key], algorithm_config: {rate: 100/day}}
  - {name: user, match: {query:user: [ann]}, limit_keys: [cookie:session], algorithm_config: {rate: 100/day}}",
    );
    let mut client = gateway.client();
    for (target, fields) in [
        ("/", &[("X-Key", "a"), ("X-Key", "b")][..]),
        ("/", &[("X-Key", "a"), ("Connection", "keep-alive, x-key")]),
        ("/", &[("X-Key", "a"), ("X_Key", "b")]),
        ("/", &[("x.key", "a")]),
        ("/?user=ann&user=bob", &[]),
        ("/?user=ann&%75ser=bob", &[]),
        ("/", &[("Cookie", "session=1; session=2")]),
    ] {
        let response = client.get(target, fields);
        let reason = response.field("x-tollgate-reason");
        assert_eq!((response.status, reason.as_deref()), (400, Some("ambiguous_request")), "{target} {fields:?}");
    }
    assert_eq!(upstream.seen().len(), 0);
    assert_eq!(client.get("/?user=ann&other=1&other=2", &[("Cookie", "session=1; x=1; x=2")]).status, 200);
    assert_eq!(client.get("/", &[("X_Other", "a"), ("X-Keys", "b")]).status, 200);
    // A reader of both can distinguish them.
    let both = "rules: [{name: key, limit_keys: [header:x-key, header:x_key], algorithm_config: {rate: 100/day}}]";
    let gateway = Gateway::start(&upstream, both);
    let mut client = gateway.client();
    assert_eq!(client.get("/", &[("X-Key", "a"), ("X_Key", "b")]).status, 200);
    assert_eq!(client.get("/", &[("X-Key", "a"), ("X.Key", "b")]).status, 400);
}

#[test]
fn every_spelling_of_a_path_is_limited_and_forwarded_as_it_was_sent() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &upstream,
        "
rules:
  - {name: export, match: {path: /v1/export/*}, limit_keys: [], algorithm_config: {rate: 3/day}}",
    );
    let mut client = gateway.client();
    assert_eq!(
        codes(&mut client, &[("/v1//./export/7", &[]), ("/v1/x/../%65xport?a=b", &[]), ("/v1/export", &[])]),
        [200; 3]
    );
    assert_eq!(upstream.seen()[1].line, "GET /v1/x/../%65xport?a=b HTTP/1.1");
    assert_eq!(codes(&mut client, &[("/v1/%2e/export/", &[]), ("/v1/exported", &[])]), [429, 200]);
    for target in ["/v1%2fexport", "/v1/%5cexport", "/v1/%00", "/v1/%zz", "//v1/export", "/x//../v1/export"] {
        let response = client.get(target, &[]);
        let reason = response.field("x-tollgate-reason");
        assert_eq!((response.status, reason.as_deref()), (400, Some("bad_request")), "{target}");
    }
}

#[test]
fn path_parameters_lead_neither_past_an_exemption_nor_past_a_deny() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &upstream,
        "
exempt: [{path: /static/*}]
rules:
  - {name: admin, match: {path: /admin/*}, action: deny}
  - {name: login, match: {path: /login}, limit_keys: [], algorithm_config: {rate: 1/day}}",
    );
    let mut client = gateway.client();
    for target in [
        "/static/..;/admin/x",
        "/static/..;a=b/admin/x",
        "/.;/../admin/x",
        "/static/%2e%2e;/admin/x",
        "/static/;/../admin/x",
    ] {
        let response = client.get(target, &[]);
        let reason = response.field("x-tollgate-reason");
        assert_eq!((response.status, reason.as_deref()), (400, Some("bad_request")), "{target}");
    }
    assert_eq!(
        codes(&mut client, &[("/admin;x/x", &[]), ("/static/a;v=1", &[]), ("/login;x", &[]), ("/login;y", &[])]),
        [403, 200, 200, 429]
    );
    assert_eq!(upstream.seen()[1].line, "GET /login;x HTTP/1.1", "what is forwarded is what was sent");
}

#[test]
fn escaped_and_unescaped_spellings_are_one_path() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &upstream,
        "
rules:
  - {name: run, match: {path: '/v1/x:run'}, limit_keys: [], algorithm_config: {rate: 3/day}}
  - {name: coffee, match: {path: /caf%C3%A9/*}, limit_keys: [], algorithm_config: {rate: 3/day}}",
    );
    let mut client = gateway.client();
    let run = [("/v1/x:run", &[][..]), ("/v1/x%3arun", &[]), ("/v1/%78%3Arun", &[]), ("/v1/x:run", &[])];
    assert_eq!(codes(&mut client, &run), [200, 200, 200, 429]);
    let coffee = [("/caf\u{e9}", &[][..]), ("/caf%c3%a9/x", &[]), ("/caf%C3%A9/[1]", &[]), ("/caf%C3%A9", &[])];
    assert_eq!(codes(&mut client, &coffee), [200, 200, 200, 429]);
    assert_eq!(upstream.last().line, "GET /caf%C3%A9/[1] HTTP/1.1");
    // Servers end a segment's name at a plain `;`, and not at an escaped one.
    assert_eq!(codes(&mut client, &[("/v1/x:run;a", &[]), ("/v1/x:run%3ba", &[])]), [429, 200]);
}

#[test]
fn every_spelling_of_a_host_is_one_host() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &upstream,
        "
rules:
  - {name: api, match: {host: api.example.com}, limit_keys: [], algorithm_config: {rate: 4/day}}
  - {name: each, limit_keys: [host], algorithm_config: {rate: 1/day}}",
    );
    let mut code = |host: &str| {
        let mut client = gateway.client();
        client.write(&format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        client.response("GET").unwrap().status
    };
    let api = ["api.example.com", "Api.Example.com", "api.example.com.", "API.example.com.:80", "api.example.com:80"];
    assert_eq!(api.map(&mut code), [200, 200, 200, 200, 429]);
    assert_eq!(["other.", "other", "other.:1"].map(&mut code), [200, 429, 429]);
}

#[test]
fn a_request_may_state_its_cost_within_bounds() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &upstream,
        "
rules:
  - name: weighed
    limit_keys: [header:x-user]
    algorithm_config: {rate: 10/day, cost_source: header:x-cost, default_cost: 2, min_cost: 1.5}",
    );
    let mut client = gateway.client();
    let mut left = |user: &str, cost: Option<&str>| {
        let fields: Vec<_> = [("X-User", Some(user)), ("X-Cost", cost)]
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?)))
            .collect();
        let response = client.get("/", &fields);
        let reason = response.field("x-tollgate-reason").unwrap_or_default();
        if response.status == 200 { response.number("ratelimit-remaining").to_string() } else { reason }
    };
    assert_eq!(left("a", Some("4")), "6");
    assert_eq!(left("a", Some("0.1")), "4");
    for (number, junk) in ["-1", "0", "nan", "1e3", "0x10", "1,5", "five"].into_iter().enumerate() {
        assert_eq!(left(&format!("junk{number}"), Some(junk)), "8", "{junk}");
    }
    assert_eq!(left("b", None), "8");
    assert_eq!(left("c", Some("10.0001")), "cost_too_large");
    assert_eq!(left("c", Some("99999999999999999999999999")), "cost_too_large");
    assert_eq!(left("c", Some("10")), "0");
    let too_large = client.get("/", &[("X-User", "d"), ("X-Cost", "10.0001")]);
    assert_eq!(too_large.json()["fits"].as_u64(), Some(10));
}

#[test]
fn several_limits_of_one_rule_are_charged_together() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &upstream,
        "
rules:
  - name: free
    limit_keys: [ip:address]
    limits: {burst: {rate: 2/hour}, day: {rate: 100/day}}",
    );
    let mut client = gateway.client();
    let first = client.get("/", &[]);
    assert_eq!(
        first.field("ratelimit-policy").as_deref(),
        Some("\"free.burst\";q=2;w=3600, \"free.day\";q=100;w=86400")
    );
    client.get("/", &[]);
    let refused = client.get("/", &[]);
    assert_eq!(refused.status, 429);
    assert_eq!(refused.json()["violated-policies"], serde_json::json!(["free.burst"]));
    assert!(refused.field("ratelimit").unwrap().contains("\"free.day\";r=98;"), "{refused:?}");
}

#[test]
fn a_shadow_refuses_no_request_and_shows_only_in_metrics() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &upstream,
        "
policies:
  - name: now
    rules:
      - name: strict
        mode: shadow
        limit_keys: [ip:address]
        algorithm_config: {rate: 1/day}
      - name: real
        limit_keys: [ip:address]
        algorithm_config: {rate: 4/day, shadow: {rate: 2/day}}
  - name: next
    mode: shadow
    otherwise: deny
    rules:
      - {name: tomorrow, limit_keys: [header:x-user], algorithm_config: {rate: 1/day}}",
    );
    let mut client = gateway.client();
    let user: &[_] = &[("X-User", "ann")];
    assert_eq!(codes(&mut client, &[("/", user); 6]), [200, 200, 200, 200, 429, 429]);
    let shown = client.get("/", user).field("ratelimit-policy");
    assert_eq!(shown.as_deref(), Some("\"real\";q=4;w=86400"));
    let shadow = |name: &str, rule: &str| gateway.metric(name, &[&format!("rule=\"{rule}\""), "mode=\"shadow\""]);
    for (rule, allowed, rejected) in [("strict", 1.0, 3.0), ("real", 2.0, 2.0), ("tomorrow", 1.0, 3.0)] {
        assert_eq!(shadow("rate_limiter_allowed_total", rule), allowed, "{rule}");
        assert_eq!(shadow("rate_limiter_rejected_total", rule), rejected, "{rule}");
    }
}

#[test]
fn a_hostile_value_never_reaches_the_bucket_of_another() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &upstream,
        "
rules:
  - {name: pair, limit_keys: [query:a, query:b], algorithm_config: {rate: 1/day}}",
    );
    let mut client = gateway.client();
    let targets = [
        "/?a=x&b=y",
        "/?a=x%7Cy&b=z",
        "/?a=x&b=y%7Cz",
        "/?a=x%00&b=y",
        "/?a=x&b=%00y",
        "/?a=y&b=x",
        "/?a=x%0A&b=y",
        "/?a=X&b=y",
        "/?a=%ff&b=y",
        "/?a=%fe&b=y",
    ];
    for target in targets {
        assert_eq!(client.get(target, &[]).status, 200, "{target}");
    }
    for target in targets {
        assert_eq!(client.get(target, &[]).status, 429, "{target}");
    }
}

#[test]
fn under_load_no_more_than_the_burst_passes() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &upstream,
        "
rules:
  - {name: all, limit_keys: [ip:address], algorithm_config: {rate: 500/day}}",
    );
    let passed = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                let mut client = gateway.client();
                for _ in 0..100 {
                    if client.get("/", &[]).status == 200 {
                        passed.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    assert_eq!(passed.into_inner(), 500);
    assert_eq!(upstream.seen().len(), 500);
}

#[test]
fn ambiguity_that_only_a_shadow_reads_refuses_no_request() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &upstream,
        "
policies:
  - name: next
    mode: shadow
    rules: [{name: user, match: {path: /v1/*}, limit_keys: [header:x-user], algorithm_config: {rate: 1/day}}]",
    );
    let twice: &[_] = &[("X-User", "a"), ("X-User", "b")];
    assert_eq!(codes(&mut gateway.client(), &[("/v1/x", twice), ("/v1/%2f", NONE)]), [200, 200]);
}
