//! While Redis is away, gateways that grant their shares stay below the limit over every window, but for what
//! docs/exactness.md says that an outage adds.

use std::time::Duration;

use super::faults_under_load::{BURST, Ending, Load, RATE, RequestRecord, ask_on, grants, pause};
use crate::exactness::history::windows::most_in_a_window;
use crate::exactness::history::{ClockOffset, Limit, Sample, long_samples, rules, short_samples};
use crate::support::{Answers, Client, Gateway, Redis, Relay, Upstream, eventually, print_measured, short_or_long};

const GATEWAYS: u64 = 2;
const USER: &str = "shared";

fn text(port: u16, samples: &[Sample]) -> String {
    let rules = rules(samples);
    format!(
        "store: {{redis: {{url: \"redis://127.0.0.1:{port}\"}}, gateways: {GATEWAYS}}}\non_store_failure: local\n{rules}"
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
    clock: ClockOffset,
}

/// Two gateways, each with its own way to Redis, are under load while `happens` goes on: of a limit of each algorithm.
fn play(ports: [u16; 2], happens: impl FnOnce(&[Gateway; 2], &Load)) -> Observations {
    let upstream = Upstream::start();
    let samples = short_samples();
    let gateways = ports.map(|port| Gateway::start(&upstream, &text(port, &samples)));
    for gateway in &gateways {
        gateway.expect("rate_limiter_store_up", &[], 1.0);
    }
    let load = Load::start(&samples);
    let mut clock = load.clock(ports[0]);
    // Where a period ends a share knows by Redis' clock as last heard: as precisely as a reply was quick.
    clock.tolerance += 25_000;
    let observations = std::thread::scope(|scope| {
        let load = &load;
        let ending = Ending(load);
        let callers: Vec<_> = gateways
            .iter()
            .flat_map(|gateway| load.callers().into_iter().map(move |sample| (gateway, sample)))
            .map(|(gateway, sample)| scope.spawn(move || ask_on(gateway, sample, USER, load)))
            .collect();
        let watches: Vec<_> = gateways.iter().map(|gateway| scope.spawn(move || watch(gateway, load))).collect();
        load.await_refusals();
        pause(500);
        happens(&gateways, load);
        pause(1_000);
        drop(ending);
        let seen = callers.into_iter().flat_map(|caller| caller.join().unwrap()).collect();
        Observations { seen, away: watches.into_iter().map(|watch| watch.join().unwrap()).collect(), clock }
    });
    // Every request was decided, by Redis or by a share.
    assert!(observations.seen.iter().all(|seen| matches!(seen.status, 200 | 429)));
    observations
}

fn is_local(gateway: &Gateway) -> bool {
    gateway.metric("rate_limiter_store_up", &[]) == 0.0
}

/// Checks every window: beyond the limit a token bucket grants at most `tokens`, a queue as much for its rate, and a window
/// at most so many shares of its limit.
#[track_caller]
fn check(fault: &str, observations: &Observations, tokens: u64, shares: u64) {
    for (index, Sample { name, limit }) in short_samples().iter().enumerate() {
        let grants = grants(&observations.seen, index);
        let excess = most_in_a_window(&limit.of_responses(), &grants, &observations.clock);
        let bound = match limit {
            Limit::TokenBucket(_) => limit.price(tokens * 1000),
            // It, too, holds what comes back in a second.
            Limit::Leaky(leaky) => limit.price(tokens * leaky.places.burst * 1000 / BURST),
            Limit::Window(_) => limit.capacity() * i128::from(shares) / i128::from(GATEWAYS),
        };
        print_measured(&format!(
            "local: {fault}, {name}, {} requests, {} granted, excess {}, bound {}",
            observations.seen.iter().filter(|seen| seen.sample == index).count(),
            grants.len(),
            limit.tokens(excess),
            limit.tokens(bound),
        ));
        assert!(excess <= bound, "{fault}, {name}: {} of {}", limit.tokens(excess), limit.tokens(bound));
    }
}

/// The shares of gateways that are without Redis while others are not, for so long.
fn shares(microseconds: i64) -> u64 {
    (u64::try_from(microseconds).unwrap() * RATE / GATEWAYS).div_ceil(1_000_000)
}

#[track_caller]
fn an_outage_for_all(
    (fault, times): (&str, u64),
    redis: &mut Redis,
    fails: fn(&mut Redis),
    returns: fn(&mut Redis),
    shares_of_a_window: u64,
) {
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
    check(&format!("{fault}, {times} times"), &observations, bound, shares_of_a_window);
}

#[test]
fn shares_hold_every_window_while_redis_is_stopped() {
    let (stop, go_on) = (|redis: &mut Redis| redis.signal("STOP"), |redis: &mut Redis| redis.signal("CONT"));
    let fault = ("Redis stopped for 2 s", short_or_long(2, 20));
    an_outage_for_all(fault, &mut Redis::start(), stop, go_on, GATEWAYS);
}

#[test]
fn shares_hold_every_window_while_redis_is_killed_and_restarted_empty() {
    let fault = ("Redis killed for 2 s", short_or_long(2, 20));
    // Of a window the limit once more by the shares, and once more by a Redis that has forgotten it.
    an_outage_for_all(fault, &mut Redis::start(), Redis::kill, Redis::restart, 2 * GATEWAYS);
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
    let bound = BURST / GATEWAYS + shares(ended - begun);
    check(&format!("one of two cut off for {seconds} s"), &observations, bound, 1);
}

/// Asks for each limit until it is refused, at most so often.
fn ask_for_each(client: &mut Client, load: &Load, most: usize, seen: &mut Vec<RequestRecord>) {
    for (index, sample) in load.samples.iter().enumerate() {
        for _ in 0..most {
            let sent = load.micros();
            let status = client.get("/", &[(&sample.header(), USER)]).status;
            seen.push(RequestRecord { sample: index, sent, answered: load.micros() + 1, status });
            if status == 429 {
                break;
            }
        }
    }
}

/// All in one period, which Redis remembers.
#[test]
fn several_outages_in_one_window_grant_its_limit_once_more() {
    let mut redis = Redis::start_with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let upstream = Upstream::start();
    let samples = long_samples();
    let gateways = [(); 2].map(|()| Gateway::start(&upstream, &text(redis.port, &samples)));
    let load = Load::start(&samples);
    let clock = load.clock(redis.port);
    let (times, mut seen) = (short_or_long(3, 8), Vec::new());
    let ask = |most: usize, seen: &mut Vec<RequestRecord>| {
        gateways.iter().for_each(|gateway| ask_for_each(&mut gateway.client(), &load, most, seen));
    };
    for _ in 0..times {
        gateways.iter().for_each(|gateway| gateway.expect("rate_limiter_store_up", &[], 1.0));
        ask(1, &mut seen);
        redis.kill();
        gateways.iter().for_each(|gateway| gateway.expect("rate_limiter_store_up", &[], 0.0));
        ask(usize::MAX, &mut seen);
        redis.restart();
    }
    gateways.iter().for_each(|gateway| gateway.expect("rate_limiter_store_up", &[], 1.0));
    ask(usize::MAX, &mut seen);
    for (index, Sample { name, limit }) in samples.iter().enumerate() {
        let grants = grants(&seen, index);
        // One hour is longer than this test, so all of it is in two periods at most.
        let excess = most_in_a_window(&limit.of_responses(), &grants, &clock);
        let all: i128 = grants.iter().map(|grant| limit.price(grant.cost)).sum();
        print_measured(&format!(
            "local: {times} outages in one window, {name}, {} granted of {}, excess {}, bound {}",
            grants.len(),
            limit.tokens(limit.capacity()),
            limit.tokens(excess),
            limit.tokens(limit.capacity()),
        ));
        assert!(excess <= limit.capacity(), "{name}: {}", limit.tokens(excess));
        // Redis granted its limit, and the shares something.
        assert!(all > limit.capacity(), "{name}: {}", limit.tokens(all));
    }
}
