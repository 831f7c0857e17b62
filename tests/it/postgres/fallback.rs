//! Stops, kills and restarts PostgreSQL: clients get the answers of their limit's `on_store_failure`.

use crate::support::{Client, Gateway, Postgres, Upstream, eventually};

/// A change of the server's state.
type Outage = fn(&mut Postgres);

fn ask(client: &mut Client, key: &str) -> u16 {
    client.get("/", &[(key, "a")]).status
}

/// Returns how many requests in a row pass.
fn passing(client: &mut Client, key: &str) -> usize {
    (0..100).take_while(|_| ask(client, key) == 200).count()
}

#[test]
fn gateways_share_the_remaining_tokens_when_postgresql_fails() {
    let (mut postgres, upstream) = (Postgres::start(), Upstream::start());
    postgres.settings();
    let text = format!(
        "store: {{postgres: {{url: \"postgres://tollgate@127.0.0.1:{}/limits\", timeout: 5s}}, gateways: 2}}\n\
         rules:\n  - {{name: one, limit_keys: [header:x-user], algorithm_config: {{rate: 12/day}}}}\n",
        postgres.port
    );
    let gateways = [(); 2].map(|()| Gateway::start(&upstream, &text));
    for gateway in &gateways {
        gateway.expect("rate_limiter_store_up", &[], 1.0);
    }
    let [mut first, mut second] = gateways.each_ref().map(Gateway::client);
    // Of the twelve four are spent; both gateways have seen the bucket last when eight were left, or nine.
    assert_eq!([(); 3].map(|()| ask(&mut first, "X-User")), [200; 3]);
    assert_eq!(ask(&mut second, "X-User"), 200);
    postgres.stop("immediate");
    for gateway in &gateways {
        gateway.expect("rate_limiter_store_up", &[], 0.0);
    }
    assert_eq!([passing(&mut first, "X-User"), passing(&mut second, "X-User")], [4, 4]);
    let refused = second.get("/", &[("X-User", "a")]);
    assert_eq!(refused.status, 429, "{refused:?}");
    assert_eq!(refused.field("X-Tollgate-Reason").unwrap(), "token_bucket_exceeded");
    gateways[1].expect("rate_limiter_fallback_decisions_total", &["rule=\"one\"", "action=\"local\""], 6.0);
}

#[test]
fn clients_see_what_the_file_says_while_postgresql_is_stopped_killed_and_restarted() {
    let (mut postgres, upstream) = (Postgres::start(), Upstream::start());
    postgres.settings();
    let policy = |action: &str, amount: u64| {
        let rule = format!(
            "{{name: {action}, limit_keys: [header:x-{action}], on_store_failure: {action}, algorithm_config: {{rate: {amount}/day}}}}"
        );
        format!("  - {{name: {action}, rules: [{rule}]}}\n")
    };
    let [allow, deny, local] = [policy("allow", 9), policy("deny", 9), policy("local", 9)];
    let text =
        format!("{}policies:\n{allow}{deny}{local}", postgres.store_with(", timeout: 2s, durability: sync", "deny"));
    postgres.sql("ALTER DATABASE limits SET synchronous_commit = on");
    let gateway = Gateway::start(&upstream, &text);
    gateway.expect("rate_limiter_store_up", &[], 1.0);
    let mut client = gateway.client();
    let outages: [(&str, Outage); 3] = [
        ("stopped", |postgres| postgres.stop("fast")),
        ("killed", Postgres::kill),
        ("crashed", |postgres| postgres.stop("immediate")),
    ];
    let mut left = 9;
    for (what, breaks) in outages {
        for key in ["X-Allow", "X-Deny", "X-Local"] {
            assert_eq!(ask(&mut client, key), 200, "{what}: {key}");
        }
        left -= 1;
        breaks(&mut postgres);
        gateway.expect("rate_limiter_store_up", &[], 0.0);
        assert_eq!([(); 20].map(|()| ask(&mut client, "X-Allow")), [200; 20], "{what}");
        let denied = client.get("/", &[("X-Deny", "a")]);
        assert_eq!(denied.status, 503, "{what}");
        assert_eq!(denied.field("X-Tollgate-Reason").unwrap(), "store_unavailable", "{what}");
        assert!(denied.field("Retry-After").is_some(), "{what}: {denied:?}");
        // The only gateway grants what is left, at most; what it has granted alone is not granted again.
        let alone = passing(&mut client, "X-Local");
        assert!(if what == "stopped" { alone == left } else { alone < left }, "{what}: {alone} of {left}");
        postgres.launch();
        gateway.expect("rate_limiter_store_up", &[], 1.0);
        eventually("the database decides", || client.get("/", &[("X-Deny", "b")]).field("RateLimit").is_some());
    }
    // What was granted before each outage is still spent; what passed meanwhile was not charged.
    for key in ["X-Allow", "X-Deny", "X-Local"] {
        assert_eq!(passing(&mut client, key), left, "{key}");
    }
}
