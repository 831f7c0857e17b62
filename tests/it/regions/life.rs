//! Reloads, restarts and upgrades of gateways with limits over several regions.

use super::{Region, ask, on_redis, rules, store};
use crate::support::{Client, Gateway, Orphan, Redis, Upstream, eventually};

#[test]
fn a_reload_with_a_larger_limit_keeps_what_was_spent() {
    let (upstream, home, redis) = (Upstream::start(), Redis::start(), Redis::start());
    let text = |limit| store(&redis, "eu", &on_redis(home.port)) + &rules(limit);
    let gateway = Gateway::start(&upstream, &text(20));
    gateway.expect_logged("home is up");
    let mut client = gateway.client();
    while ask(&mut client, "a").status == 200 {}
    assert_eq!(upstream.count(), 20);
    gateway.reload(&upstream, &text(50));
    eventually("the larger limit is in force", || ask(&mut client, "a").status == 200);
    while ask(&mut client, "a").status == 200 {}
    assert_eq!(upstream.count(), 50);
}

#[test]
fn a_file_with_another_region_or_home_is_rejected_and_other_regions_come_with_a_reload() {
    let (upstream, home, redis) = (Upstream::start(), Redis::start(), Redis::start());
    let text = store(&redis, "eu", &on_redis(home.port)) + &rules(20);
    let gateway = Gateway::start(&upstream, &text);
    gateway.reload(&upstream, &text.replace("[eu, us, ap]", "[eu, us]"));
    assert!(!gateway.has_logged("take effect only after a restart"));
    let right = std::fs::read_to_string(gateway.file("gateway.yaml")).unwrap();
    let moved = [
        ("store.home.region", right.replace("region: eu", "region: us").replace("[eu, us]", "[eu, us, ap]")),
        ("store.home", right.replace(&on_redis(home.port), &on_redis(redis.port)).replace("[eu, us]", "[eu]")),
    ];
    for (key, file) in moved {
        gateway.replace("gateway.yaml", &file);
        gateway.signal("HUP");
        gateway.expect_logged(&format!("{key}: must stay as it was at the start of the process"));
        assert_eq!(ask(&mut gateway.client(), "a").status, 200);
    }
    gateway.replace("gateway.yaml", &right);
    gateway.signal("HUP");
    gateway.expect_logged("configuration is unchanged");
}

#[test]
fn a_limit_in_shadow_mode_leases_too_and_never_makes_a_request_wait() {
    let (upstream, home) = (Upstream::start(), Redis::start());
    let rules = rules(5).replace("  - name: year\n", "  - name: year\n    mode: shadow\n");
    let region = Region::start("eu", home.port, &rules, &upstream);
    let mut client = region.gateway.client();
    let labels = ["rule=\"year\"", "mode=\"shadow\""];
    eventually("the shadow would refuse", || {
        assert_eq!(ask(&mut client, "a").status, 200);
        region.gateway.metric("rate_limiter_rejected_total", &labels) > 0.0
    });
    region.gateway.expect("rate_limiter_allowed_total", &labels, 5.0);
}

#[test]
fn an_upgrade_keeps_what_lies_in_purses() {
    let (upstream, home, redis) = (Upstream::start(), Redis::start(), Redis::start());
    let in_redis = store(&redis, "eu", &on_redis(home.port));
    let own = format!("redis: {{url: \"redis://127.0.0.1:{}\", timeout: 2s}}", redis.port);
    let in_memory =
        in_redis.replace(&own, "memory: {}").replace("  gateways: 1\n", "").replace("region: eu", "region: us");
    let rules = rules(100).replace("window: year}", "window: year}\n    lease: {share: 20%}");
    for (user, store) in [("a", in_redis), ("b", in_memory)] {
        let mut gateway = Gateway::start(&upstream, &(store + &rules));
        gateway.expect_logged("home is up");
        let http = gateway.http;
        // Each request has a connection of its own, so that it reaches the process that listens.
        let passes =
            |user: &str| Client::connect(http).get("/", &[("X-User", user), ("Connection", "close")]).status == 200;
        let mut passed = 0;
        while passed < 30 {
            passed += u64::from(passes(user));
        }
        gateway.signal("USR2");
        let _next = Orphan::of(&gateway, 1);
        assert!(gateway.wait().0.success(), "{}", gateway.errors());
        eventually("nothing is left", || {
            let is_passed = passes(user);
            passed += u64::from(is_passed);
            passed >= 100 && !is_passed
        });
        assert_eq!(passed, 100, "{user}");
    }
}

