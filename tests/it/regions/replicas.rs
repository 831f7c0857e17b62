//! A home that comes back as a replica which lacks the last words: what was leased meanwhile passes once more.

use std::time::Duration;

use super::{ask, on_redis, rules, store};
use crate::support::{Answers, Gateway, Redis, Relay, Upstream, eventually, now, print_measured};

/// The limit, and how many requests a second the region gets.
const LIMIT: u64 = 400;
const PACE: Duration = Duration::from_millis(25);
/// For how long the replica is cut off before the home is lost.
const CUT: Duration = Duration::from_secs(5);

/// Loses a home whose replica has been cut off for a while. Returns how many requests have passed beyond the limit, and how many passed
/// while the replica was cut off.
fn lose_home(settings: &[&str]) -> (u64, u64) {
    let (upstream, mut home, redis) = (Upstream::start(), Redis::start_with(settings), Redis::start());
    let (to_home, to_replica) = (Relay::start(home.port), Relay::start(home.port));
    let replica = Redis::start_with(&["--replicaof", "127.0.0.1", &to_replica.port.to_string()]);
    eventually("the replica has the data", || {
        let replication: String = home.command(&["INFO", "replication"]);
        replication.contains("state=online")
            && (settings.is_empty() || replication.contains("min_slaves_good_slaves:1"))
    });
    let text = store(&redis, "eu", &on_redis(to_home.port))
        .replace("    timeout: 2s\n", "    timeout: 500ms\n    return_after: 1s\n");
    let rules = rules(LIMIT).replace("window: year}", "window: year}\n    lease: {share: 1%}");
    let gateway = Gateway::start(&upstream, &(text + &rules));
    gateway.expect_logged("home is up");
    let mut client = gateway.client();
    let mut passed = 0;
    while passed < 60 {
        passed += u64::from(ask(&mut client, "a").status == 200);
    }
    std::thread::sleep(Duration::from_millis(500));
    to_replica.set(Answers::Cut);
    let (begin, before) = (now(), passed);
    while begin.elapsed() < CUT {
        passed += u64::from(ask(&mut client, "a").status == 200);
        std::thread::sleep(PACE);
    }
    let meanwhile = passed - before;
    home.kill();
    replica.command::<()>(&["REPLICAOF", "NO", "ONE"]);
    to_home.lead_to(replica.port);
    eventually("the replica is home", || {
        let status = ask(&mut client, "a").status;
        passed += u64::from(status == 200);
        status == 429
    });
    std::thread::sleep(Duration::from_millis(1500));
    while ask(&mut client, "a").status == 200 {
        passed += 1;
    }
    (passed.saturating_sub(LIMIT), meanwhile)
}

#[test]
fn what_was_leased_without_a_replica_passes_once_more_and_less_where_home_then_refuses() {
    let with = ["--min-replicas-to-write", "1", "--min-replicas-max-lag", "1"];
    let (plain, refusing) = std::thread::scope(|scope| {
        let plain = scope.spawn(|| lose_home(&[]));
        let refusing = scope.spawn(|| lose_home(&with));
        (plain.join().unwrap(), refusing.join().unwrap())
    });
    let (beyond, meanwhile) = plain;
    print_measured(&format!("home lost after 5 s without a replica: {beyond} beyond {LIMIT}, {meanwhile} meanwhile"));
    // All that has passed meanwhile, but for what lay in the purse.
    assert!(beyond <= meanwhile + 4 && beyond + 12 >= meanwhile && meanwhile > 60, "{beyond} of {meanwhile}");
    let (beyond, meanwhile) = refusing;
    print_measured(&format!("with min-replicas-max-lag 1: {beyond} beyond {LIMIT}, {meanwhile} meanwhile"));
    assert!(beyond <= meanwhile + 4 && meanwhile < plain.1, "{beyond} of {meanwhile}, {} without", plain.1);
}
