//! Slots in a Redis Cluster: what gateways hold under several hash tags, while nodes are lost and slots of the cluster
//! move.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use ledger::charge::{Charge, Plan};
use stores::Store;

use super::cluster::{LATE, PATIENT, TIMEOUT, charge, eventually_async, gateway, run, started, tag_slots};
use crate::support::charge::{plan, tagged_key};
use crate::support::slots::{self, ask, is_granted, take, take_all};
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

/// Ends a load when it is dropped, also after a panic.
struct Ends(Arc<AtomicBool>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Many callers of two gateways hold slots under two hash tags for some milliseconds each.
async fn crowd(stores: &[Arc<Store>; 2], plan: &Plan, done: Arc<AtomicBool>) -> (usize, usize) {
    let running = Arc::new((AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0)));
    let callers: Vec<_> = (0..32)
        .map(|caller: usize| {
            let (store, plan, done) = (Arc::clone(&stores[caller % 2]), plan.clone(), Arc::clone(&done));
            let running = Arc::clone(&running);
            tokio::spawn(async move {
                while !done.load(Ordering::Relaxed) {
                    let (running, most, granted) = &*running;
                    if let Ok(Some(slot)) = ask(&store, &plan).await {
                        most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        granted.fetch_add(1, Ordering::Relaxed);
                        tokio::time::sleep(Duration::from_millis(caller as u64 % 7)).await;
                        running.fetch_sub(1, Ordering::SeqCst);
                        drop(slot);
                    } else {
                        tokio::time::sleep(Duration::from_millis(2)).await;
                    }
                }
            })
        })
        .collect();
    for caller in callers {
        caller.await.unwrap();
    }
    (running.1.load(Ordering::SeqCst), running.2.load(Ordering::SeqCst))
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
            let _ends = Ends(ended);
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
            let (most, granted) = crowd(&stores, &both, done).await;
            assert!(most <= 4 && granted > 200, "{most} ran at once, {granted} in all");
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
