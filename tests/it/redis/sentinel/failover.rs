//! The master dies, hangs or is demoted: gateways under load follow the sentinels to its successor.

use std::time::Duration;

use super::discovery::{RULES, STEADY, is_decided, store};
use crate::exactness::failover::{Failover, token_bucket};
use crate::exactness::history::{Sample, rules, short_samples};
use crate::redis::faults_under_load::{Load, pause};
use crate::support::sentinel::{Sentinel, SentinelGroup, SentinelSetup};
use crate::support::{
    Answers, Client, Gateway, Redis, Relay, Upstream, eventually, now, print_measured, short_or_long,
};

/// Waits until a server other than `from` accepts writes and a sentinel names it. Returns this time, in microseconds since
/// the start of the load.
#[track_caller]
fn promotion(group: &SentinelGroup, from: usize, load: &Load) -> i64 {
    promotion_after(|| (), group, from, load)
}

/// Orders the sentinels to move the master, and waits until they have done so.
#[track_caller]
fn ordered_promotion(group: &SentinelGroup, load: &Load) -> i64 {
    promotion_after(|| drop(group.sentinels[0].try_command(&["SENTINEL", "FAILOVER", "mymaster"])), group, 0, load)
}

/// Repeats the order while no other server is a master. Sentinels give up if they have just not heard from the replica, and
/// some undo a promotion if they hear of it too late.
#[track_caller]
fn promotion_after(order: impl Fn(), group: &SentinelGroup, from: usize, load: &Load) -> i64 {
    let deadline = now() + Duration::from_secs(40);
    let others = || (0..group.servers.len()).filter(move |index| *index != from);
    let (mut promoted, mut writes, mut named) = (None, None, None);
    let mut next_order = now();
    loop {
        assert!(
            now() < deadline,
            "no sentinel has moved the master: promoted {promoted:?}, accepts writes {writes:?}, named {named:?}, roles {:?}",
            group.servers.iter().map(Redis::role).collect::<Vec<_>>()
        );
        // Some sentinels undo a promotion.
        if promoted.is_some() && others().all(|index| group.servers[index].role().starts_with("slave")) {
            (promoted, writes, named) = (None, None, None);
        }
        if promoted.is_none() && now() >= next_order {
            order();
            next_order = now() + Duration::from_secs(3);
        }
        if promoted.is_none() && others().any(|index| group.servers[index].role() == "master") {
            promoted = Some(load.micros());
        }
        if promoted.is_some() && writes.is_none() && others().any(|index| group.servers[index].accepts_writes()) {
            writes = Some(load.micros());
        }
        if named.is_none() && others().any(|index| group.is_named(index)) {
            named = Some(load.micros());
        }
        if let (Some(promoted), Some(writes), Some(named)) = (promoted, writes, named) {
            let [writes, named] = [writes - promoted, named - promoted];
            print_measured(&format!(
                "accepts writes {} ms after the promotion, named {} ms after it",
                writes / 1000,
                named / 1000
            ));
            return promoted + writes.max(named);
        }
        pause(2);
    }
}

/// Two gateways that use sentinels and refuse without Redis go through a [`Failover`] under load.
#[track_caller]
fn survive(
    fault: &str,
    mut group: SentinelGroup,
    samples: &[Sample],
    happens: impl FnOnce(&mut SentinelGroup, &Load) -> i64,
) -> i128 {
    let upstream = Upstream::start();
    let text = group.store("deny") + &rules(samples);
    let gateways = [(); 2].map(|()| Gateway::start(&upstream, &text));
    Failover::of_one_server(fault, &gateways, samples).survive(|load| Some(happens(&mut group, load)))
}

fn group(replicas: usize, server: &[&str]) -> SentinelGroup {
    SentinelGroup::with(&SentinelSetup { replicas, server, ..SentinelSetup::default() })
}

#[test]
fn a_killed_master_is_left_for_its_successor() {
    for _ in 0..short_or_long(1, 5) {
        survive("kill -9 of the master", group(2, &[]), &token_bucket(), |group, load| {
            group.servers[0].kill();
            promotion(group, 0, load)
        });
    }
}

#[test]
fn a_master_that_hangs_is_left_and_stays_left_when_it_goes_on() {
    for _ in 0..short_or_long(1, 5) {
        survive("SIGSTOP of the master, SIGCONT after the failover", group(1, &[]), &token_bucket(), |group, load| {
            group.servers[0].signal("STOP");
            let promoted = promotion(group, 0, load);
            pause(300);
            group.servers[0].signal("CONT");
            promoted
        });
    }
}

#[test]
fn a_master_that_is_alive_is_left_when_the_sentinels_move_it() {
    // Sentinels do not wait until the successor has everything, and the old master goes on until it is demoted.
    for _ in 0..short_or_long(1, 5) {
        survive("SENTINEL FAILOVER", group(1, &[]), &token_bucket(), |group, load| ordered_promotion(group, load));
    }
}