#[test]
fn the_list_of_regions_and_the_limit_change_under_load_and_nothing_passes_twice() {
    let (upstream, home) = (Upstream::start(), Redis::start());
    let regions = ["eu", "us"].map(|name| {
        let redis = Redis::start();
        let text = store(&redis, name, &on_redis(home.port));
        let gateway = Gateway::start(&upstream, &(text.clone() + &rules(400)));
        gateway.expect_logged("home is up");
        (redis, text, gateway)
    });
    let passed: usize = std::thread::scope(|scope| {
        let spending: Vec<_> = regions
            .iter()
            .map(|(_, _, gateway)| {
                let mut client = gateway.client();
                scope.spawn(move || {
                    let (mut passed, mut refused) = (0, 0);
                    while refused < 200 {
                        let is_passed = ask(&mut client, "a").status == 200;
                        passed += usize::from(is_passed);
                        refused = if is_passed { 0 } else { refused + 1 };
                    }
                    passed
                })
            })
            .collect();
        for limit in [500, 450, 600] {
            for (_, text, gateway) in &regions {
                let list = if limit == 450 { "[eu, us]" } else { "[eu, us, ap, sa]" };
                gateway.reload(&upstream, &(text.replace("[eu, us, ap]", list) + &rules(limit)));
            }
        }
        spending.into_iter().map(|spent| spent.join().unwrap()).sum()
    });
    // Each limit has purses of its own, and what lay in those of earlier limits comes back.
    let mut clients: Vec<Client> = regions.iter().map(|(_, _, gateway)| gateway.client()).collect();
    let mut spend = || clients.iter_mut().map(|client| usize::from(ask(client, "a").status == 200)).sum::<usize>();
    let mut passed = passed;
    eventually("all of the last limit has passed", || {
        passed += spend();
        passed >= 600
    });
    for _ in 0..50 {
        passed += spend();
    }
    assert_eq!(passed, 600);
}

#[test]
fn what_lies_in_purses_of_other_numbers_goes_back_with_a_reload() {
    let (upstream, home, redis) = (Upstream::start(), Redis::start(), Redis::start());
    let text = |rules: &str| store(&redis, "eu", &on_redis(home.port)) + rules;
    let lease = |limit| rules(limit).replace("window: year}", "window: year}\n    lease: {share: 50%}");
    let gateway = Gateway::start(&upstream, &text(&lease(1000)));
    gateway.expect_logged("home is up");
    let other = Region::start("us", home.port, &lease(2000), &upstream);
    let (mut client, mut far) = (gateway.client(), other.gateway.client());
    for user in ["a", "b", "c"] {
        assert_eq!(ask(&mut client, user).status, 200);
    }
    // A half of the rest, divided by three regions, lies in each purse.
    let labels = ["rule=\"year\""];
    let leased = gateway.metric("rate_limiter_leased_total", &labels);
    assert!(leased > 300.0, "{leased}");
    gateway.reload(&upstream, &text(&lease(2000)));
    eventually("it is at home", || gateway.metric("rate_limiter_returned_total", &labels) >= leased - 3.0);
    let mut passed = 1;
    while passed < 2000 && ask(&mut far, "a").status == 200 {
        passed += 1;
    }
    assert_eq!((passed, ask(&mut far, "a").status), (2000, 429));
    // A limit that is removed has no purses either.
    assert_eq!(ask(&mut client, "b").status, 200);
    let other_name = lease(2000).replace("name: year", "name: other");
    gateway.reload(&upstream, &text(&other_name));
    let mut passed = 2;
    eventually("all of it is at home", || {
        while ask(&mut far, "b").status == 200 {
            passed += 1;
        }
        passed >= 2000
    });
    assert_eq!(passed, 2000);
}
