//! Measures what is lost in a crash of PostgreSQL, for each `durability`.

use stores::postgres::{Durability, Settings, schema};

use crate::support::{Gateway, Postgres, Upstream, print_measured, short_or_long};

const BURST: usize = 20;

#[test]
fn a_crash_forgets_what_the_durability_allows() {
    let (mut postgres, upstream) = (Postgres::start(), Upstream::start());
    let settings = postgres.settings();
    let crashes = short_or_long(1, 20);
    let all = BURST * (1 + crashes);
    for durability in Durability::ALL {
        postgres.sql(&schema::statements(&Settings { durability, ..settings.clone() }));
        postgres.sql("DELETE FROM tollgate_bucket");
        let keys = format!(", timeout: 10s, durability: {}", durability.name());
        let rule = format!("{{name: one, limit_keys: [], algorithm_config: {{rate: {BURST}/day, burst: {BURST}}}}}");
        let gateway = Gateway::start(&upstream, &format!("{}rules:\n  - {rule}\n", postgres.store_with(&keys, "deny")));
        let spend = || {
            gateway.expect("rate_limiter_store_up", &[], 1.0);
            let mut client = gateway.client();
            let statuses: Vec<u16> = (0..2 * BURST).map(|_| client.get("/", &[]).status).collect();
            assert!(statuses.iter().all(|status| [200, 429].contains(status)), "{statuses:?}: {}", gateway.errors());
            statuses.iter().filter(|status| **status == 200).count()
        };
        let mut granted = spend();
        assert_eq!(granted, BURST);
        for _ in 0..crashes {
            postgres.stop("immediate");
            gateway.expect("rate_limiter_store_up", &[], 0.0);
            postgres.launch();
            granted += spend();
        }
        let beyond = granted - BURST;
        let name = durability.name();
        print_measured(&format!(
            "PostgreSQL, {crashes} crashes, durability {name}: {beyond} of {} beyond",
            all - BURST
        ));
        match durability {
            Durability::None => assert_eq!(granted, all),
            Durability::Async => assert!(granted <= all),
            Durability::Sync => assert_eq!(beyond, 0),
        }
    }
}
