//! Many clients with one request and their own key each: they leave nothing behind. `benches/keys.py` does this with a
//! million keys.

use std::collections::BTreeSet;

use crate::support::{Client, Gateway, Redis, Upstream, eventually, print_measured};

/// Each bucket is full again after two seconds.
const RULES: &str = "rules: [{name: key, limit_keys: [query:k], algorithm_config: {rate: 30/min, burst: 1}}]";
const KEYS: usize = 2000;

fn page(gateway: &Gateway) -> String {
    Client::connect(gateway.admin).get("/metrics", &[("Connection", "close")]).body
}

/// Returns the series of a metrics page without their values. The page has no fixed order.
fn series(page: &str) -> BTreeSet<&str> {
    page.lines().filter(|line| !line.starts_with('#')).filter_map(|line| Some(line.rsplit_once(' ')?.0)).collect()
}

/// Sends one request for each key, many of them in one write.
fn come(gateway: &Gateway, keys: usize) {
    let mut client = gateway.client();
    for begin in (0..keys).step_by(50) {
        let requests = (begin..begin + 50).map(|key| format!("GET /?k={key} HTTP/1.1\r\nHost: a\r\n\r\n"));
        client.write(&requests.collect::<String>());
        for _ in 0..50 {
            assert_eq!(client.response("GET").unwrap().status, 200);
        }
    }
}

#[test]
fn max_buckets_bounds_buckets_in_memory_and_full_ones_are_freed() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, &format!("store: {{memory: {{max_buckets: 200}}}}\n{RULES}"));
    assert_eq!(gateway.client().get("/?k=first", &[]).status, 200);
    gateway.expect("tollgate_http_requests_total", &["code=\"200\""], 1.0);
    let before = page(&gateway);
    come(&gateway, KEYS);
    let after = page(&gateway);
    assert!(gateway.metric("rate_limiter_buckets", &[]) <= 200.0);
    assert!(gateway.metric("rate_limiter_evicted_total", &[]) > 0.0);
    assert_eq!(series(&after).symmetric_difference(&series(&before)).collect::<Vec<_>>(), [&""; 0]);
    eventually("all are full again, and freed", || gateway.metric("rate_limiter_buckets", &[]) == 0.0);
}

#[test]
fn full_buckets_expire_in_redis() {
    let (upstream, redis) = (Upstream::start(), Redis::start());
    // Full again after four seconds: they are counted before.
    let rules = RULES.replace("30/min", "15/min");
    let gateway = Gateway::start(&upstream, &(redis.patient_store() + &rules));
    assert_eq!(gateway.client().get("/?k=first", &[]).status, 200);
    // Beside the gateway's own three, by which others hear of it.
    let size = || redis.command::<usize>(&["DBSIZE"]);
    gateway.expect("tollgate_http_requests_total", &["code=\"200\""], 1.0);
    let before = page(&gateway);
    come(&gateway, KEYS);
    assert!(size() > 3, "{}", size());
    let after = page(&gateway);
    assert_eq!(series(&after).symmetric_difference(&series(&before)).collect::<Vec<_>>(), [&""; 0]);
    eventually("all are full again, and gone", || size() <= 3);
}

/// Returns the memory that Redis uses without its clients' connections.
fn memory(redis: &Redis) -> u64 {
    let text: String = redis.command(&["INFO", "memory"]);
    let number = |name: &str| -> u64 {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap();
        line.parse().unwrap()
    };
    number("used_memory") - number("mem_clients_normal")
}

#[test]
fn a_bucket_in_redis_takes_at_most_180_bytes() {
    const BUCKETS: usize = 12_000;
    let (upstream, redis) = (Upstream::start(), Redis::start());
    // The longest prefix. Each bucket needs a day to fill up.
    let store = redis.patient_store().replace("timeout: 10s", "timeout: 10s, prefix: abcdefghijk");
    let rules = RULES.replace("30/min", "1/day");
    let gateway = Gateway::start(&upstream, &(store + &rules));
    assert_eq!(gateway.client().get("/?k=first", &[]).status, 200);
    assert!(redis.keys().iter().any(|key| key.starts_with(b"abcdefghijk:")), "{:?}", redis.keys());
    let before = memory(&redis);
    come(&gateway, BUCKETS);
    assert_eq!(redis.keys().len(), 1 + BUCKETS);
    let each = (memory(&redis) - before) / u64::try_from(BUCKETS).unwrap();
    print_measured(&format!("{each} bytes in Redis for each of {BUCKETS} buckets"));
    assert!(each <= 180, "{each} bytes for each");
}
