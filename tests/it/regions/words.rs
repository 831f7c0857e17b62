//! Words between regions and home that are doubled, late or lost: all regions together pass the limit to the request.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::{REGIONS, ask, on_redis, rules, store};
use crate::support::{Answers, Client, Gateway, Redis, Relay, Upstream, eventually, now, short_or_long};

/// Sends requests until this many in a row were refused, or there was no answer in time.
fn spend(client: &mut Client, refusals: u64, passed: &AtomicU64) {
    let mut refused = 0;
    while refused < refusals {
        match ask(client, "a").status {
            200 => {
                passed.fetch_add(1, Ordering::SeqCst);
                refused = 0;
            }
            429 | 503 => refused += 1,
            other => panic!("{other}"),
        }
    }
}

/// Returns rules with small leases, and a region that returns soon what it does not use.
fn text(redis: &Redis, region: &str, relay: &Relay, limit: u64) -> String {
    let store = store(redis, region, &on_redis(relay.port));
    let store = store.replace("    timeout: 2s\n", "    timeout: 400ms\n    return_after: 1s\n");
    store + &rules(limit).replace("window: year}", "window: year}\n    lease: {share: 2%}")
}

#[test]
fn words_that_are_doubled_and_late_are_debited_once() {
    let (upstream, home) = (Upstream::start(), Redis::start());
    let limit = short_or_long(600, 6000);
    let regions = REGIONS.map(|name| {
        let (redis, relay) = (Redis::start(), Relay::doubling(home.port, Duration::from_millis(60)));
        relay.set(Answers::Late(Duration::from_millis(20)));
        let gateway = Gateway::start(&upstream, &text(&redis, name, &relay, limit));
        gateway.expect_logged("home is up");
        (redis, relay, gateway)
    });
    let passed = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for (_, _, gateway) in &regions {
            let (mut client, passed) = (gateway.client(), &passed);
            scope.spawn(move || spend(&mut client, 20, passed));
        }
    });
    // What was refused while another region held something.
    let mut clients: Vec<Client> = regions.iter().map(|(_, _, gateway)| gateway.client()).collect();
    eventually("all of the limit has passed", || {
        clients.iter_mut().for_each(|client| spend(client, 1, &passed));
        passed.load(Ordering::SeqCst) >= limit
    });
    clients.iter_mut().for_each(|client| spend(client, 20, &passed));
    assert_eq!(passed.load(Ordering::SeqCst), limit);
    let calls: f64 = regions.iter().map(|(_, _, gateway)| gateway.metric("rate_limiter_home_calls_total", &[])).sum();
    let stats: String = home.command(&["INFO", "commandstats"]);
    let line = stats.lines().find(|line| line.starts_with("cmdstat_evalsha:")).unwrap();
    let heard: f64 = line.split("calls=").nth(1).unwrap().split(',').next().unwrap().parse().unwrap();
    assert!(heard >= 1.8 * calls, "{heard} calls at home, {calls} of the gateways");
}

#[test]
fn a_region_that_was_cut_off_for_long_passes_what_it_had_and_then_the_rest() {
    let (upstream, home) = (Upstream::start(), Redis::start());
    let regions = ["eu", "us"].map(|name| {
        let (redis, relay) = (Redis::start(), Relay::start(home.port));
        let gateway = Gateway::start(&upstream, &text(&redis, name, &relay, 300));
        gateway.expect_logged("home is up");
        (redis, relay, gateway)
    });
    let passed = AtomicU64::new(0);
    let mut clients: Vec<Client> = regions.iter().map(|(_, _, gateway)| gateway.client()).collect();
    for client in &mut clients {
        for _ in 0..40 {
            assert_eq!(ask(client, "a").status, 200);
            passed.fetch_add(1, Ordering::SeqCst);
        }
    }
    regions[0].1.set(Answers::Cut);
    let end = now() + short_or_long(Duration::from_secs(6), Duration::from_secs(3600));
    while now() < end {
        spend(&mut clients[0], 2, &passed);
        if passed.load(Ordering::SeqCst) < 200 {
            assert_eq!(ask(&mut clients[1], "a").status, 200);
            passed.fetch_add(1, Ordering::SeqCst);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    regions[0].1.set(Answers::Pass);
    // A connection that nobody has used for so long is closed.
    clients = regions.iter().map(|(_, _, gateway)| gateway.client()).collect();
    eventually("the region passes again", || {
        let before = passed.load(Ordering::SeqCst);
        spend(&mut clients[0], 1, &passed);
        passed.load(Ordering::SeqCst) > before
    });
    eventually("all of the limit has passed", || {
        clients.iter_mut().for_each(|client| spend(client, 1, &passed));
        passed.load(Ordering::SeqCst) >= 300
    });
    clients.iter_mut().for_each(|client| spend(client, 20, &passed));
    assert_eq!(passed.load(Ordering::SeqCst), 300);
}
