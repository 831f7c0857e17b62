//! Slots in a Redis Cluster: what gateways hold under several hash tags, while nodes are lost and slots of the cluster
//! move.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use ledger::charge::{Charge, Plan};

use super::cluster::{LATE, PATIENT, TIMEOUT, charge, eventually_async, gateway, run, started, tag_slots};
use crate::support::charge::{plan, tagged_key};
use crate::support::slots::{self, EndOfLoad, ask, crowd, is_granted, take, take_all};
use crate::support::{RedisCluster, Replicas};

/// Returns a charge to a bucket of slots under this hash tag.
fn slot(bucket: u8, tag: u8, slots: u64) -> Charge {
    slots::slot(tagged_key(bucket, tag), slots)
}

#[test]
fn slots_are_shared_under_every_hash_tag() {
    let cluster = RedisCluster::start(Replicas::None);
    run(async {
        let [one, other] = [started(gateway(&cluster, 0, PATIENT)).await, started(gateway(&cluster, 1, PATIENT)).await];
        let plans: Vec<Plan> = (0..16).map(|tag| plan([slot(1, tag, 3)])).collect();
        let mut held = Vec::new();
        for plan in &plans {
            held.push(take(&one, plan, 2).await);
            held.push(take(&other, plan, 2).await);
        }
        let counts: Vec<usize> = held.iter().map(Vec::len).collect();
        assert_eq!(counts, [2, 1].repeat(16));
        // Nobody asks for anything for longer than a report counts.
        tokio::time::sleep(Duration::from_secs(8)).await;
        for plan in &plans {
            assert!(ask(&other, plan).await.unwrap().is_none(), "a long request keeps its slot");
        }
        held.clear();
        for plan in &plans {
            let (_, after) = take_all(&other, plan, 3).await;
            assert!(after < Duration::from_secs(1), "{after:?}");
        }
    });
}

#[test]
fn slots_and_tokens_under_several_hash_tags_are_taken_together_or_not_at_all() {
    let cluster = RedisCluster::start(Replicas::None);
    run(async {
        let store = started(gateway(&cluster, 0, PATIENT)).await;
        // The tokens are under lower tags than the slots, and under one tag with them.
        let [low, same, slots, more] = [charge(1, 0, 3), charge(2, 9, 3), slot(3, 9, 2), slot(4, 4, 9)];
        let all = plan([low.clone(), same.clone(), slots.clone(), more.clone()]);
        let mut held = take(&store, &all, 20).await;
        assert_eq!(held.len(), 2);
        held.pop();
        // The refused slots have spent no token: the third is still there, at both rates.
        held.extend(take_all(&store, &all, 1).await.0);
        held.pop();
        for _ in 0..20 {
            assert!(ask(&store, &all).await.unwrap().is_none(), "no token is left");
        }
        // The refused tokens hold no slot.
        let (free, _) = take_all(&store, &plan([slots]), 1).await;
        let (rest, _) = take_all(&store, &plan([more]), 8).await;
        assert_eq!((free.len(), rest.len(), held.len()), (1, 8, 1));
    });
}

#[test]
fn no_more_run_than_there_are_slots_while_the_slots_of_the_cluster_move() {
    let mut cluster = RedisCluster::start(Replicas::None);
    cluster.add_master();
    let done = Arc::new(AtomicBool::new(false));
    // A master without slots would become a replica.
    cluster.reshard([0].into_iter(), 0, 3);
    // A long request under each tag holds a slot all the time.
    let both = plan([slot(1, 0, 5), slot(2, 2, 6)]);
    std::thread::scope(|scope| {
        let (ended, cluster) = (Arc::clone(&done), &cluster);
        scope.spawn(move || {
            let _ends = EndOfLoad(ended);
            std::thread::sleep(Duration::from_secs(1));
            // With those of the hash tags.
            let slots = tag_slots(&cluster.masters[0]);
            for _ in 0..5 {
                cluster.reshard(slots.iter().copied(), 0, 3);
                std::thread::sleep(Duration::from_millis(300));
                cluster.reshard(slots.iter().copied(), 3, 0);
            }
            std::thread::sleep(Duration::from_millis(500));
        });
        run(async {
            let stores = [started(gateway(cluster, 1, PATIENT)).await, started(gateway(cluster, 2, PATIENT)).await];
            let long = ask(&stores[0], &both).await.unwrap();
            let counts = crowd(stores.each_ref(), &both, 32, done).await;
            assert!(counts.most <= 4 && counts.granted > 200, "{} ran at once, {} in all", counts.most, counts.granted);
            assert!(long.is_some());
            // No slot was lost.
            let (rest, _) = take_all(&stores[1], &both, 4).await;
            assert!(ask(&stores[0], &both).await.unwrap().is_none(), "{}", rest.len());
        });
    });
}

