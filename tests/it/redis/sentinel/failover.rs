//! The master dies, hangs or is demoted: gateways under load follow the sentinels to its successor.

use std::time::Duration;

use super::discovery::{RULES, STEADY, is_decided, store};
use crate::exactness::history::windows::excess;
use crate::exactness::history::{ClockOffset, Limit, Numbers, Sample, rules};
use crate::redis::faults_under_load::{BURST, CALLERS, Ending, Load, RATE, RequestRecord, ask_on, grants, pause};
use crate::support::sentinel::{Sentinel, SentinelGroup, SentinelSetup};
use crate::support::{
    Answers, Client, Gateway, Redis, Relay, Upstream, eventually, now, print_measured, short_or_long,
};

/// In milliseconds after the promotion of a successor.
pub const SOON: i64 = 1_000;

/// When something happened, in microseconds since the start of the load.
pub struct Failover {
    /// The successor says that it is a master.
    pub promoted: i64,
    /// A sentinel names it, or its name leads to it.
    pub named: i64,
}

/// Waits until another server than `from` is a master, and until a sentinel names it.
#[track_caller]
fn failover(group: &SentinelGroup, from: usize, load: &Load) -> Failover {
    failover_after(|| (), group, from, load)
}

/// Has the sentinels move the master, and waits for that.
#[track_caller]
fn ordered_failover(group: &SentinelGroup, load: &Load) -> Failover {
    failover_after(|| drop(group.sentinels[0].try_command(&["SENTINEL", "FAILOVER", "mymaster"])), group, 0, load)
}

/// Gives the order again while no other server is a master: sentinels give up if they have just not heard from the replica.
#[track_caller]
fn failover_after(order: impl Fn(), group: &SentinelGroup, from: usize, load: &Load) -> Failover {
    let deadline = now() + Duration::from_secs(20);
    let others = || (0..group.servers.len()).filter(move |index| *index != from);
    let (mut promoted, mut named) = (None, None);
    let mut next_order = now();
    loop {
        assert!(now() < deadline, "no sentinel has moved the master");
        if promoted.is_none() && now() >= next_order {
            order();
            next_order = now() + Duration::from_secs(3);
        }
        if promoted.is_none() && others().any(|index| group.servers[index].role() == "master") {
            promoted = Some(load.micros());
        }
        if named.is_none() && others().any(|index| group.is_named(index)) {
            named = Some(load.micros());
        }
        if let (Some(promoted), Some(named)) = (promoted, named) {
            return Failover { promoted, named };
        }
        pause(2);
    }
}

/// [`survive_with`] gateways that ask sentinels.
#[track_caller]
fn survive(
    fault: &str,
    mut group: SentinelGroup,
    within: i64,
    happens: impl FnOnce(&mut SentinelGroup, &Load) -> Failover,
) -> i128 {
    let upstream = Upstream::start();
    let store = group.store("deny");
    survive_with(
        fault,
        within,
        |rules| Gateway::start(&upstream, &format!("{store}{rules}")),
        |load| happens(&mut group, load),
    )
}

/// Two gateways that refuse without Redis are under load while `happens` goes on. Every request is answered in time, at most
/// a burst is granted beyond every window, and Redis decides again within so many milliseconds after the successor was
/// promoted.
#[track_caller]
pub fn survive_with(
    fault: &str,
    within: i64,
    start: impl Fn(&str) -> Gateway,
    happens: impl FnOnce(&Load) -> Failover,
) -> i128 {
    let samples = [Sample { name: "token_bucket", limit: Numbers::per_second(RATE, BURST).into() }];
    let gateways = [(); 2].map(|()| start(&rules(&samples)));
    for gateway in &gateways {
        gateway.expect("rate_limiter_store_up", &[], 1.0);
    }
    let load = Load::start(&samples);
    let allowed = |gateway: &Gateway| gateway.metric("rate_limiter_allowed_total", &[]);
    let (failover, seen) = std::thread::scope(|scope| {
        let load = &load;
        let ending = Ending(load);
        let callers = gateways
            .each_ref()
            .map(|gateway| [(); CALLERS].map(|()| scope.spawn(move || ask_on(gateway, 0, "one", load))));
        pause(300);
        load.await_refusals();
        let failover = happens(load);
        pause(1_500);
        // More than the callers of a gateway had under way at the failover: Redis has decided again on each of the gateways.
        for gateway in &gateways {
            let before = allowed(gateway);
            eventually("Redis decides again", || allowed(gateway) > before + 8.0);
        }
        load.await_refusals();
        drop(ending);
        let join = |callers: [std::thread::ScopedJoinHandle<'_, Vec<RequestRecord>>; CALLERS]| {
            callers.into_iter().flat_map(|caller| caller.join().unwrap()).collect::<Vec<RequestRecord>>()
        };
        (failover, callers.map(join))
    });
    // Each was answered: a connection that fails is a panic.
    let all = || seen.iter().flatten();
    assert!(all().all(|request| matches!(request.status, 200 | 429 | 503)), "{fault}");
    let longest = all().map(|request| request.answered - request.sent).max().unwrap();
    assert!(longest < 1_000_000, "{fault}: {longest} µs");
    let back = seen.each_ref().map(|seen| {
        let granted = seen.iter().filter(|request| request.status == 200 && request.sent > failover.promoted);
        granted.map(|request| request.answered).min().expect("Redis decides again")
    });
    let back = back.into_iter().max().unwrap();
    let grants: Vec<_> = seen.iter().flat_map(|seen| grants(seen, 0)).collect();
    let limit: &Limit = &samples[0].limit;
    let excess = excess(limit, &grants, &ClockOffset::default());
    let milliseconds = |from: i64, to: i64| (to - from) / 1000;
    print_measured(&format!(
        "failover: {fault}, {} requests, {} granted, {} unavailable, longest {} ms, named {} ms after the promotion, back \
         {} ms after the promotion and {} ms after being named, excess {}, bound {BURST}",
        all().count(),
        grants.len(),
        all().filter(|request| request.status == 503).count(),
        longest / 1000,
        milliseconds(failover.promoted, failover.named),
        milliseconds(failover.promoted, back),
        milliseconds(failover.named, back),
        limit.tokens(excess),
    ));
    assert!(excess <= limit.price(BURST * 1000), "{fault}: {}", limit.tokens(excess));
    // A busy machine takes longer to find the successor: the short form allows it three times as long.
    let within = within * short_or_long(3, 1);
    assert!(milliseconds(failover.promoted, back) < within, "{fault}: {} ms", milliseconds(failover.promoted, back));
    gateways.iter().for_each(|gateway| gateway.expect("rate_limiter_store_up", &[], 1.0));
    excess
}

