//! Sentinels are ordered to move a master that is alive. Until it notices this, two servers claim to be masters, and
//! sentinels name both.

use super::discovery::{RULES, is_decided};
use crate::support::sentinel::{AS_SHIPPED, MASTER, SentinelGroup, SentinelSetup};
use crate::support::{Client, Gateway, Upstream, eventually, print_measured, short_or_long};

#[test]
fn connections_follow_an_ordered_failover_once_and_never_go_back() {
    let group = SentinelGroup::with(&SentinelSetup { down_after: 5_000, ..SentinelSetup::default() });
    // The others learn from the one that promotes after up to two seconds.
    for sentinel in &group.sentinels {
        sentinel.command(&AS_SHIPPED);
    }
    let upstream = Upstream::start();
    let gateways = [(); 4].map(|()| Gateway::start(&upstream, &(group.store("deny") + RULES)));
    for gateway in &gateways {
        is_decided(gateway);
        gateway.expect("rate_limiter_store_up", &[], 1.0);
    }
    let moved = |gateway: &Gateway| gateway.metric("rate_limiter_store_errors_total", &["kind=\"moved\""]);
    for round in 0..short_or_long(1, 10) {
        let (from, to) = (round % 2, 1 - round % 2);
        let [from_port, to_port] = [from, to].map(|server| group.servers[server].port);
        eventually("the sentinel knows the replica", || group.servers[to].role() == "slave connected");
        let before: Vec<(usize, f64)> =
            gateways.iter().map(|gateway| (gateway.errors().len(), moved(gateway))).collect();
        eventually("a sentinel follows the order", || {
            drop(group.sentinels[0].try_command(&["SENTINEL", "FAILOVER", MASTER]));
            group.servers[to].role() == "master"
        });
        eventually("every sentinel names the successor", || {
            group.sentinels.iter().all(|sentinel| sentinel.names() == Some(to_port))
        });
        for (gateway, (logged, moved_before)) in gateways.iter().zip(before) {
            eventually("it is connected to the successor", || {
                let status = Client::connect(gateway.admin).get("/status.json", &[]).json();
                status["store"]["server"] == format!("127.0.0.1:{to_port}")
            });
            let times = moved(gateway) - moved_before;
            print_measured(&format!("two connections moved {times} times"));
            let log = gateway.errors()[logged..].to_owned();
            assert!(!log.contains(&format!("store is up server=127.0.0.1:{from_port}")), "{log}");
            assert!(times <= 2.0, "{times} times: {log}");
        }
    }
}
