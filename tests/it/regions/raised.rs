//! A raise of the bucket at home is shown in the regions, from when they next hear of home until it ends.

use serde_json::{Value, json};

use super::{Region, ask, rules};
use crate::support::bucket_command::{document, says};
use crate::support::mint::epoch;
use crate::support::{Redis, Upstream, eventually, tollgate};
use base::rfc3339::format_seconds;
use base::time::Timestamp;

const SHOW: [&str; 3] = ["show", "year", "header:x-user=a"];

/// Starts two regions, with a limit of 1000 in a year: at most 50 in a purse.
fn regions(upstream: &Upstream, home: &Redis) -> [Region; 2] {
    let rules = format!("usage: {{path: /limits, limit: {{rate: 100000/s}}}}\n{}", rules(1000));
    ["eu", "us"].map(|name| Region::start(name, home.port, &rules, upstream))
}

/// Raises the limit at home.
#[track_caller]
fn raise(region: &Region, amount: &str, until: &str, id: &str) {
    let file = region.gateway.file("gateway.yaml").display().to_string();
    let raised = ["bucket", "raise", "year", "header:x-user=a", amount, "--until", until, "--id", id, "--home", "-c"];
    let output = tollgate(&[&raised[..], &[&file]].concat());
    assert_eq!(output.code, Some(0), "{output:?}");
}

/// Spends what lies in the purse, so that the region hears of home. Returns the limit in the fields of the last response.
#[track_caller]
fn spend(region: &Region) -> u64 {
    let mut client = region.gateway.client();
    let mut response = ask(&mut client, "a");
    for _ in 0..60 {
        response = ask(&mut client, "a");
    }
    assert_eq!(response.status, 200, "{response:?}");
    let quota = format!("\"year\";q={};", response.number("ratelimit-limit"));
    assert!(response.field("ratelimit-policy").unwrap().starts_with(&quota), "{response:?}");
    response.number("ratelimit-limit")
}

/// Returns what `usage` says of the limit, without a request that asks home.
fn usage(region: &Region) -> Value {
    region.gateway.client().get("/limits", &[("X-User", "a")]).json()["limits"][0].clone()
}

/// Returns whether a purse of the region has the raise at home in its state.
fn is_stored(region: &Region) -> bool {
    let keys = region.redis.keys();
    let value = |key: Vec<u8>| redis::cmd("GET").arg(key).query::<Vec<u8>>(&mut region.redis.connection()).unwrap();
    keys.into_iter().map(value).any(|value| matches!((value[0], value.len()), (3, 112 | 160) | (4, 144 | 192)))
}

#[test]
fn a_raise_at_home_is_shown_in_a_region_that_has_heard_of_it() {
    let (upstream, home) = (Upstream::start(), Redis::start());
    let [eu, us] = regions(&upstream, &home);
    assert_eq!(spend(&eu), 1000);
    raise(&eu, "+50", "period-end", "t1");
    // The region has not heard of it, and what its purse says is what an earlier version wrote.
    assert_eq!((&usage(&eu)["limit"], is_stored(&eu)), (&json!(1000), false));
    assert_eq!((spend(&eu), is_stored(&eu)), (1050, true));
    let shown = usage(&eu);
    let [used, remaining] = ["used", "remaining"].map(|name| shown[name].as_u64().unwrap());
    assert_eq!((&shown["limit"], used + remaining, used), (&json!(1050), 1050, 122), "{shown}");
    says(&eu.gateway, &SHOW, 0, "  928 left of 1050, full in ");
    says(&eu.gateway, &SHOW, 0, "    raised by 50 at home until 2");
    let shown = document(&eu.gateway, &SHOW)["buckets"][0].clone();
    let until = shown["raises"][0]["until"].as_str().unwrap();
    assert!(until.ends_with("-01-01T00:00:00Z"), "{shown}");
    assert_eq!(shown["raises"], json!([{"raise": null, "amount": 50, "until": until}]));
    assert_eq!((&shown["quota"], &shown["spent"], &shown["left"]), (&json!(1050), &json!(122), &json!(928)), "{shown}");
    // The first request of another region hears of home.
    let first = ask(&mut us.gateway.client(), "a");
    assert_eq!((first.status, first.number("ratelimit-limit")), (200, 1050), "{first:?}");
    assert_eq!(ask(&mut us.gateway.client(), "b").number("ratelimit-limit"), 1000);
}

#[test]
fn a_raise_at_home_is_shown_until_it_ends() {
    let (upstream, home) = (Upstream::start(), Redis::start());
    let [eu, _] = regions(&upstream, &home);
    raise(&eu, "+50", "period-end", "t1");
    assert_eq!(spend(&eu), 1050);
    // Again on a machine that stood still until the raise had ended.
    let left = (2..)
        .find_map(|id| {
            let end = epoch() + 8;
            raise(&eu, "+10", &format_seconds(Timestamp(end * 1_000_000)), &format!("t{id}"));
            let (limit, shown) = (spend(&eu), document(&eu.gateway, &SHOW)["buckets"][0].clone());
            let is_running = epoch() < end;
            assert!(!is_running || limit == 1060 && shown["raises"][0]["amount"] == json!(60), "{limit} {shown}");
            is_running.then(|| shown["left"].as_u64().unwrap())
        })
        .unwrap();
    // When the first of several ends, the sum of the others is known with the next answer of home.
    eventually("the second raise ends", || usage(&eu)["limit"] == json!(1000));
    assert_eq!(usage(&eu)["remaining"].as_u64(), Some(left - 60));
    assert_eq!(document(&eu.gateway, &SHOW)["buckets"][0]["raises"], json!(null));
    assert_eq!(spend(&eu), 1050);
}

/// An older gateway would find a purse with a raise invalid, and lose what it holds.
#[test]
fn no_purse_has_a_raise_while_an_older_gateway_shares_the_store() {
    let (upstream, home) = (Upstream::start(), Redis::start());
    let [eu, _] = regions(&upstream, &home);
    raise(&eu, "+50", "period-end", "t1");
    let live = || eu.gateway.metric("rate_limiter_live_gateways", &[]);
    let older_runs = |seconds: u64| {
        let heard = ((epoch() + seconds) * 1_000_000).to_le_bytes();
        let list: Vec<u8> = redis::cmd("GET").arg("tollgate:gateways").query(&mut eu.redis.connection()).unwrap();
        let list = [&list[..], b"an older", &heard].concat();
        redis::cmd("SET").arg("tollgate:gateways").arg(list).exec(&mut eu.redis.connection()).unwrap();
    };
    eventually("a heartbeat has shown one gateway", || live() == 1.0);
    // Again if it was forgotten meanwhile.
    loop {
        older_runs(6);
        eventually("a heartbeat shows the older gateway", || live() > 1.0);
        let found = (spend(&eu), is_stored(&eu));
        if live() > 1.0 {
            assert_eq!(found, (1000, false));
            break;
        }
    }
    eventually("it is forgotten", || live() == 1.0);
    assert_eq!((spend(&eu), is_stored(&eu)), (1050, true));
}
