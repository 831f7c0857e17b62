//! Of several hosts the one that accepts writes is used: a replica is promoted when its primary has gone.

use std::time::Duration;

use crate::support::{Gateway, Postgres, Upstream, now, print_measured};

#[test]
fn a_promoted_replica_is_found_and_continues_with_what_it_has() {
    let (mut primary, upstream) = (Postgres::start(), Upstream::start());
    primary.settings();
    let replica = primary.replica();
    let url = format!("postgres://tollgate@127.0.0.1:{},127.0.0.1:{}/limits", replica.port, primary.port);
    let text = format!(
        "store: {{postgres: {{url: \"{url}\", timeout: 2s}}}}\non_store_failure: deny\n\
         rules:\n  - {{name: one, limit_keys: [], algorithm_config: {{rate: 100/day}}}}\n"
    );
    let gateway = Gateway::start(&upstream, &text);
    gateway.expect("rate_limiter_store_up", &[], 1.0);
    let mut client = gateway.client();
    let spent = (0..40).filter(|_| client.get("/", &[]).status == 200).count();
    assert_eq!(spent, 40);
    replica.has_caught_up_with(&primary);
    primary.stop("immediate");
    replica.promote();
    let (promoted, deadline) = (now(), now() + Duration::from_secs(10));
    while client.get("/", &[]).status != 200 {
        assert!(now() < deadline, "never found: {}", gateway.errors());
        std::thread::sleep(Duration::from_millis(5));
    }
    print_measured(&format!("PostgreSQL: the first decision {:?} after the promotion", promoted.elapsed()));
    // What had reached the replica is spent.
    let rest = (0..100).filter(|_| client.get("/", &[]).status == 200).count();
    assert_eq!(rest, 59);
}
