//! A period of customers with three plans, over two gateways on one store: 80 % of a limit is reported, its customer gets a raise and
//! is refused at the new number, and the records are what the buckets say, to the unit.

use super::{read, send};
use crate::support::bucket_command::bucket;
use crate::support::{Gateway, Postgres, Redis, Upstream, eventually, tollgate};

const RULES: &str = "
usage: {path: /left, limit: {rate: 100000/s}}
rules:
  - {name: enterprise, match: {header:x-plan: enterprise}, limit_keys: [header:x-user], algorithm: fixed_window, algorithm_config: {limit: 1000, window: 366d}, meter: api}
  - {name: pro, match: {header:x-plan: pro}, limit_keys: [header:x-user], algorithm: fixed_window, algorithm_config: {limit: 50, window: 366d}, meter: api}
  - {name: free, limit_keys: [header:x-user], algorithm: fixed_window, algorithm_config: {limit: 10, window: 366d}, meter: api}
records: {to: records.jsonl, every: 1d, meters: [api], subject: [header:x-user], thresholds: [80%, 100%]}
";

/// Sends requests to both gateways in turn. Returns how many each has granted.
fn granted(gateways: &[Gateway; 2], times: usize, user: &str, plan: &str) -> [usize; 2] {
    let mut granted = [0; 2];
    for number in 0..times {
        let status = send(&gateways[number % 2], 1, user, plan)[0];
        assert!(matches!(status, 200 | 429), "{status}");
        granted[number % 2] += usize::from(status == 200);
    }
    granted
}

/// Returns what a customer reads of its limit and its use.
fn usage(gateway: &Gateway) -> (u64, u64) {
    let response = gateway.client().get("/left?path=/", &[("X-User", "acme"), ("X-Plan", "pro")]);
    let limit = response.json()["limits"][0].clone();
    assert_eq!(limit["name"], "pro", "{response:?}");
    (limit["limit"].as_u64().unwrap(), limit["used"].as_u64().unwrap())
}

/// `last` is the signal that ends the second gateway.
fn play(store: &str, last: &str) {
    let upstream = Upstream::start();
    let mut gateways = [(); 2].map(|()| Gateway::start(&upstream, &format!("{store}\n{RULES}")));
    for gateway in &gateways {
        // No threshold is reported before.
        gateway.expect("rate_limiter_live_gateways", &[], 2.0);
    }
    let mut acme = granted(&gateways, 40, "acme", "pro");
    let bob = granted(&gateways, 12, "bob", "free");
    let zed = granted(&gateways, 30, "zed", "enterprise");
    assert_eq!((acme, bob, zed), ([20; 2], [5; 2], [15; 2]));
    assert_eq!(usage(&gateways[1]), (50, 40));
    let is_reported = |share: &str, amount: u64| {
        let lines = gateways.iter().flat_map(|gateway| read(&gateway.file("records.jsonl")));
        let of_acme = lines.filter(|line| line["type"] == "tollgate.threshold" && line["data"]["subject"] == "acme");
        of_acme.filter(|line| line["data"]["threshold"] == share && line["data"]["quantity"] == amount).count() == 1
    };
    eventually("80 % is reported", || is_reported("80%", 40));
    for _ in 0..2 {
        let raise = ["raise", "pro", "header:x-user=acme", "+25", "--until", "period-end", "--id", "ticket-1"];
        let raised = bucket(&gateways[0], &raise);
        assert!(raised.code == Some(0) && raised.out.contains("35 left of 75"), "{raised:?}");
    }
    // The raise is in force everywhere within a second.
    eventually("the raise is used up", || {
        let further = granted(&gateways, 2, "acme", "pro");
        acme = [acme[0] + further[0], acme[1] + further[1]];
        acme[0] + acme[1] == 75
    });
    assert_eq!(granted(&gateways, 10, "acme", "pro"), [0, 0]);
    assert_eq!(usage(&gateways[0]), (75, 75));
    eventually("the shares of the larger limit are reported", || is_reported("80%", 60) && is_reported("100%", 75));

    for (gateway, signal) in gateways.iter_mut().zip(["TERM", last]) {
        gateway.signal(signal);
        gateway.wait();
    }
    let files = gateways.each_ref().map(|gateway| gateway.file("records.jsonl").display().to_string());
    let config = gateways[0].file("gateway.yaml").display().to_string();
    let check = tollgate(&["records", "check", &files[0], &files[1], "-c", &config]);
    for (user, [first, second]) in [("acme", acme), ("bob", bob), ("zed", zed)] {
        let all = first + second;
        let line = check.out.lines().find(|line| line.contains(&format!("x-user={user}"))).unwrap_or_default();
        let (recorded, result) = match last {
            "KILL" => (first, format!(" {all} spent: {second} more spent")),
            _ => (all, format!(" {all} spent: equal")),
        };
        let counted = format!(": {recorded} requests recorded ({recorded} requests, ");
        assert!(line.contains(&counted) && line.ends_with(&result), "{user}: {line}");
    }
    let (code, end) = match last {
        "KILL" => (Some(1), "0 equal, 3 different, 0 not compared\n"),
        _ => (Some(0), "3 equal, 0 different, 0 not compared\n"),
    };
    assert!(check.code == code && check.out.ends_with(end), "{check:?}");
}

#[test]
fn the_records_of_three_plans_on_redis_are_what_the_buckets_say() {
    play(&Redis::start().patient_store(), "TERM");
}

#[test]
fn what_a_killed_gateway_has_granted_on_redis_is_the_difference() {
    play(&Redis::start().patient_store(), "KILL");
}

/// Plays it on a PostgreSQL of its own.
fn play_on_postgresql(last: &str) {
    let postgres = Postgres::start();
    postgres.settings();
    play(&postgres.store_with(", timeout: 10s", "deny"), last);
}

#[test]
fn the_records_of_three_plans_on_postgresql_are_what_the_buckets_say() {
    play_on_postgresql("TERM");
}

#[test]
fn what_a_killed_gateway_has_granted_on_postgresql_is_the_difference() {
    play_on_postgresql("KILL");
}
