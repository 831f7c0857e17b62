//! While Redis is away, gateways that grant their shares stay below the limit over every window, but for what
//! docs/exactness.md says that an outage adds.

use std::time::Duration;

use super::faults_under_load::{BURST, CALLERS, Ending, Load, RATE, RequestRecord, ask_on, grants, pause};
use crate::exactness::history::Numbers;
use crate::exactness::history::windows::excess;
use crate::support::{Answers, Gateway, Redis, Relay, Upstream, eventually, print_measured, short_or_long};

const GATEWAYS: u64 = 2;
const USER: &str = "shared";

fn text(port: u16) -> String {
    format!(
        "store: {{redis: {{url: \"redis://127.0.0.1:{port}\"}}, gateways: {GATEWAYS}}}
on_store_failure: local
rules:
  - {{name: one, limit_keys: [header:x-user], algorithm_config: {{rps: {RATE}, burst: {BURST}}}}}
"
    )
}

/// When a gateway was seen to have no store, in microseconds since the start: from the last look before to the first one after.
type Away = (i64, i64);

/// Looks at a gateway again and again.
fn watch(gateway: &Gateway, load: &Load) -> Vec<Away> {
    let (mut away, mut since, mut before) = (Vec::new(), None, load.micros());
    while !load.is_over() {
        let now = load.micros();
        let is_up = gateway.metric("rate_limiter_store_up", &[]) == 1.0;
        match (is_up, since) {
            (false, None) => since = Some(before),
            (true, Some(begun)) => {
                away.push((begun, load.micros()));
                since = None;
            }
            _ => {}
        }
        before = now;
        std::thread::sleep(Duration::from_millis(10));
    }
    away.extend(since.map(|begun| (begun, load.micros())));
    away
}

/// For how long gateways had no store after it had `returned`, in microseconds, added up. The other one may have had it then.
fn late(away: &[Vec<Away>], returned: &[i64]) -> i64 {
    let after = |(from, to): &Away| {
        let last = returned.iter().copied().filter(|moment| moment < to).max();
        to - last.map_or(*from, |moment| moment.max(*from))
    };
    away.iter().flatten().map(after).sum()
}

/// What was seen of both gateways.
struct Observations {
    seen: Vec<RequestRecord>,
    away: Vec<Vec<Away>>,
}

/// Two gateways, each with its own way to Redis, are under load while `happens` goes on.
fn play(ports: [u16; 2], happens: impl FnOnce(&[Gateway; 2], &Load)) -> Observations {
    let upstream = Upstream::start();
    let gateways = ports.map(|port| Gateway::start(&upstream, &text(port)));
    for gateway in &gateways {
        gateway.expect("rate_limiter_store_up", &[], 1.0);
    }
    let load = Load::start();
    let observations = std::thread::scope(|scope| {
        let load = &load;
        let ending = Ending(load);
        let callers: Vec<_> = gateways
            .iter()
            .flat_map(|gateway| [(); CALLERS].map(|()| scope.spawn(move || ask_on(gateway, USER, load))))
            .collect();
        let watches: Vec<_> = gateways.iter().map(|gateway| scope.spawn(move || watch(gateway, load))).collect();
        load.await_refusals();
        pause(500);
        happens(&gateways, load);
        pause(1_000);
        drop(ending);
        let seen = callers.into_iter().flat_map(|caller| caller.join().unwrap()).collect();
        Observations { seen, away: watches.into_iter().map(|watch| watch.join().unwrap()).collect() }
    });
    // Every request was decided, by Redis or by a share.
    assert!(observations.seen.iter().all(|seen| matches!(seen.status, 200 | 429)));
    observations
}

fn is_local(gateway: &Gateway) -> bool {
    gateway.metric("rate_limiter_store_up", &[]) == 0.0
}

/// Checks every window: beyond the limit there are at most `tokens`.
#[track_caller]
fn check(fault: &str, seen: &[RequestRecord], tokens: u64) {
    let (numbers, grants) = (Numbers::per_second(RATE, BURST), grants(seen));
    let excess = excess(&numbers, &grants);
    print_measured(&format!(
        "local: {fault}, {} requests, {} granted, excess {}, bound {tokens}",
        seen.len(),
        grants.len(),
        numbers.tokens(excess)
    ));
    assert!(excess <= numbers.price(tokens * 1000), "{fault}: {} of {tokens}", numbers.tokens(excess));
}

/// The shares of gateways that are without Redis while others are not, for so long.
fn shares(microseconds: i64) -> u64 {
    (u64::try_from(microseconds).unwrap() * RATE / GATEWAYS).div_ceil(1_000_000)
}

#[track_caller]
fn an_outage_for_all(fault: &str, times: u64, redis: &mut Redis, fails: fn(&mut Redis), returns: fn(&mut Redis)) {
    let (port, mut returned) = (redis.port, Vec::new());
    let observations = play([port; 2], |gateways, load| {
        for _ in 0..times {
            fails(redis);
            eventually("both grant their shares", || gateways.iter().all(is_local));
            pause(1_500);
            returned.push(load.micros());
            returns(redis);
            eventually("both are back", || !gateways.iter().any(is_local));
            // What has come back meanwhile is spent before the next one.
            load.await_refusals();
            pause(500);
        }
    });
    // After each, the bucket in Redis is as full as if nothing had been granted during it, and the first gateway that is back
    // has it while the other still grants its share.
    let bound = times * BURST + shares(late(&observations.away, &returned));
    check(&format!("{fault}, {times} times"), &observations.seen, bound);
}

#[test]
fn shares_hold_every_window_while_redis_is_stopped() {
    let (stop, go_on) = (|redis: &mut Redis| redis.signal("STOP"), |redis: &mut Redis| redis.signal("CONT"));
    an_outage_for_all("Redis stopped for 2 s", short_or_long(2, 20), &mut Redis::start(), stop, go_on);
}

#[test]
fn shares_hold_every_window_while_redis_is_killed_and_restarted_empty() {
    an_outage_for_all("Redis killed for 2 s", short_or_long(2, 20), &mut Redis::start(), Redis::kill, Redis::restart);
}

#[test]
fn a_gateway_that_alone_is_cut_off_grants_its_share_beside_the_limit() {
    let redis = Redis::start();
    let relay = Relay::start(redis.port);
    let (mut begun, mut ended) = (0, 0);
    let seconds = short_or_long(3, 30);
    let observations = play([redis.port, relay.port], |[_, cut_off], load| {
        begun = load.micros();
        relay.set(Answers::Lost);
        eventually("it grants its share", || is_local(cut_off));
        pause(seconds * 1000);
        relay.set(Answers::Pass);
        eventually("it is back", || !is_local(cut_off));
        ended = load.micros();
    });
    assert!(observations.away[0].is_empty(), "the other one has Redis all the time");
    // It begins with its share of what was left, at most.
    check(&format!("one of two cut off for {seconds} s"), &observations.seen, BURST / GATEWAYS + shares(ended - begun));
}
