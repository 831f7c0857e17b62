//! The slot map of a Redis Cluster: it is read from a node that knows it, not from one that is cut off. A fault is reported
//! if no node knows it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use stores::{Event, EventSink, NodeChange, StoreError, Worker};

use crate::redis::cluster::{
    Counts, LATE, PATIENT, TIMEOUT, ask, charge, eventually_async, everywhere, gateway, gateway_at, run, started,
    tag_slots,
};
use crate::support::charge::plan;
use crate::support::{Lateness, Redis, RedisCluster, Replicas, now};

/// Returns a sink of events, and a list of the values that `select` has returned for them.
fn recorded<T: Send + 'static>(select: fn(Event) -> Option<T>) -> (EventSink, Arc<Mutex<Vec<T>>>) {
    let events: Arc<Mutex<Vec<T>>> = Arc::default();
    let recorded = Arc::clone(&events);
    (EventSink::new(move |event| recorded.lock().unwrap().extend(select(event))), events)
}

#[test]
fn a_node_without_slots_that_is_asked_first_hides_no_other() {
    let (cluster, lone) = (RedisCluster::start(Replicas::None), RedisCluster::lone_node());
    run(async {
        let store = started(gateway_at([&lone, &cluster.masters[0]], PATIENT, EventSink::new(|_| ()))).await;
        let mut counts = Counts::default();
        for plan in everywhere(10) {
            ask(&store, &plan, &mut counts).await;
        }
        assert_eq!((counts.granted, &counts.failed[..]), (16, &[][..]));
    });
}

