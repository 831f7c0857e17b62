//! `tollgate bucket show` says who holds the slots of a user.

use serde_json::Value;

use super::upstream::SlowUpstream;
use super::{begin, get, slots};
use crate::support::{Gateway, Redis, eventually, tollgate};

/// Shows the bucket of a user.
fn show(gateway: &Gateway, arguments: &[&str]) -> String {
    let admin = gateway.admin.to_string();
    let shown =
        tollgate(&[&["bucket", "show", "--admin", &admin, "in-flight", "header:x-user=ann"], arguments].concat());
    assert_eq!(shown.code, Some(0), "{shown:?}");
    shown.out
}

#[test]
fn the_slots_in_memory_are_those_of_this_gateway() {
    let slow = SlowUpstream::start();
    let gateway = Gateway::start(&slow.upstream, &slots(3));
    let running = [begin(&gateway, "/hold", "ann"), begin(&gateway, "/hold", "ann")];
    slow.expect_running(2);
    let shown = show(&gateway, &[]);
    assert!(shown.contains("2 of 3 held, 1 free\n    this gateway holds 2 since 20"), "{shown}");
    slow.finish(2);
    eventually("nothing is held", || show(&gateway, &[]).contains("0 of 3 held, 3 free\nread from"));
    drop(running);
}

#[test]
fn the_slots_in_redis_are_shown_by_gateway_and_thread() {
    let (slow, redis) = (SlowUpstream::start(), Redis::start());
    let config = format!("{}{}", redis.patient_store(), slots(5));
    let [one, two] = [(); 2].map(|()| Gateway::start(&slow.upstream, &config));
    let running = [&one, &two, &two].map(|gateway| begin(gateway, "/hold", "ann"));
    slow.expect_running(3);
    let shown = show(&one, &[]);
    assert!(shown.contains("3 of 5 held, 2 free\n    gateway "), "{shown}");
    let document: Value = serde_json::from_str(&show(&one, &["--json"])).unwrap();
    let holders = document["buckets"][0]["holders"].as_array().unwrap();
    let mut gateways: Vec<&str> = holders.iter().map(|holder| holder["gateway"].as_str().unwrap()).collect();
    gateways.iter_mut().for_each(|gateway| *gateway = gateway.split_once('/').unwrap().0);
    gateways.sort_unstable();
    gateways.dedup();
    assert_eq!(gateways.len(), 2, "{document}");
    let held: Vec<String> = holders.iter().map(|holder| holder["held"].to_string()).collect();
    assert!(held.iter().map(|held| held.trim_matches('"').parse::<u64>().unwrap()).sum::<u64>() == 3, "{document}");
    slow.finish(3);
    drop(running);
}

#[test]
fn what_is_held_can_be_neither_reset_nor_given_back() {
    let (slow, redis) = (SlowUpstream::start(), Redis::start());
    let gateway = Gateway::start(&slow.upstream, &format!("{}{}", redis.patient_store(), slots(1)));
    let running = begin(&gateway, "/hold", "ann");
    slow.expect_running(1);
    let (admin, file) = (gateway.admin.to_string(), gateway.file("gateway.yaml").display().to_string());
    for place in [["--admin", &admin], ["-c", &file]] {
        let reset = [&["bucket", "reset"], &place[..], &["in-flight", "header:x-user=ann"]].concat();
        let grant = [&["bucket", "grant"], &place[..], &["in-flight", "header:x-user=ann", "1"]].concat();
        for arguments in [reset, grant] {
            let answer = tollgate(&arguments);
            assert_eq!(answer.code, Some(1), "{answer:?}");
            assert!(answer.err.contains("slots are given back only by the requests that hold them"), "{answer:?}");
        }
    }
    assert_eq!(get(&gateway, "/", "ann").status, 429);
    slow.finish(1);
    drop(running);
}

/// Another gateway may still have a limit that the file of the command does not have.
#[test]
fn slots_of_a_limit_that_the_file_does_not_have_are_not_reset() {
    let redis = Redis::start();
    for store in [String::new(), redis.patient_store()] {
        let slow = SlowUpstream::start();
        let common = format!("hash_key: the-key-of-all-names\n{store}");
        let gateway = Gateway::start(&slow.upstream, &format!("{common}{}", slots(1)));
        let running = begin(&gateway, "/hold", "ann");
        slow.expect_running(1);
        let document: Value = serde_json::from_str(&show(&gateway, &["--json"])).unwrap();
        let name = document["buckets"][0]["bucket"].as_str().unwrap();
        let rates = "rules: [{name: rate, limit_keys: [header:x-user], algorithm_config: {rps: 9, burst: 9}}]";
        gateway.replace("other.yaml", &Gateway::text("http://127.0.0.1:1", &format!("{common}{rates}")));
        let (admin, other) = (gateway.admin.to_string(), gateway.file("other.yaml").display().to_string());
        let by_the_gateway: &[&str] = &["--admin", &admin];
        let by_the_other_file: &[&str] = &["-c", &other, "--admin", &admin];
        for place in [by_the_gateway, by_the_other_file, &[by_the_other_file, &["rate"]].concat()] {
            let answer = tollgate(&[&["bucket", "reset", "--hash", name], place].concat());
            assert_eq!(answer.code, Some(1), "{answer:?}");
            assert!(answer.err.contains("slots are given back only by the requests that hold them"), "{answer:?}");
        }
        assert_eq!(get(&gateway, "/", "ann").status, 429);
        slow.finish(1);
        drop(running);
    }
}
