//! Reloads, restarts and upgrades of gateways with limits over several regions.

use super::{Region, ask, on_redis, rules, store};
use crate::support::{Gateway, Redis, Upstream, eventually};

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
fn another_region_needs_a_restart_and_other_regions_come_with_a_reload() {
    let (upstream, home, redis) = (Upstream::start(), Redis::start(), Redis::start());
    let text = store(&redis, "eu", &on_redis(home.port)) + &rules(20);
    let gateway = Gateway::start(&upstream, &text);
    gateway.reload(&upstream, &text.replace("[eu, us, ap]", "[eu, us]"));
    assert!(!gateway.has_logged("take effect only after a restart"));
    gateway.reload(&upstream, &text.replace("region: eu", "region: us"));
    gateway.expect_logged("take effect only after a restart");
    assert_eq!(ask(&mut gateway.client(), "a").status, 200);
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