#[test]
fn slots_that_no_node_has_are_reported_once() {
    let lone = RedisCluster::lone_node();
    let (sink, events) = recorded(|event| matches!(event, Event::Up { .. } | Event::Down { .. }).then_some(event));
    run(async {
        let store = Arc::clone(&gateway_at([&lone], PATIENT, sink));
        let driven = Arc::clone(&store);
        tokio::spawn(async move { driven.run(Worker(0)).await });
        eventually_async(async || !events.lock().unwrap().is_empty()).await;
        // The topology is read twice.
        tokio::time::sleep(Duration::from_millis(1300)).await;
        let reported = || std::mem::take(&mut *events.lock().unwrap());
        let [Event::Down { fault, .. }] = &reported()[..] else { panic!("not one event") };
        assert_eq!(
            (fault.error, fault.detail.starts_with("no node has slot ")),
            (StoreError::ClusterDown, true),
            "{fault:?}"
        );
        let () = lone.command(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
        eventually_async(async || store.take(Worker(0), &plan([charge(1, 0, 5)]), None).await.is_ok()).await;
        assert!(matches!(reported()[..], [Event::Up { .. }]));
    });
}

#[test]
fn a_master_that_is_cut_off_from_its_cluster_is_not_asked_for_its_successor() {
    let cluster = RedisCluster::start(Replicas::OneEach);
    run(async {
        // It names all nodes, so it is asked first.
        let store = started(gateway(&cluster, 0, TIMEOUT)).await;
        let ask = async || store.take(Worker(0), &plan([charge(1, 0, 100)]), None).await;
        assert!(ask().await.is_ok());
        cluster.cut_off(0);
        let (cut_off, late) = (now(), Lateness::measure());
        eventually_async(async || ask().await.is_ok()).await;
        assert!(cut_off.elapsed() < Duration::from_secs(1) + LATE + late.of_a_request(), "{:?}", cut_off.elapsed());
        assert_eq!(cluster.replicas[0].keys().len(), 1);
    });
}

#[test]
fn a_slot_without_an_owner_opens_no_breaker() {
    let cluster = RedisCluster::start(Replicas::None);
    let (sink, opened) = recorded(|event| {
        let is_opened = matches!(event, Event::Node { change: NodeChange::BreakerOpened, .. } | Event::BreakerOpened);
        is_opened.then_some(event)
    });
    run(async {
        let store = started(gateway_at([&cluster.masters[1]], PATIENT, sink)).await;
        let ask = async |tag| match store.take(Worker(0), &plan([charge(1, tag, 100)]), None).await {
            Ok(_) => None,
            Err(failure) => Some(failure.error),
        };
        eventually_async(async || ask(0).await.is_none()).await;
        let [slot] = tag_slots(&cluster.masters[0])[..] else { panic!("not one bucket") };
        for node in &cluster.masters {
            let () = node.command(&["CLUSTER", "DELSLOTS", &slot.to_string()]);
        }
        for _ in 0..20 {
            assert_eq!(ask(0).await, Some(StoreError::ClusterDown));
        }
        // Under another hash tag on the same node.
        assert_eq!(ask(1).await, None);
        // Now no node serves any slot. It finds that out when it loses another one.
        let other = (slot + 1).to_string();
        for node in &cluster.masters {
            let () = node.command(&["CONFIG", "SET", "cluster-require-full-coverage", "yes"]);
            let () = node.command(&["CLUSTER", "DELSLOTS", &other]);
        }
        eventually_async(async || ask(1).await == Some(StoreError::ClusterDown)).await;
        for tag in (0..16).cycle().take(160) {
            let answer = ask(tag).await;
            assert!(matches!(answer, None | Some(StoreError::ClusterDown)), "{answer:?}");
        }
        let () = cluster.masters[0].command(&["CLUSTER", "ADDSLOTS", &slot.to_string(), &other]);
        eventually_async(async || ask(0).await.is_none()).await;
        assert_eq!(*opened.lock().unwrap(), []);
    });
}

#[test]
fn the_others_are_asked_for_every_hash_tag_of_a_lost_node_although_nobody_has_the_first() {
    let mut cluster = RedisCluster::start(Replicas::None);
    run(async {
        let store = started(gateway(&cluster, 1, PATIENT)).await;
        assert!(store.take(Worker(0), &plan([charge(1, 0, 100)]), None).await.is_ok());
        let [slot] = tag_slots(&cluster.masters[0])[..] else { panic!("not one bucket") };
        for node in &cluster.masters {
            let () = node.command(&["CLUSTER", "DELSLOTS", &slot.to_string()]);
            let () = node.command(&["CONFIG", "RESETSTAT"]);
        }
        cluster.masters[0].kill();
        let answers = |error: &str| {
            let is_answer = |node: &Redis| node.command::<String>(&["INFO", "errorstats"]).contains(error);
            cluster.masters[1..].iter().any(is_answer)
        };
        eventually_async(async || answers("errorstat_CLUSTERDOWN")).await;
        // They name the lost one for the slots that it still has.
        eventually_async(async || answers("errorstat_MOVED")).await;
    });
}

#[test]
fn a_redirection_that_names_no_node_is_followed_with_pauses() {
    let cluster = RedisCluster::start(Replicas::None);
    run(async {
        let store = started(gateway(&cluster, 1, PATIENT)).await;
        let ask = async || store.take(Worker(0), &plan([charge(1, 0, 100)]), None).await;
        assert!(ask().await.is_ok());
        let of_nodes = |kind: &str| {
            for node in &cluster.masters {
                let () = node.command(&["CONFIG", "SET", "cluster-preferred-endpoint-type", kind]);
            }
        };
        // None has a host name.
        of_nodes("hostname");
        cluster.reshard(tag_slots(&cluster.masters[0]).into_iter(), 0, 1);
        let () = cluster.masters[0].command(&["CONFIG", "RESETSTAT"]);
        let asked = now();
        assert_eq!(ask().await.unwrap_err().error, StoreError::Unreachable);
        let (took, stats) = (asked.elapsed(), cluster.masters[0].command::<String>(&["INFO", "commandstats"]));
        let calls = stats.split("cmdstat_evalsha:").nth(1).and_then(|stat| stat.split("rejected_calls=").nth(1));
        let calls: u32 = calls.and_then(|rejected| rejected.split(',').next()).unwrap().parse().unwrap();
        assert!(took >= Duration::from_millis(3) * (calls - 1), "{calls} calls within {took:?}");
        of_nodes("ip");
        eventually_async(async || ask().await.is_ok()).await;
    });
}

#[test]
fn a_node_that_refuses_every_call_opens_its_breaker() {
    let cluster = RedisCluster::start(Replicas::None);
    let (sink, changes) = recorded(|event| match event {
        Event::Node { change, .. } => Some(change),
        _ => None,
    });
    run(async {
        let store = started(gateway_at([&cluster.masters[1]], PATIENT, sink)).await;
        let ask = async |bucket| match store.take(Worker(0), &plan([charge(bucket, 0, 100)]), None).await {
            Ok(_) => None,
            Err(failure) => Some(failure.error),
        };
        eventually_async(async || ask(1).await.is_none()).await;
        // It has none.
        let () = cluster.masters[0].command(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
        for bucket in 2..7 {
            assert_eq!(ask(bucket).await, Some(StoreError::Refused), "{bucket}");
        }
        assert_eq!(ask(7).await, Some(StoreError::BreakerOpen));
        let () = cluster.masters[0].command(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
        eventually_async(async || ask(1).await.is_none()).await;
        changes.lock().unwrap().clear();
        // What a new connection would say as well ends the old one.
        let () = cluster.masters[0].command(&["ACL", "SETUSER", "default", "-evalsha"]);
        eventually_async(async || ask(1).await == Some(StoreError::Forbidden)).await;
        let is_named =
            |change: &NodeChange| matches!(change, NodeChange::Down(fault) if fault.detail.contains("evalsha"));
        eventually_async(async || changes.lock().unwrap().iter().any(is_named)).await;
    });
}
