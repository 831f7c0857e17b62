//! A home that comes back as a replica which lacks the last words: what was leased meanwhile passes once more.

use std::time::Duration;

use stores::postgres::Durability;

use super::{ask, on_redis, rules, store};
use crate::postgres::failover::Pair;
use crate::support::{Answers, Gateway, Redis, Relay, Upstream, eventually, now, print_measured};

/// The limit, and how many requests a second the region gets.
const LIMIT: u64 = 400;
const PACE: Duration = Duration::from_millis(25);
/// For how long the replica is cut off before the home is lost.
const CUT: Duration = Duration::from_secs(5);

/// Loses a home: cuts its replica off, goes on for a while, and then moves to the replica. Returns how many requests have passed beyond
/// the limit, and how many passed while the replica was cut off.
fn lose_home<S>(home: &str, mut servers: S, cut: impl FnOnce(&mut S), lose: impl FnOnce(&mut S)) -> (u64, u64) {
    let (upstream, redis) = (Upstream::start(), Redis::start());
    let text = store(&redis, "eu", home).replace("    timeout: 2s\n", "    timeout: 500ms\n    return_after: 1s\n");
    let rules = rules(LIMIT).replace("window: year}", "window: year}\n    lease: {share: 1%}");
    let gateway = Gateway::start(&upstream, &(text + &rules));
    gateway.expect_logged("home is up");
    let mut client = gateway.client();
    let mut passed = 0;
    while passed < 60 {
        passed += u64::from(ask(&mut client, "a").status == 200);
    }
    std::thread::sleep(Duration::from_millis(500));
    cut(&mut servers);
    let (begin, before) = (now(), passed);
    while begin.elapsed() < CUT {
        passed += u64::from(ask(&mut client, "a").status == 200);
        std::thread::sleep(PACE);
    }
    let meanwhile = passed - before;
    lose(&mut servers);
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

/// Loses a Redis with these settings, and its data since the cut.
fn lose_redis(settings: &[&str]) -> (u64, u64) {
    let home = Redis::start_with(settings);
    let (to_home, to_replica) = (Relay::start(home.port), Relay::start(home.port));
    let replica = Redis::start_with(&["--replicaof", "127.0.0.1", &to_replica.port.to_string()]);
    eventually("the replica has the data", || {
        let replication: String = home.command(&["INFO", "replication"]);
        replication.contains("state=online")
            && (settings.is_empty() || replication.contains("min_slaves_good_slaves:1"))
    });
    let text = on_redis(to_home.port);
    let lose = |(home, replica): &mut (Redis, Redis)| {
        home.kill();
        replica.command::<()>(&["REPLICAOF", "NO", "ONE"]);
        to_home.lead_to(replica.port);
    };
    let cut = |(home, replica): &mut (Redis, Redis)| {
        // A new replica gets what is written only after its first acknowledgement, about a second later.
        let sent = offset(home, "master_repl_offset");
        eventually("the replica has all that is written", || offset(replica, "slave_repl_offset") >= sent);
        to_replica.set(Answers::Cut);
    };
    lose_home(&text, (home, replica), cut, lose)
}

fn offset(redis: &Redis, name: &str) -> u64 {
    let replication: String = redis.command(&["INFO", "replication"]);
    let value = |line: &str| line.strip_prefix(name)?.strip_prefix(':')?.trim().parse().ok();
    replication.lines().find_map(value).unwrap_or_else(|| panic!("no {name}: {replication}"))
}

/// Loses a PostgreSQL, and its data since the cut.
fn lose_postgres(durability: Durability) -> (u64, u64) {
    let pair = Pair::start(durability);
    let home = format!(
        "postgres: {{url: \"postgres://tollgate@127.0.0.1:{},127.0.0.1:{}/limits\", durability: {}}}",
        pair.replica.port,
        pair.primary.port,
        durability.name()
    );
    let cut_off = |pair: &mut Pair| {
        pair.replica.set("primary_conninfo", "''");
        let connected = "SELECT count(*) FROM pg_stat_replication";
        eventually("the replica is cut off", || pair.primary.sql(connected) == "0");
    };
    let lose = |pair: &mut Pair| {
        pair.primary.stop("immediate");
        pair.replica.promote();
    };
    lose_home(&home, pair, cut_off, lose)
}

#[test]
fn what_was_leased_without_a_replica_passes_once_more_and_less_where_home_then_refuses() {
    let with = ["--min-replicas-to-write", "1", "--min-replicas-max-lag", "1"];
    let (plain, refusing) = std::thread::scope(|scope| {
        let plain = scope.spawn(|| lose_redis(&[]));
        let refusing = scope.spawn(|| lose_redis(&with));
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

#[test]
fn a_postgresql_that_does_not_wait_for_its_replica_gives_once_more_and_one_that_waits_gives_nothing_twice() {
    let (alone, waiting) = std::thread::scope(|scope| {
        let alone = scope.spawn(|| lose_postgres(Durability::Async));
        let waiting = scope.spawn(|| lose_postgres(Durability::Sync));
        (alone.join().unwrap(), waiting.join().unwrap())
    });
    let (beyond, meanwhile) = alone;
    print_measured(&format!("PostgreSQL, async, lost after 5 s: {beyond} beyond {LIMIT}, {meanwhile} meanwhile"));
    assert!(beyond <= meanwhile + 4 && meanwhile > 60 && beyond > 0, "{beyond} of {meanwhile}");
    let (beyond, meanwhile) = waiting;
    print_measured(&format!("PostgreSQL, sync, lost after 5 s: {beyond} beyond {LIMIT}, {meanwhile} meanwhile"));
    // What lay in the purse.
    assert!(beyond == 0 && meanwhile <= 8, "{beyond} beyond, {meanwhile} meanwhile");
}