fn group(replicas: usize, server: &[&str]) -> SentinelGroup {
    SentinelGroup::with(&SentinelSetup { replicas, server, ..SentinelSetup::default() })
}

#[test]
fn a_killed_master_is_left_for_its_successor() {
    for _ in 0..short_or_long(1, 5) {
        survive("kill -9 of the master", group(2, &[]), SOON, |group, load| {
            group.servers[0].kill();
            failover(group, 0, load)
        });
    }
}

#[test]
fn a_master_that_hangs_is_left_and_stays_left_when_it_goes_on() {
    for _ in 0..short_or_long(1, 5) {
        survive("SIGSTOP of the master, SIGCONT after the failover", group(1, &[]), SOON, |group, load| {
            group.servers[0].signal("STOP");
            let failover = failover(group, 0, load);
            pause(300);
            group.servers[0].signal("CONT");
            failover
        });
    }
}

#[test]
fn a_master_that_is_alive_is_left_when_the_sentinels_move_it() {
    // Sentinels do not wait until the successor has everything, and the old master goes on until it is demoted.
    for _ in 0..short_or_long(1, 5) {
        survive("SENTINEL FAILOVER", group(1, &[]), SOON, |group, load| ordered_failover(group, load));
    }
}

/// Redis' own command: the master waits until its replica has everything, and then changes places with it. Sentinels take no
/// part, and name the successor only when they have noticed that the old master is a replica.
#[test]
fn a_master_that_changes_places_with_its_replica_is_left_when_the_sentinels_have_noticed() {
    for _ in 0..short_or_long(1, 5) {
        survive("FAILOVER, without the sentinels", group(1, &[]), 9_000, |group, load| {
            group.servers[0].command::<()>(&["FAILOVER"]);
            failover(group, 0, load)
        });
    }
}

#[test]
fn a_master_that_needs_a_replica_stops_when_that_is_promoted() {
    // The successor does not write either before the old master has become its replica.
    let server = ["--min-replicas-to-write", "1", "--min-replicas-max-lag", "10"];
    for _ in 0..short_or_long(1, 5) {
        let fault = "SENTINEL FAILOVER, min-replicas-to-write 1";
        survive(fault, group(1, &server), 9_000, |group, load| ordered_failover(group, load));
    }
}

#[test]
fn a_replica_that_lags_behind_grants_again_what_it_has_not_heard_of() {
    let lag = Duration::from_millis(300);
    for _ in 0..short_or_long(1, 5) {
        let master = Redis::start();
        let relay = Relay::start(master.port);
        let replica = Redis::start_with(&[
            "--repl-diskless-sync-delay",
            "0",
            "--replicaof",
            "127.0.0.1",
            &relay.port.to_string(),
        ]);
        eventually("a replica is in step", || replica.role() == "slave connected");
        relay.set(Answers::Late(lag));
        let setup = SentinelSetup { sentinels: 1, ..STEADY };
        let sentinels = vec![Sentinel::start(master.port, &setup)];
        let group = SentinelGroup { servers: vec![master, replica], sentinels };
        let excess = survive("a replica that is 300 ms behind is promoted", group, SOON, |group, load| {
            group.servers[0].kill();
            group.promote_by_hand(1);
            failover(group, 0, load)
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
