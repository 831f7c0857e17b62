//! Bans of two gateways on each kind of Redis: a cluster, and a master that Sentinel names.

use super::{guess, limit, reason, send, upstream};
use crate::support::sentinel::{SentinelGroup, SentinelSetup};
use crate::support::{Gateway, RedisCluster, Replicas, eventually, tollgate};

/// Bans a user by one gateway, asks the other one, and lifts the ban.
fn play(store: &str) -> [Gateway; 2] {
    let upstream = upstream();
    let gateways = [(); 2].map(|()| Gateway::start(&upstream, &(store.to_owned() + &limit("for: [1h, 24h]"))));
    let [one, other] = &gateways;
    eventually("the store decides", || send(one, "bob", 200).field("ratelimit").is_some());
    guess(one, "ann");
    eventually("the ban begins", || reason(&send(one, "ann", 200)).as_deref() == Some("banned"));
    let banned = send(other, "ann", 200);
    assert_eq!((banned.status, reason(&banned).as_deref()), (429, Some("banned")));
    assert!(banned.number("retry-after") > 3500, "{banned:?}");
    assert_eq!(send(other, "bob", 200).status, 200);
    let bans = gateways.iter().map(|gateway| gateway.metric("rate_limiter_bans_total", &["step=\"1\""]));
    assert!(bans.sum::<f64>() == 1.0);
    let file = other.file("gateway.yaml").display().to_string();
    let lifted = tollgate(&["bucket", "reset", "guesses", "header:x-user=ann", "-c", &file]);
    assert_eq!(lifted.code, Some(0), "{}{}", lifted.out, lifted.err);
    for gateway in &gateways {
        eventually("the ban is lifted", || send(gateway, "ann", 200).status == 200);
    }
    gateways
}

#[test]
fn gateways_share_bans_in_a_cluster_that_is_spread() {
    let cluster = RedisCluster::start(Replicas::None);
    play(&cluster.store("deny", ""));
}

#[test]
fn gateways_share_bans_that_outlive_a_master_by_sentinel() {
    let mut group = SentinelGroup::with(&SentinelSetup::default());
    let store = format!("store: {{redis: {{{}, timeout: 10s}}}}\non_store_failure: deny\n", group.section(""));
    let gateways = play(&store);
    let [one, other] = &gateways;
    // Ann's ban was lifted with its step, so this is the first one again.
    guess(other, "eve");
    eventually("the ban begins", || reason(&send(other, "eve", 200)).as_deref() == Some("banned"));
    let () = group.servers[0].command(&["WAIT", "1", "5000"]);
    group.servers[0].kill();
    // This gateway has never seen the ban: only the new master can have it.
    eventually("the new master decides", || reason(&send(one, "eve", 200)).as_deref() == Some("banned"));
    assert_eq!(send(one, "bob", 200).status, 200);
}
