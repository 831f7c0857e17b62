//! `tollgate bucket` and `explain --live` on PostgreSQL.

use crate::support::{Gateway, Postgres, Upstream, tollgate};

const RULES: &str = "rules:\n  - {name: one, limit_keys: [header:x-user], algorithm_config: {rate: 10/day}}\n";

#[test]
fn buckets_are_shown_given_back_and_reset() {
    let (postgres, upstream) = (Postgres::start(), Upstream::start());
    postgres.settings();
    let gateway = Gateway::start(&upstream, &(postgres.store_with(", timeout: 10s", "deny") + RULES));
    gateway.expect("rate_limiter_store_up", &[], 1.0);
    let mut client = gateway.client();
    let statuses: Vec<_> = (0..12).map(|_| client.get("/", &[("X-User", "a")]).status).collect();
    assert_eq!(statuses, [[200; 10].as_slice(), &[429; 2]].concat());
    let file = gateway.file("gateway.yaml");
    let bucket = |words: &[&str]| {
        let output = tollgate(&[&["bucket"], words, &["-c", file.to_str().unwrap()]].concat());
        assert_eq!(output.code, Some(0), "{}", output.err);
        output.out
    };
    let shown = bucket(&["show", "one", "header:x-user=a"]);
    assert!(shown.contains("PostgreSQL at 127.0.0.1"), "{shown}");
    bucket(&["grant", "one", "header:x-user=a", "3"]);
    std::thread::sleep(std::time::Duration::from_millis(1100));
    let granted = (0..5).filter(|_| client.get("/", &[("X-User", "a")]).status == 200).count();
    assert_eq!(granted, 3);
    bucket(&["reset", "one", "header:x-user=a"]);
    assert_eq!(postgres.sql("SELECT count(*) FROM tollgate_bucket"), "0");
    let explained =
        tollgate(&["explain", "--live", "-c", file.to_str().unwrap(), "-H", "X-User: a", "http://example.com/"]);
    assert_eq!(explained.code, Some(0), "{}", explained.err);
    assert!(explained.out.contains("10 of 10") || explained.out.contains("10 left"), "{}", explained.out);
}
