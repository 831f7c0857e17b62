//! Gateways and stores that are lost or replaced while requests run.

use std::time::Duration;

use super::{becomes, begin, budget, get, shows, upstream, used};
use crate::support::sentinel::{SentinelGroup, SentinelSetup};
use crate::support::{Gateway, Orphan, Redis, eventually, now, tollgate};

#[test]
fn what_a_killed_gateway_held_is_free_within_seven_seconds_and_costs_nothing() {
    let redis = Redis::start();
    let (upstream, _finish) = upstream::start();
    let config = format!("{}{}", redis.patient_store(), budget());
    let [mut one, two] = [(); 2].map(|()| Gateway::start(&upstream, &config));
    assert_eq!(get(&one, "/cost/7", "ann").status, 200);
    becomes(&two, "ann", 7);
    let mut streams = [(); 3].map(|()| begin(&one, "/endless/cost/100", "ann"));
    streams.iter_mut().for_each(|stream| _ = stream.first_bytes());
    shows(&two, "ann", 7 + 15);
    one.signal("KILL");
    one.wait();
    let killed = now();
    assert_eq!(used(&two, "ann"), 7 + 15);
    becomes(&two, "ann", 7);
    assert!(killed.elapsed() < Duration::from_secs(9), "{:?}", killed.elapsed());
    one.start_again();
    assert_eq!(get(&one, "/cost/4", "ann").status, 200);
    becomes(&two, "ann", 11);
}

#[test]
fn the_next_process_charges_what_requests_of_the_previous_one_cost() {
    let (upstream, finish) = upstream::start();
    let mut gateway = Gateway::start(&upstream, &budget());
    assert_eq!(get(&gateway, "/cost/7", "ann").status, 200);
    becomes(&gateway, "ann", 7);
    let mut running = [(); 2].map(|()| begin(&gateway, "/hold/cost/90", "ann"));
    shows(&gateway, "ann", 7 + 10);
    gateway.signal("USR2");
    let next = Orphan::of(&gateway, 1);
    let admin = gateway.admin.to_string();
    let show = || tollgate(&["bucket", "show", "--admin", &admin, "spend", "header:x-user=ann"]).out;
    // No request of this process has told it the numbers of the limit.
    let shown = show();
    assert!(
        shown.contains("7 spent, 10 held, 983 left") && shown.contains("the previous process holds 10 "),
        "{shown}"
    );
    // Held in the previous process, and counted in the next one.
    shows(&gateway, "ann", 7 + 10);
    finish.send(()).unwrap();
    shows(&gateway, "ann", 7 + 5 + 90);
    let shown = show();
    assert!(shown.contains("97 spent"), "{shown}");
    finish.send(()).unwrap();
    for client in &mut running {
        assert_eq!(client.response("GET").unwrap().status, 200);
    }
    assert_eq!(gateway.wait().0.code(), Some(0));
    becomes(&gateway, "ann", 7 + 180);
    drop(next);
}

/// The successor knows what both gateways had reported, so that nothing is lost or charged twice.
#[test]
fn budgets_survive_a_failover_by_sentinels_while_requests_run() {
    let mut group = SentinelGroup::with(&SentinelSetup::default());
    let (upstream, finish) = upstream::start();
    let config = format!("{}{}", group.store("deny"), budget());
    let gateways = [(); 2].map(|()| Gateway::start(&upstream, &config));
    for gateway in &gateways {
        gateway.expect("rate_limiter_store_up", &[], 1.0);
    }
    let mut spent = 0;
    for (gateway, cost) in gateways.iter().zip([7, 8]) {
        assert_eq!(get(gateway, &format!("/cost/{cost}"), "ann").status, 200);
        spent += cost;
        becomes(gateway, "ann", spent);
    }
    let before = upstream.count();
    let mut running: Vec<_> =
        gateways.iter().chain(&gateways).map(|gateway| begin(gateway, "/hold/cost/90", "ann")).collect();
    eventually("the requests run", || upstream.count() == before + running.len());
    shows(&gateways[0], "ann", spent + 20);
    group.servers[0].kill();
    // They end while there is no store.
    for _ in 0..2 {
        finish.send(()).unwrap();
    }
    eventually("the successor decides", || gateways.iter().all(|gateway| get(gateway, "/cost/0", "bob").status == 200));
    shows(&gateways[1], "ann", spent + 10 + 180);
    for _ in 0..2 {
        finish.send(()).unwrap();
    }
    for client in &mut running {
        assert_eq!(client.response("GET").unwrap().status, 200);
    }
    for gateway in &gateways {
        becomes(gateway, "ann", spent + 360);
    }
}

/// Without the store a gateway decides by its share. What it lets pass is charged when the store is back.
#[test]
fn what_passes_by_a_share_is_charged_when_the_store_is_back() {
    let mut redis = Redis::start_with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let (upstream, finish) = upstream::start();
    let gateway = Gateway::start(&upstream, &format!("{}{}", redis.store("local"), budget()));
    gateway.expect("rate_limiter_store_up", &[], 1.0);
    assert_eq!(get(&gateway, "/cost/7", "ann").status, 200);
    becomes(&gateway, "ann", 7);
    let mut running = begin(&gateway, "/hold/cost/90", "ann");
    shows(&gateway, "ann", 12);
    redis.kill();
    eventually("the store is away", || gateway.metric("rate_limiter_store_up", &[]) < 1.0);
    for _ in 0..3 {
        assert_eq!(get(&gateway, "/cost/20", "ann").status, 200);
    }
    finish.send(()).unwrap();
    assert_eq!(running.response("GET").unwrap().status, 200);
    // The share is 1000 less what was spent, so that this is the last one.
    assert_eq!(get(&gateway, "/cost/900", "ann").status, 200);
    eventually("the share is spent", || get(&gateway, "/cost/0", "ann").status == 429);
    redis.restart();
    gateway.expect("rate_limiter_store_up", &[], 1.0);
    let file = gateway.file("gateway.yaml");
    let mut shown = String::new();
    eventually("all is charged", || {
        shown = tollgate(&["bucket", "show", "-c", file.to_str().unwrap(), "spend", "header:x-user=ann"]).out;
        shown.contains("1057 spent, 0 held")
    });
}
