//! Two gateways under load on a cluster of three masters with replicas, while masters die, hang and are replaced and slots
//! move: every request is answered in time, and no window grants more than a successor had not heard of.

use std::time::Duration;

use crate::exactness::history::windows::excess;
use crate::exactness::history::{ClockOffset, Numbers, Sample, rules};
use crate::redis::faults_under_load::{BURST, Ending, Load, RATE, RequestRecord, ask_on, grants, pause};
use crate::support::{Gateway, RedisCluster, Replicas, Upstream, eventually, now, print_measured, short_or_long};

/// What a fault may grant beyond every window, of each bucket.
const NOTHING: u64 = 0;
const ONE_BURST: u64 = BURST;

/// Plays a fault under load. `happens` returns when the successor said that it is a master, if there is one.
#[track_caller]
fn survive(
    fault: &str,
    bound: u64,
    cluster: &mut RedisCluster,
    (gateways, users): (&[Gateway; 2], &[String]),
    happens: impl FnOnce(&mut RedisCluster, &Load) -> Option<i64>,
) {
    let samples = samples();
    let load = Load::start(&samples);
    let (promoted, seen) = std::thread::scope(|scope| {
        let load = &load;
        let ending = Ending(load);
        let callers: Vec<_> = gateways
            .iter()
            .flat_map(|gateway| users.iter().map(move |user| (gateway, user)))
            .map(|(gateway, user)| (user, scope.spawn(move || ask_on(gateway, 0, user, load))))
            .collect();
        load.await_refusals();
        let promoted = happens(cluster, load);
        pause(1_000);
        load.await_refusals();
        drop(ending);
        let seen: Vec<(&String, Vec<RequestRecord>)> =
            callers.into_iter().map(|(user, caller)| (user, caller.join().unwrap())).collect();
        (promoted, seen)
    });
    // Each was answered: a connection that fails is a panic.
    let all = || seen.iter().flat_map(|(_, seen)| seen);
    assert!(all().all(|request| matches!(request.status, 200 | 429 | 503)), "{fault}");
    let longest = all().map(|request| request.answered - request.sent).max().unwrap() / 1000;
    let limit = &samples[0].limit;
    let of_user = |user: &String| {
        let own = seen.iter().filter(|(other, _)| *other == user).flat_map(|(_, seen)| grants(seen, 0));
        excess(limit, &own.collect::<Vec<_>>(), &ClockOffset::default())
    };
    let beyond = users.iter().map(of_user).max().unwrap();
    let back = promoted.map(|promoted| {
        let first = |(_, seen): &(&String, Vec<RequestRecord>)| {
            let granted = seen.iter().filter(|request| request.status == 200 && request.sent > promoted);
            granted.map(|request| request.answered - promoted).min().expect("it is decided again") / 1000
        };
        seen.iter().map(first).max().unwrap()
    });
    print_measured(&format!(
        "cluster: {fault}: {} requests, {} granted, {} unavailable, longest {longest} ms, back after {back:?} ms, excess {}, \
         bound {bound}",
        all().count(),
        all().filter(|request| request.status == 200).count(),
        all().filter(|request| request.status == 503).count(),
        limit.tokens(beyond),
    ));
    assert!(longest < 1_000, "{fault}: {longest} ms");
    assert!(beyond <= limit.price(bound * 1000), "{fault}: {}", limit.tokens(beyond));
    // A busy machine takes longer: the short form allows it three times as long.
    assert!(back.is_none_or(|back| back < short_or_long(3_000, 1_000)), "{fault}: {back:?} ms");
    for gateway in gateways {
        eventually("every node is connected to", || gateway.metric("rate_limiter_store_up", &[]) >= 4.0);
    }
}

fn samples() -> [Sample; 1] {
    [Sample { name: "token_bucket", limit: Numbers::per_second(RATE, BURST).into() }]
}

/// How many keys each master has.
fn keys(cluster: &RedisCluster) -> Vec<usize> {
    cluster.masters.iter().map(|master| master.keys().len()).collect()
}

/// One for each master, by where its bucket is.
fn users(cluster: &RedisCluster, gateway: &Gateway) -> Vec<String> {
    let mut client = gateway.client();
    let mut on: [Option<String>; 3] = Default::default();
    for user in (0..100).map(|number| format!("user{number}")) {
        let before = keys(cluster);
        client.get("/", &[(&samples()[0].header(), &user)]);
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

/// Waits until a replica is a master.
#[track_caller]
fn promotion(cluster: &RedisCluster, replica: usize, load: &Load) -> Option<i64> {
    let deadline = now() + Duration::from_secs(20);
    while !cluster.replicas[replica].role().starts_with("master") {
        assert!(now() < deadline, "the replica was not promoted");
        pause(2);
    }
    Some(load.micros())
}

#[test]
fn gateways_under_load_survive_what_happens_to_a_cluster() {
    for _ in 0..short_or_long(1, 5) {
        play();
    }
}

fn play() {
    let (mut cluster, upstream) = (RedisCluster::start(Replicas::OneEach), Upstream::start());
    let text = cluster.store("deny", "").replace("timeout: 500ms", "timeout: 50ms") + &rules(&samples());
    let gateways = [(); 2].map(|()| Gateway::start(&upstream, &text));
    for node in cluster.addresses() {
        let node = format!("node=\"{node}\"");
        gateways.iter().for_each(|gateway| gateway.expect("rate_limiter_store_up", &[&node], 1.0));
    }
    let users = users(&cluster, &gateways[0]);
    let played = (&gateways, &users[..]);
    survive("64 slots to another master, and back", NOTHING, &mut cluster, played, |cluster, _| {
        // With those of two hash tags.
        let slots = |first: u16| (first..first + 32).chain(first + 1024..first + 1056);
        cluster.reshard(slots(496), 0, 1);
        cluster.reshard(slots(496), 1, 0);
        None
    });
    survive("CLUSTER FAILOVER", ONE_BURST, &mut cluster, played, |cluster, load| {
        let () = cluster.replicas[0].command(&["CLUSTER", "FAILOVER"]);
        promotion(cluster, 0, load)
    });
    survive("SIGSTOP of a master, SIGCONT after the failover", ONE_BURST, &mut cluster, played, |cluster, load| {
        cluster.masters[1].signal("STOP");
        let promoted = promotion(cluster, 1, load);
        pause(300);
        cluster.masters[1].signal("CONT");
        promoted
    });
    survive("kill -9 of a master", ONE_BURST, &mut cluster, played, |cluster, load| {
        cluster.masters[2].kill();
        promotion(cluster, 2, load)
    });
}
