//! `tollgate explain` on limits of slots: numbers, levels, and requests about which other proxies ask.

use super::upstream::SlowUpstream;
use super::{begin, slots};
use crate::support::{Gateway, Redis, tollgate};

#[test]
fn explain_shows_free_slots_and_who_would_be_refused() {
    let (slow, redis) = (SlowUpstream::start(), Redis::start());
    let gateway = Gateway::start(&slow.upstream, &format!("{}{}", redis.patient_store(), slots(2)));
    let file = gateway.file("gateway.yaml");
    let live = |user: &str| {
        tollgate(&["explain", "--live", "-c", file.to_str().unwrap(), "-H", &format!("X-User: {user}"), "/"]).out
    };
    let page = live("ann");
    assert!(page.contains("2 at once") && page.contains("2 left") && page.contains("PASSES: in-flight"), "{page}");
    let _running = [(); 2].map(|()| begin(&gateway, "/hold", "ann"));
    slow.expect_running(2);
    let page = live("ann");
    let refused = "REFUSED 429 concurrency_exceeded by in-flight: needs 1, has 0, passes when a request ends";
    assert!(page.contains(refused) && page.contains("0 left  SHORT"), "{page}");
    assert!(live("bob").contains("PASSES: in-flight would pay 1, and hold 1 then"));
    slow.finish(2);
}

#[test]
fn explain_says_where_slots_do_not_apply() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("gateway.yaml");
    let listeners = "\
listeners:
  - {name: web, address: 127.0.0.1:8080}
  - {name: edge, address: 127.0.0.1:9100, decide: [http], clients: [127.0.0.0/8], original_request: path}
upstream: http://127.0.0.1:9000
check: {allow: [slots_at_door]}
rules: [{name: in-flight, limit_keys: [ip:address], algorithm: concurrency, algorithm_config: {limit: 8, max_hold: 90s}}]
";
    std::fs::write(&file, listeners).unwrap();
    let explain = |listener: &str| {
        let ip = ["--ip", "203.0.113.7", "--listener", listener, "http://a/"];
        tollgate(&[&["explain", "-c", file.to_str().unwrap()], &ip[..]].concat()).out
    };
    let web = explain("web");
    assert!(web.contains("8 at once max_hold 90s"), "{web}");
    let edge = explain("edge");
    assert!(edge.contains("no charge: another proxy forwards the request"), "{edge}");
    assert!(!edge.contains("8 at once"), "{edge}");
}
