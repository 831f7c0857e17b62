//! Timed holds of the door `json` beside a limit over several regions.

use serde_json::json;

use super::{REGIONS, on_redis, store};
use crate::edges::holds::{hold, job, settle};
use crate::edges::json_door::{start, take};
use crate::support::{Redis, RedisCluster, Replicas, node_list};

/// A slot, and a limit over all regions, for each tenant.
const RULES: &str = r#"
hash_key: 0123456789abcdef
rules:
  - name: jobs
    match: {descriptor:kind: job}
    limit_keys: ["descriptor:tenant"]
    limits:
      running: {algorithm: concurrency, limit: 1}
      year: {algorithm: fixed_window, limit: 100, window: year, scope: global}
"#;

#[test]
fn a_hold_whose_purse_was_empty_at_first_is_held_and_settled() {
    let home = Redis::start();
    let (one, cluster) = (Redis::start(), RedisCluster::start(Replicas::None));
    let on_one = store(&one, REGIONS[0], &on_redis(home.port));
    let nodes = format!("redis: {{cluster: {{nodes: {}}}, timeout: 2s}}", node_list([cluster.masters[0].port]));
    let spread = on_one.replace(&format!("redis: {{url: \"redis://127.0.0.1:{}\", timeout: 2s}}", one.port), &nodes);
    let spread = spread.replace("region: eu", "region: us");
    for store in [on_one, spread] {
        let gateway = start(&(store + RULES));
        gateway.expect_logged("home is up");
        let mut client = gateway.client();
        // The buckets of most tenants are under two hash tags.
        for tenant in 0..20 {
            let tenant = format!("tenant {tenant}");
            let id = hold(&mut client, &tenant, "1h");
            let refused = take(&mut client, &job(&tenant, 1, "1h"));
            assert_eq!(refused.field("x-tollgate-reason").as_deref(), Some("concurrency_exceeded"), "{refused:?}");
            let settled = settle(&mut client, &json!({"hold_id": id}));
            assert_eq!((settled.status, settled.json()), (200, json!({"settled": true})), "{tenant}: {settled:?}");
            // The purse has more now, so this is one try.
            hold(&mut client, &tenant, "1h");
        }
        assert!(gateway.metric("rate_limiter_home_calls_total", &[]) >= 20.0);
    }
}
