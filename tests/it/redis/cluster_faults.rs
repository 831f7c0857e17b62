//! Two gateways under load on a cluster of three masters with replicas, while masters die, hang, lose data and are replaced,
//! and slots move. Every request is answered in time, and no window grants more than the data that a successor lacked.

use std::time::Duration;

use crate::exactness::failover::{Back, Bound, Failover, LoadClient, token_bucket};
use crate::exactness::history::{Numbers, Sample, rules};
use crate::redis::faults_under_load::{Load, pause};
use crate::support::{Gateway, Redis, RedisCluster, Replicas, Upstream, eventually, now, short_or_long};

/// A cluster of masters with one replica each, and two gateways under load. Each gateway gets requests for a bucket on each
/// master.
struct ClusterTest {
    cluster: RedisCluster,
    gateways: [Gateway; 2],
    samples: [Sample; 1],
    users: Vec<String>,
    _upstream: Upstream,
}

impl ClusterTest {
    /// Starts the test. `settings` are settings of redis.conf, as arguments of each node.
    fn start(settings: &[&str], samples: [Sample; 1]) -> ClusterTest {
        let (cluster, upstream) = (RedisCluster::start_with(Replicas::OneEach, settings), Upstream::start());
        let text = cluster.store("deny", "").replace("timeout: 10s", "timeout: 50ms") + &rules(&samples);
        let gateways = [(); 2].map(|()| Gateway::start(&upstream, &text));
        for node in cluster.addresses() {
            let node = format!("node=\"{node}\"");
            gateways.iter().for_each(|gateway| gateway.expect("rate_limiter_store_up", &[&node], 1.0));
        }
        let users = users(&cluster, &gateways[0], &samples[0]);
        ClusterTest { cluster, gateways, samples, users, _upstream: upstream }
    }

    /// Runs a [`Failover`]. `happens` returns the time at which the successor accepted writes, if there is one.
    #[track_caller]
    fn survive(
        &mut self,
        fault: &str,
        bound: Bound,
        happens: impl FnOnce(&mut RedisCluster, &Load) -> Option<i64>,
    ) -> i128 {
        let ClusterTest { cluster, gateways, samples, users, .. } = self;
        let clients = users.iter().map(|user| LoadClient { sample: 0, user: user.clone() }).collect();
        let fault = format!("cluster, {fault}");
        let (back, up) = (Back::Granted, 4.0);
        Failover { fault: &fault, gateways, samples, clients, bound, back, up }.survive(|load| happens(cluster, load))
    }
}

/// Returns the number of keys of each master.
fn keys(cluster: &RedisCluster) -> Vec<usize> {
    cluster.masters.iter().map(|master| master.keys().len()).collect()
}

/// Returns a user for each master, whose bucket is there.
fn users(cluster: &RedisCluster, gateway: &Gateway, sample: &Sample) -> Vec<String> {
    let mut client = gateway.client();
    let mut on: [Option<String>; 3] = Default::default();
    for user in (0..100).map(|number| format!("user{number}")) {
        let before = keys(cluster);
        client.get("/", &[(&sample.header(), &user)]);
        let after = keys(cluster);
        if let Some(index) = (0..3).find(|index| after[*index] > before[*index]) {
            on[index].get_or_insert(user);
        }
        if on.iter().all(Option::is_some) {
            break;
        }
    }
    on.into_iter().flatten().collect()
}

/// Waits until a replica has become a master.
#[track_caller]
fn promotion(cluster: &RedisCluster, replica: usize, load: &Load) -> Option<i64> {
    let deadline = now() + Duration::from_secs(20);
    while !cluster.replicas[replica].role().starts_with("master") {
        assert!(now() < deadline, "the replica was not promoted");
        pause(2);
    }
    Some(load.micros())
}

/// The rate is so low that a bucket is far from full after a failover. So data that a replica lacks becomes visible.
fn slow_token_bucket() -> [Sample; 1] {
    [Sample { name: "token_bucket", limit: Numbers::per_second(10, 40).into() }]
}

/// Cuts a master's replicas off from it. The master still serves its clients.
fn cut_off(master: &Redis) {
    master.command::<()>(&["ACL", "SETUSER", "default", "-psync", "-sync"]);
    master.command::<i64>(&["CLIENT", "KILL", "TYPE", "replica"]);
}

#[test]
fn gateways_under_load_survive_what_happens_to_a_cluster() {
    for _ in 0..short_or_long(1, 5) {
        let mut played = ClusterTest::start(&[], token_bucket());
        played.survive("64 slots to another master, and back", Bound::Nothing, |cluster, _| {
            // With those of two hash tags.
            let slots = |first: u16| (first..first + 32).chain(first + 1024..first + 1056);
            cluster.reshard(slots(496), 0, 1);
            cluster.reshard(slots(496), 1, 0);
            None
        });
        played.survive("CLUSTER FAILOVER", Bound::All, |cluster, load| {
            let () = cluster.replicas[0].command(&["CLUSTER", "FAILOVER"]);
            promotion(cluster, 0, load)
        });
        let fault = "SIGSTOP of a master, SIGCONT after the failover";
        played.survive(fault, Bound::All, |cluster, load| {
            cluster.masters[1].signal("STOP");
            let promoted = promotion(cluster, 1, load);
            pause(300);
            cluster.masters[1].signal("CONT");
            promoted
        });
        played.survive("kill -9 of a master", Bound::All, |cluster, load| {
            cluster.masters[2].kill();
            promotion(cluster, 2, load)
        });
    }
}

#[test]
fn gateways_under_load_survive_what_a_cluster_forgets() {
    for _ in 0..short_or_long(1, 5) {
        let mut played = ClusterTest::start(&["--appendonly", "yes", "--appendfsync", "everysec"], slow_token_bucket());
        let times = short_or_long(1, 10);
        let fault = format!("kill -9 and restart of a master, appendfsync everysec, {times} times");
        played.survive(&fault, Bound::All, |cluster, _| {
            // It stays the master, however long the machine takes to restart it.
            let () = cluster.replicas[0].command(&["CONFIG", "SET", "cluster-replica-no-failover", "yes"]);
            for _ in 0..times {
                cluster.masters[0].kill();
                pause(100);
                cluster.masters[0].restart();
                cluster.wait_until_it_serves();
            }
            None
        });
        // Full again, so that all windows that begin now have a burst.
        played.cluster.masters[1].command::<()>(&["FLUSHALL"]);
        let fault = "a replica that has heard nothing for a second is promoted";
        let excess = played.survive(fault, Bound::All, |cluster, load| {
            cut_off(&cluster.masters[1]);
            pause(1_000);
            cluster.masters[1].kill();
            promotion(cluster, 1, load)
        });
        assert!(excess > 0, "nothing was lost");
        played.cluster.masters[2].command::<()>(&["FLUSHALL"]);
        // What it grants in the moment at which it loses its replica.
        let bound = Bound::Tokens(5);
        let fault = "the same, min-replicas-to-write 1, the old master is restarted";
        played.survive(fault, bound, |cluster, load| {
            for node in [&cluster.masters[2], &cluster.replicas[2]] {
                let () = node.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
            }
            cut_off(&cluster.masters[2]);
            pause(1_000);
            cluster.masters[2].kill();
            promotion(cluster, 2, load);
            cluster.masters[2].restart();
            eventually("the successor has a replica", || cluster.replicas[2].accepts_writes());
            Some(load.micros())
        });
    }
}