#[test]
fn a_slot_is_reported_while_the_slot_of_the_cluster_that_has_its_bucket_moves_for_long() {
    let mut cluster = RedisCluster::start(Replicas::None);
    cluster.add_master();
    run(async {
        let [one, other] = [started(gateway(&cluster, 1, PATIENT)).await, started(gateway(&cluster, 2, PATIENT)).await];
        let all = [plan([slot(1, 0, 1)]), plan([slot(2, 0, 1)])];
        let held = [ask(&one, &all[0]).await.unwrap(), ask(&one, &all[1]).await.unwrap()];
        assert!(held.iter().all(Option::is_some));
        // The first bucket moves, the second stays where it is. Nothing ends the move.
        cluster.begin_move(&tagged_key(1, 0).0, 0, 3);
        tokio::time::sleep(Duration::from_secs(9)).await;
        for plan in &all {
            assert!(ask(&other, plan).await.unwrap().is_none(), "it is held");
        }
        drop(held);
        for plan in &all {
            assert!(take_all(&other, plan, 1).await.1 < LATE);
        }
    });
}

#[test]
fn what_is_held_is_reported_to_the_successor_of_a_lost_node() {
    let mut cluster = RedisCluster::start(Replicas::OneEach);
    run(async {
        let [one, other] = [started(gateway(&cluster, 1, TIMEOUT)).await, started(gateway(&cluster, 2, TIMEOUT)).await];
        // Cut off from its master, the replica learns of nothing that is held.
        let master = &cluster.masters[0];
        let () = master.command(&["ACL", "SETUSER", "default", "-psync", "-sync"]);
        let _: i64 = master.command(&["CLIENT", "KILL", "TYPE", "replica"]);
        let slots = plan([slot(1, 0, 3)]);
        let held = take(&one, &slots, 3).await;
        assert_eq!(held.len(), 3);
        let () = master.command(&["CONFIG", "SET", "cluster-replica-validity-factor", "0"]);
        cluster.masters[0].kill();
        let () = cluster.replicas[0].command(&["CLUSTER", "FAILOVER", "TAKEOVER"]);
        eventually_async(async || cluster.replicas[0].role().starts_with("master")).await;
        tokio::time::sleep(Duration::from_secs(2) + LATE).await;
        assert!(!is_granted(&other, &slots).await);
        drop(held);
        take_all(&other, &slots, 3).await;
    });
}

/// Each node has the slots of some hash tags.
#[test]
fn what_is_held_on_a_node_that_is_flushed_is_reported_again() {
    let cluster = RedisCluster::start(Replicas::None);
    run(async {
        let [one, other] = [started(gateway(&cluster, 1, PATIENT)).await, started(gateway(&cluster, 2, PATIENT)).await];
        let plans: Vec<Plan> = (0..16).map(|tag| plan([slot(1, tag, 3)])).collect();
        let mut held = Vec::new();
        for plan in &plans {
            held.extend(take(&one, plan, 3).await);
        }
        assert_eq!(held.len(), 48);
        let before: i64 = cluster.masters[0].command(&["DBSIZE"]);
        let () = cluster.masters[0].command(&["FLUSHALL"]);
        // At most what the node had is granted beyond, and nothing of the buckets on the other nodes.
        let mut beyond = Vec::new();
        for plan in &plans {
            beyond.push(take(&other, plan, 4).await.len());
        }
        let [none, some] = [0, 3].map(|count| beyond.iter().filter(|beyond| **beyond == count).count());
        assert!(none >= 8 && some >= 1 && none + some == 16, "{beyond:?} of {before} keys");
        tokio::time::sleep(Duration::from_secs(2) + LATE).await;
        for plan in &plans {
            assert!(ask(&other, plan).await.unwrap().is_none(), "it is held");
        }
        drop(held);
        for plan in &plans {
            assert_eq!(take_all(&other, plan, 3).await.0.len(), 3);
        }
    });
}
