//! Limits over several regions grant to the request, and hardly a request waits for home.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::{REGIONS, Region, ask, rules, store};
use crate::support::{Answers, Client, Gateway, Postgres, Redis, Relay, Upstream, now};

/// The way of an answer from home to a region.
const FAR: Duration = Duration::from_millis(80);

/// Sends requests until this many were refused. Returns how many passed before the first refusal, and the times of all.
fn spend(mut client: Client, user: &str, refusals: usize, passed: &AtomicUsize) -> (usize, Vec<Duration>) {
    let (mut refused, mut first, mut times) = (0, None, Vec::new());
    while refused < refusals {
        let sent = now();
        let response = ask(&mut client, user);
        times.push(sent.elapsed());
        match response.status {
            200 => _ = passed.fetch_add(1, Ordering::SeqCst),
            429 => {
                refused += 1;
                first.get_or_insert(passed.load(Ordering::SeqCst));
            }
            other => panic!("{other}: {response:?}"),
        }
    }
    times.sort_unstable();
    (first.unwrap(), times)
}

#[test]
fn three_regions_grant_a_limit_to_the_request_and_hardly_a_request_waits_for_home() {
    let (upstream, home) = (Upstream::start(), Redis::start());
    let regions = REGIONS.map(|name| Region::start(name, home.port, &rules(3000), &upstream));
    regions.iter().for_each(|region| region.relay.set(Answers::Late(FAR)));
    let passed = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let spending = regions.iter().map(|region| {
            let (client, passed) = (region.gateway.client(), &passed);
            scope.spawn(move || spend(client, "everywhere", 200, passed))
        });
        for spent in spending.collect::<Vec<_>>() {
            let (first, times) = spent.join().unwrap();
            assert!(first >= 2850, "a region refused when {first} had passed");
            let waited = times.iter().filter(|time| **time >= FAR).count();
            assert!(waited * 50 <= times.len(), "{waited} of {} requests waited for home", times.len());
        }
    });
    assert_eq!((passed.load(Ordering::SeqCst), upstream.count()), (3000, 3000));
    for Region { gateway, .. } in &regions {
        gateway.expect("rate_limiter_stranded_total", &["rule=\"year\""], 0.0);
        gateway.expect("rate_limiter_home_up", &[], 1.0);
        assert!(gateway.metric("rate_limiter_home_heard_seconds", &[]) < 30.0);
        assert!(gateway.metric("rate_limiter_leased_total", &["rule=\"year\""]) > 0.0);
        assert!(gateway.metric("rate_limiter_home_calls_total", &[]) < 500.0);
    }
}

#[test]
fn one_region_with_all_the_traffic_gets_97_percent_before_its_first_refusal() {
    let (upstream, home) = (Upstream::start(), Redis::start());
    let regions = REGIONS.map(|name| Region::start(name, home.port, &rules(1000), &upstream));
    let passed = AtomicUsize::new(0);
    // The others have used the limit once each, so something lies in their purses.
    for region in &regions[1..] {
        assert_eq!(ask(&mut region.gateway.client(), "one").status, 200);
        passed.fetch_add(1, Ordering::SeqCst);
    }
    let (first, _) = spend(regions[0].gateway.client(), "one", 1, &passed);
    // 5 % lie in the purse of the first of them, and less in that of the second.
    assert!(first >= 900, "{first}");
    let alone = AtomicUsize::new(0);
    let (first, _) = spend(regions[0].gateway.client(), "alone", 1, &alone);
    assert!(first >= 970, "{first}");
}

#[test]
fn regions_on_redis_have_a_home_on_postgresql() {
    let (upstream, postgres) = (Upstream::start(), Postgres::start());
    postgres.settings();
    let home = format!("postgres: {{url: \"postgres://tollgate@127.0.0.1:{}/limits\"}}", postgres.port);
    let regions = ["eu", "us"].map(|name| {
        let redis = Redis::start();
        let gateway = Gateway::start(&upstream, &(store(&redis, name, &home) + &rules(60)));
        gateway.expect_logged("home is up");
        (redis, gateway)
    });
    let passed = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for (_, gateway) in &regions {
            let (client, passed) = (gateway.client(), &passed);
            scope.spawn(move || spend(client, "a", 20, passed));
        }
    });
    assert_eq!(upstream.count(), 60);
}

