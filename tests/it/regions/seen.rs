//! Clients and operators see the level of a limit over several regions when home was last heard, and when that was.

use serde_json::json;

use super::{Region, ask, rules};
use crate::support::bucket_command::{bucket, document, says};
use crate::support::{Redis, Upstream, eventually, tollgate};

#[test]
fn usage_and_bucket_show_tell_when_home_was_heard() {
    let (upstream, home) = (Upstream::start(), Redis::start());
    let rules = format!("usage: {{path: /limits}}\n{}", rules(100));
    let [eu, us] = ["eu", "us"].map(|name| Region::start(name, home.port, &rules, &upstream));
    let usage = |region: &Region| {
        let answer = region.gateway.client().get("/limits", &[("X-User", "a")]);
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()["limits"][0].clone()
    };
    assert_eq!(usage(&eu)["as_of"], json!(null));
    for _ in 0..3 {
        assert_eq!(ask(&mut eu.gateway.client(), "a").status, 200);
    }
    assert_eq!(ask(&mut us.gateway.client(), "a").status, 200);
    // The second region has heard of the lease of the first.
    let (of_eu, of_us) = (usage(&eu), usage(&us));
    assert_eq!((&of_eu["used"], &of_us["used"]), (&json!(3), &json!(6)));
    assert!(of_eu["as_of"].as_str().unwrap().ends_with('Z') && of_us["as_of"].is_string(), "{of_eu} {of_us}");
    says(&eu.gateway, &["show", "year", "header:x-user=a"], 0, " at home, as heard at 2");
    says(&us.gateway, &["show", "year", "header:x-user=b"], 0, "home was never heard");
}

#[test]
fn what_is_left_is_not_known_before_home_was_heard() {
    let (upstream, home) = (Upstream::start(), Redis::start());
    let region = Region::start("eu", home.port, &rules(100), &upstream);
    let (gateway, of_a) = (&region.gateway, ["header:x-user=a"]);
    let show = [&["show", "year"][..], &of_a].concat();
    says(gateway, &show, 0, "  what is left of 100 is not known; a request of 1 asks home first\n");
    let admin = gateway.admin.to_string();
    let by_gateway = tollgate(&[&["bucket"][..], &show, &["--admin", &admin]].concat());
    assert!(by_gateway.out.contains("what is left of 100 is not known"), "{by_gateway:?}");
    let shown = document(gateway, &show)["buckets"][0].clone();
    let numbers = ["spent", "left", "purse", "home_heard", "asks_home"].map(|name| shown[name].clone());
    assert_eq!(numbers, [json!(null), json!(null), json!(0), json!(null), json!(true)], "{shown}");

    assert_eq!(ask(&mut gateway.client(), "a").status, 200);
    let shown = document(gateway, &show)["buckets"][0].clone();
    let numbers = ["spent", "left", "purse", "asks_home"].map(|name| shown[name].clone());
    assert_eq!(numbers, [json!(1), json!(99), json!(4), json!(false)], "{shown}");
    // The next request is paid from the lease.
    assert_eq!(ask(&mut gateway.client(), "a").status, 200);
    gateway.expect("rate_limiter_waited_for_home_total", &["rule=\"year\""], 1.0);

    let reset = bucket(gateway, &[&["reset", "year"][..], &of_a].concat());
    assert!(reset.out.contains("  had 3 in the purse\nempty from now on, in "), "{reset:?}");
    assert!(reset.out.contains("what a purse held is lost until it ends, and the next request asks home"), "{reset:?}");
    assert!(reset.err.contains("had=3 left=0"), "{reset:?}");
    says(gateway, &show, 0, "what is left of 100 is not known");
}

#[test]
fn of_a_home_that_has_nothing_is_said_when_it_is_asked_again() {
    let (upstream, home) = (Upstream::start(), Redis::start());
    let region = Region::start("eu", home.port, &rules(3), &upstream);
    let mut client = region.gateway.client();
    while ask(&mut client, "a").status == 200 {}
    assert_eq!(upstream.count(), 3);
    let show = ["show", "year", "header:x-user=a"];
    says(&region.gateway, &show, 0, "  0 left of 3, full in ");
    says(&region.gateway, &show, 0, "; a request of 1 asks home again in ");
}

#[test]
fn the_bucket_at_home_is_shown_and_raised_and_not_found_by_a_name() {
    let (upstream, home) = (Upstream::start(), Redis::start());
    let region = Region::start("eu", home.port, &rules(100), &upstream);
    assert_eq!(ask(&mut region.gateway.client(), "a").status, 200);
    let file = region.gateway.file("gateway.yaml").display().to_string();
    let at_home = |act: &[&str], code: i32, part: &str| {
        let output = tollgate(&[&["bucket"], act, &["--home", "-c", &file]].concat());
        assert!(output.code == Some(code) && format!("{output:?}").contains(part), "{act:?}: {output:?}");
    };
    // The region has leased 5.
    at_home(&["show", "year", "header:x-user=a"], 0, "95 left of 100");
    let raise = ["raise", "year", "header:x-user=a", "+50", "--until", "period-end", "--id", "t1"];
    at_home(&raise, 0, "a region that has just been refused asks again within `return_after`");
    at_home(&["show", "year", "header:x-user=a"], 0, "145 left");
    at_home(&["show", "year", "--hash", "0c2a66c5"], 2, "cannot be used with");
}

#[test]
fn a_refusal_says_when_the_period_ends_and_not_when_home_is_asked_again() {
    let (upstream, home) = (Upstream::start(), Redis::start());
    let region = Region::start("eu", home.port, &rules(3), &upstream);
    let mut client = region.gateway.client();
    let refused = loop {
        let response = ask(&mut client, "a");
        if response.status == 429 {
            break response;
        }
    };
    let resets_at = refused.json()["resets_at"].as_str().map(str::to_owned);
    assert!(resets_at.is_some_and(|at| at.ends_with("-01-01T00:00:00Z")), "{refused:?}");
}

#[test]
fn the_status_page_shows_home_and_what_lies_in_purses() {
    let (upstream, home) = (Upstream::start(), Redis::start());
    let region = Region::start("eu", home.port, &rules(100), &upstream);
    assert_eq!(ask(&mut region.gateway.client(), "a").status, 200);
    let status = || crate::support::Client::connect(region.gateway.admin).get("/status.json", &[]).json();
    eventually("what was leased is shown", || status()["rows"][0]["leased"] == json!(5.0));
    let status = status();
    assert_eq!(status["store"]["home"]["region"], json!("eu"), "{status}");
    assert!(status["store"]["home"]["heard_seconds"].as_f64().unwrap() < 30.0);
}