/// Redis' own command: the master waits until its replica has all data, and then they exchange their roles. Sentinels take no
/// part. They name the successor only after they have noticed that the old master is a replica.
#[test]
fn a_master_that_changes_places_with_its_replica_is_left_when_the_sentinels_have_noticed() {
    for _ in 0..short_or_long(1, 5) {
        survive("FAILOVER, without the sentinels", group(1, &[]), &token_bucket(), |group, load| {
            group.servers[0].command::<()>(&["FAILOVER"]);
            promotion(group, 0, load)
        });
    }
}

#[test]
fn a_master_that_needs_a_replica_stops_when_that_is_promoted() {
    // The successor does not write either before the old master has become its replica.
    let server = ["--min-replicas-to-write", "1", "--min-replicas-max-lag", "10"];
    for _ in 0..short_or_long(1, 5) {
        let fault = "SENTINEL FAILOVER, min-replicas-to-write 1";
        survive(fault, group(1, &server), &token_bucket(), |group, load| ordered_promotion(group, load));
    }
}

/// Starts a master, a replica that is connected to it through a relay, and one sentinel.
fn group_with_relay() -> (SentinelGroup, Relay) {
    let master = Redis::start();
    let relay = Relay::start(master.port);
    let port = relay.port.to_string();
    let replica = Redis::start_with(&["--repl-diskless-sync-delay", "0", "--replicaof", "127.0.0.1", &port]);
    eventually("a replica is in step", || replica.role() == "slave connected");
    let setup = SentinelSetup { sentinels: 1, ..STEADY };
    let sentinels = vec![Sentinel::start(master.port, &setup)];
    (SentinelGroup { servers: vec![master, replica], sentinels }, relay)
}

#[test]
fn a_replica_that_lags_behind_grants_again_what_it_has_not_heard_of() {
    let lag = Duration::from_millis(300);
    for _ in 0..short_or_long(1, 5) {
        // On a machine that stands still for as long just before the kill, it has heard of everything.
        let is_lost = (0..3).any(|_| {
            let (group, relay) = group_with_relay();
            relay.set(Answers::Late(lag));
            let fault = "a replica that is 300 ms behind is promoted";
            let excess = survive(fault, group, &token_bucket(), |group, load| {
                group.servers[0].kill();
                group.promote_by_hand(1);
                promotion(group, 0, load)
            });
            excess > 0
        });
        assert!(is_lost, "nothing was lost");
    }
}

#[test]
fn a_replica_that_has_heard_nothing_for_a_window_grants_each_limit_once_more() {
    let samples = short_samples();
    for _ in 0..short_or_long(1, 5) {
        let (group, relay) = group_with_relay();
        let fault = "a replica that has heard nothing for 2.2 s is promoted";
        let excess = survive(fault, group, &samples, |group, load| {
            relay.set(Answers::Lost);
            pause(2_200);
            group.servers[0].kill();
            group.promote_by_hand(1);
            promotion(group, 0, load)
        });
        assert!(excess > 0, "nothing was lost");
    }
}

#[test]
fn a_demoted_master_is_left_at_once_and_its_requests_are_sent_to_the_next() {
    let (group, upstream) = (SentinelGroup::with(&STEADY), Upstream::start());
    let gateway = Gateway::start(&upstream, &store(&group.section(""), ", timeout: 5s"));
    is_decided(&gateway);
    gateway.expect("rate_limiter_store_up", &[], 1.0);
    let before = gateway.metric("rate_limiter_fallback_decisions_total", &[]);
    let mut client = gateway.client();
    let mut remaining = || client.get("/", &[("X-User", "b")]).number("RateLimit-Remaining");
    assert_eq!(remaining(), 999);
    group.promote_by_hand(1);
    // Its connections stay open, and it accepts no writes.
    group.servers[0].command::<()>(&["REPLICAOF", "127.0.0.1", &group.servers[1].port.to_string()]);
    assert_eq!(remaining(), 998);
    assert_eq!(gateway.metric("rate_limiter_fallback_decisions_total", &[]), before, "{}", gateway.errors());
    assert!(gateway.metric("rate_limiter_store_errors_total", &["kind=\"replica\""]) > 0.0, "{}", gateway.errors());
    gateway.expect("rate_limiter_store_up", &[], 1.0);
}

#[test]
fn the_demotion_of_an_idle_master_is_noticed_by_the_heartbeat() {
    let (group, upstream) = (SentinelGroup::with(&STEADY), Upstream::start());
    let text = group.store("deny") + RULES;
    let gateway = Gateway::before(&upstream).with(&text).interval("heartbeat", Duration::from_millis(50)).start();
    gateway.expect("rate_limiter_store_up", &[], 1.0);
    group.promote_by_hand(1);
    group.servers[0].command::<()>(&["REPLICAOF", "127.0.0.1", &group.servers[1].port.to_string()]);
    let server = format!("server=127.0.0.1:{}", group.servers[1].port);
    eventually("it is connected to the successor", || gateway.has_logged(&server));
    gateway.expect("rate_limiter_store_up", &[], 1.0);
    let status = Client::connect(gateway.admin).get("/status.json", &[]).json();
    assert_eq!(status["store"]["server"], server.trim_start_matches("server="));
}