#[test]
fn a_limit_that_is_used_up_refuses_with_429_though_its_home_is_slow() {
    let (upstream, postgres, redis) = (Upstream::start(), Postgres::start(), Redis::start());
    postgres.settings();
    let relay = Relay::start(postgres.port);
    relay.set(Answers::Late(FAR / 2));
    let home = format!("postgres: {{url: \"postgres://tollgate@127.0.0.1:{}/limits\"}}", relay.port);
    let rules = "check: {allow: [unverified_key]}\nrules: [{name: rate, scope: global, limit_keys: [header:x-user], \
                 algorithm_config: {rate: 5/s, burst: 60}}]\n";
    let gateway = Gateway::start(&upstream, &(store(&redis, "eu", &home) + rules));
    gateway.expect_logged("home is up");
    std::thread::scope(|scope| {
        for _ in 0..24 {
            let mut client = gateway.client();
            scope.spawn(move || {
                let mut refused = 0;
                while refused < 2 {
                    let response = ask(&mut client, "a");
                    if response.status != 200 {
                        assert_eq!(
                            response.field("X-Tollgate-Reason").unwrap(),
                            "token_bucket_exceeded",
                            "{response:?}"
                        );
                        assert_eq!((response.status, response.number("retry-after") >= 1), (429, true), "{response:?}");
                        refused += 1;
                    }
                }
            });
        }
    });
    gateway.expect("rate_limiter_home_up", &[], 1.0);
}

#[test]
fn a_gateway_whose_neighbour_asks_home_refuses_with_429_what_others_have_spent_meanwhile() {
    let (upstream, postgres, redis) = (Upstream::start(), Postgres::start(), Redis::start());
    postgres.settings();
    let relay = Relay::start(postgres.port);
    relay.set(Answers::Late(Duration::from_millis(100)));
    let home = format!("postgres: {{url: \"postgres://tollgate@127.0.0.1:{}/limits\"}}", relay.port);
    // A request can wait for little more than one answer of home.
    let store = store(&redis, "eu", &home).replace("    timeout: 2s\n", "    timeout: 1500ms\n");
    let rules = "check: {allow: [unverified_key]}\nrules: [{name: rate, scope: global, limit_keys: [header:x-user], \
                 algorithm_config: {rate: 30/s, burst: 60}}]\n";
    let gateways = [(); 2].map(|()| Gateway::start(&upstream, &(store.clone() + rules)));
    gateways.iter().for_each(|gateway| gateway.expect_logged("home is up"));
    let answers: Vec<(u16, String)> = std::thread::scope(|scope| {
        let end = now() + Duration::from_secs(10);
        let spending = (0..24).map(|number| {
            let mut client = gateways[usize::from(number % 8 == 0)].client();
            scope.spawn(move || {
                let mut answers = Vec::new();
                while now() < end {
                    let response = ask(&mut client, "a");
                    answers.push((response.status, response.field("X-Tollgate-Reason").unwrap_or_default()));
                }
                answers
            })
        });
        let spending: Vec<_> = spending.collect();
        spending.into_iter().flat_map(|spent| spent.join().unwrap()).collect()
    });
    let refused = answers.iter().filter(|(status, _)| *status != 200);
    let away =
        refused.clone().filter(|(status, reason)| (*status, &**reason) != (429, "token_bucket_exceeded")).count();
    assert!(away == 0 && refused.count() > 20, "{away} of {} are no refusals by the limit", answers.len());
    gateways.iter().for_each(|gateway| gateway.expect("rate_limiter_home_up", &[], 1.0));
}

#[test]
fn limits_of_one_region_and_of_all_regions_are_charged_together_or_not_at_all() {
    let (upstream, home) = (Upstream::start(), Redis::start());
    let rules = "check: {allow: [unverified_key]}\nrules:\n  - name: both\n    limit_keys: [header:x-user]\n    limits:\n      \
                 year: {algorithm: fixed_window, limit: 40, window: year, scope: global}\n      \
                 here: {algorithm: fixed_window, limit: 5, window: year}\n";
    let regions = ["eu", "us"].map(|name| Region::start(name, home.port, rules, &upstream));
    for (region, passes) in regions.iter().zip([5, 5]) {
        let mut client = region.gateway.client();
        let statuses: Vec<u16> = (0..8).map(|_| ask(&mut client, "a").status).collect();
        assert_eq!(statuses.iter().filter(|status| **status == 200).count(), passes, "{statuses:?}");
        let refused = ask(&mut client, "a");
        assert_eq!(refused.field("X-Tollgate-Reason").unwrap(), "fixed_window_exceeded");
    }
    let relay = Relay::start(home.port);
    let redis = Redis::start();
    let third = Gateway::start(&upstream, &(store(&redis, "ap", &super::on_redis(relay.port)) + rules));
    let passed = AtomicUsize::new(0);
    let (first, _) = spend(third.client(), "a", 1, &passed);
    assert_eq!(first, 5);
    assert_eq!(upstream.count(), 15);
}

#[test]
fn fields_show_what_is_left_at_home_and_in_the_purse() {
    let (upstream, home) = (Upstream::start(), Redis::start());
    let region = Region::start("eu", home.port, &rules(100), &upstream);
    let mut client = region.gateway.client();
    let left = |client: &mut Client| ask(client, "a").field("RateLimit").unwrap();
    assert!(left(&mut client).contains("r=99"), "{}", left(&mut client));
    let other = Region::start("us", home.port, &rules(100), &upstream);
    let seen = left(&mut other.gateway.client());
    // The first region has leased 5, and spent some of them.
    assert!(seen.contains("r=94"), "{seen}");
}
