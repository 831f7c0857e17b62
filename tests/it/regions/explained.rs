//! `tollgate explain --live` says what a gateway would do about a purse that cannot pay: it asks home.

use super::{Region, ask, on_redis, rules, store};
use crate::support::{Answers, CommandOutput, Gateway, Redis, Relay, Upstream, eventually, tollgate};

fn explain(gateway: &Gateway, user: &str) -> String {
    let (file, field) = (gateway.file("gateway.yaml").display().to_string(), format!("X-User: {user}"));
    let CommandOutput { code, out, err } = tollgate(&["explain", "--live", "-c", &file, "-H", &field, "/"]);
    assert_eq!(code, Some(0), "{err}");
    out
}

#[test]
fn an_empty_purse_asks_home_and_home_says_whether_the_request_passes() {
    let (upstream, home) = (Upstream::start(), Redis::start());
    let [eu, us] = ["eu", "us"].map(|name| Region::start(name, home.port, &rules(20), &upstream));
    let first = explain(&eu.gateway, "a");
    assert!(first.contains("left: not known  asks home"), "{first}");
    assert!(first.contains("PASSES: year would pay 1, and hold 19 then"), "{first}");
    assert!(first.contains("the purse of this region cannot pay, so home is asked first (Redis at "), "{first}");
    // Nothing was leased by that.
    assert_eq!(explain(&eu.gateway, "a"), first);
    let (mut passed, mut client) = (0, eu.gateway.client());
    while ask(&mut client, "a").status == 200 {
        passed += 1;
    }
    assert_eq!(passed, 20);
    // The other region has heard nothing of it.
    let refused = explain(&us.gateway, "a");
    assert!(refused.contains("REFUSED 429 fixed_window_exceeded by year: needs 1, has 0, passes in "), "{refused}");
    assert_eq!(ask(&mut us.gateway.client(), "a").status, 429);
}

#[test]
fn home_that_gives_no_answer_leaves_503_or_the_share_of_the_region() {
    let (upstream, home) = (Upstream::start(), Redis::start());
    let regions = [("eu", ""), ("us", "    on_failure: local\n")].map(|(name, more)| {
        let (redis, relay) = (Redis::start(), Relay::start(home.port));
        let short = format!("    timeout: 300ms\n{more}");
        let text = store(&redis, name, &on_redis(relay.port)).replace("    timeout: 2s\n", &short) + &rules(30);
        let gateway = Gateway::start(&upstream, &text);
        gateway.expect_logged("home is up");
        relay.set(Answers::Lost);
        Region { gateway, redis, relay }
    });
    let [eu, us] = regions.each_ref().map(|region| explain(&region.gateway, "a"));
    assert!(eu.contains("REFUSED 503 home_unavailable by year: needs 1, and home gives no answer"), "{eu}");
    assert!(us.contains("PASSES: year would pay 1, and hold 9 then"), "{us}");
    for found in [eu, us] {
        assert!(found.contains("the purse of this region cannot pay, and home gives no answer: "), "{found}");
    }
    assert_eq!(ask(&mut regions[0].gateway.client(), "a").status, 503);
    eventually("the share decides", || ask(&mut regions[1].gateway.client(), "a").status == 200);
}
