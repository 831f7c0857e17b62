//! While Redis is down, gateways grant their shares. Over every window they stay below the limit, except for what an outage
//! adds according to docs/exactness.md.
//!
//! The access log shows which grants come from a share. While Redis decided for other gateways, some gateways may still have
//! granted from their shares, because they reconnected later or an answer was too late. These grants are checked against the
//! share of the gateway. All other grants are checked against the limit and the outages.

use std::collections::HashSet;
use std::time::Duration;

use super::faults_under_load::{BURST, Ending, Load, RequestRecord, ask_on, grants, pause};
use crate::exactness::history::windows::{Grant, most_in_a_window};
use crate::exactness::history::{
    ClockOffset, LeakyLimit, Limit, Numbers, Sample, WindowLimit, long_samples, rules, short_samples,
};
use crate::support::access_log;
use crate::support::{Answers, Client, Gateway, Redis, Relay, Upstream, eventually, print_measured, short_or_long};

const GATEWAYS: u64 = 2;
const USER: &str = "shared";

fn text(port: u16, samples: &[Sample]) -> String {
    let rules = rules(samples);
    format!(
        "store: {{redis: {{url: \"redis://127.0.0.1:{port}\"}}, gateways: {GATEWAYS}}}\non_store_failure: local\n\
         access_log: {{to: access.jsonl, when: [allowed]}}\n{rules}"
    )
}

/// A period in microseconds since the start: from before an event to after it.
type Period = (i64, i64);

/// The grants of a gateway for each limit, by its index: from its share, and by Redis.
struct GrantsOf {
    share: Vec<Vec<Grant>>,
    redis: Vec<Vec<Grant>>,
}

/// The observations of both gateways.
struct Observations {
    requests: Vec<usize>,
    gateways: Vec<GrantsOf>,
    clock: ClockOffset,
}

/// Returns the grants of a gateway, separated by the source that its access log states.
fn grants_by_source(gateway: &Gateway, seen: &[RequestRecord]) -> GrantsOf {
    let granted = seen.iter().filter(|seen| seen.status == 200).count();
    let lines = access_log::wait_for(gateway, granted);
    let of_share: HashSet<&str> = lines
        .iter()
        .filter(|line| line["source"] == "fallback")
        .map(|line| line["request_id"].as_str().unwrap())
        .collect();
    let grants_of = |share: bool| {
        let chosen: Vec<_> =
            seen.iter().filter(|seen| of_share.contains(&*seen.request_id) == share).cloned().collect();
        (0..short_samples().len()).map(|index| grants(&chosen, index)).collect()
    };
    GrantsOf { share: grants_of(true), redis: grants_of(false) }
}

/// Runs two gateways under load while `happens` runs, with a limit of each algorithm. Each gateway has its own path to Redis.
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
    clock.tolerance += i64::try_from(CLOCK_ERROR.as_micros()).unwrap();
    let seen: Vec<Vec<RequestRecord>> = std::thread::scope(|scope| {
        let load = &load;
        let ending = Ending(load);
        let callers = gateways.each_ref().map(|gateway| {
            let ask = |sample| scope.spawn(move || ask_on(gateway, sample, USER, load));
            load.callers().into_iter().map(ask).collect::<Vec<_>>()
        });
        load.await_refusals();
        pause(500);
        happens(&gateways, load);
        pause(1_000);
        drop(ending);
        callers.into_iter().map(|of| of.into_iter().flat_map(|caller| caller.join().unwrap()).collect()).collect()
    });
    // Every request was decided, by Redis or by a share.
    assert!(seen.iter().flatten().all(|seen| matches!(seen.status, 200 | 429)));
    let asked = |index: usize| seen.iter().flatten().filter(|seen| seen.sample == index).count();
    Observations {
        requests: (0..samples.len()).map(asked).collect(),
        gateways: gateways.iter().zip(&seen).map(|(gateway, seen)| grants_by_source(gateway, seen)).collect(),
        clock,
    }
}

fn is_local(gateway: &Gateway) -> bool {
    gateway.metric("rate_limiter_store_up", &[]) == 0.0
}

/// The largest error of a gateway's knowledge of Redis' clock: the longest time of a reply, which is the timeout of 50 ms,
/// and rounding.
const CLOCK_ERROR: Duration = Duration::from_millis(55);

/// Returns the limit that one gateway's share must keep, as its clients observe it.
fn share_of(limit: &Limit) -> Limit {
    let part = |numbers: Numbers| Numbers {
        burst: numbers.burst.div_ceil(GATEWAYS),
        amount: numbers.amount / GATEWAYS,
        ..numbers
    };
    match limit {
        Limit::TokenBucket(numbers) => Limit::TokenBucket(part(*numbers)),
        // With at most `delay_after` ahead of it a request goes at once.
        Limit::Leaky(leaky) => Limit::TokenBucket(part(LeakyLimit::moments(leaky))),
        Limit::Window(window) => Limit::Window(WindowLimit { limit: window.limit / GATEWAYS, ..*window }),
    }
}

/// Checks every window twice. The grants of each gateway from its share while Redis decided for others are checked against
/// its share; all other grants against the limit. In addition, a token bucket may grant `tokens`, a queue as much for its
/// rate, and a window `shares` shares of its limit. During `outages`, Redis decided for no gateway.
#[track_caller]
fn check(fault: &str, observations: &Observations, outages: &[Period], tokens: u64, shares: u64) {
    let Observations { requests, gateways, clock } = observations;
    let in_outage = |grant: &Grant| outages.iter().any(|(from, to)| grant.sent >= *from && grant.answered <= *to);
    for (index, Sample { name, limit }) in short_samples().iter().enumerate() {
        let share = share_of(limit);
        let (mut counted, mut beside) = (Vec::new(), 0);
        for gateway in gateways {
            let excess = most_in_a_window(&share, &gateway.share[index], clock);
            let tolerance = match share {
                Limit::TokenBucket(numbers) => numbers.refill(0, i64::try_from(CLOCK_ERROR.as_micros()).unwrap()),
                Limit::Window(_) | Limit::Leaky(_) => 0,
            };
            assert!(excess <= tolerance, "{fault}, {name}, of a share: {}", share.tokens(excess));
            let (during, others): (Vec<Grant>, Vec<Grant>) =
                gateway.share[index].iter().partition(|grant| in_outage(grant));
            beside += others.len();
            counted.extend(gateway.redis[index].iter().copied().chain(during));
        }
        let all: Vec<Grant> =
            gateways.iter().flat_map(|of| of.redis[index].iter().chain(&of.share[index])).copied().collect();
        let whole = limit.of_responses();
        let bound = match limit {
            Limit::TokenBucket(_) => limit.price(tokens * 1000),
            // It, too, holds what comes back in a second.
            Limit::Leaky(leaky) => limit.price(tokens * leaky.places.burst * 1000 / BURST),
            Limit::Window(_) => limit.capacity() * i128::from(shares) / i128::from(GATEWAYS),
        };
        let excess = most_in_a_window(&whole, &counted, clock);
        print_measured(&format!(
            "local: {fault}, {name}, {} requests, {} granted, {beside} of shares beside Redis, excess {} with them, {} without, \
             bound {}",
            requests[index],
            all.len(),
            limit.tokens(most_in_a_window(&whole, &all, clock)),
            limit.tokens(excess),
            limit.tokens(bound),
        ));
        assert!(excess <= bound, "{fault}, {name}: {} of {}", limit.tokens(excess), limit.tokens(bound));
    }
}

#[track_caller]
fn an_outage_for_all(
    (fault, times): (&str, u64),
    redis: &mut Redis,
    fails: fn(&mut Redis),
    returns: fn(&mut Redis),
    shares_of_a_window: u64,
) {
    let (port, mut outages) = (redis.port, Vec::new());
    let observations = play([port; 2], |gateways, load| {
        for _ in 0..times {
            fails(redis);
            let failed = load.micros();
            eventually("both grant their shares", || gateways.iter().all(is_local));
            pause(1_500);
            outages.push((failed, load.micros()));
            returns(redis);
            eventually("both are back", || !gateways.iter().any(is_local));
            // What has come back meanwhile is spent before the next one.
            load.await_refusals();
            pause(500);
        }
    });
    // After each, the bucket in Redis is as full as if nothing had been granted during it.
    check(&format!("{fault}, {times} times"), &observations, &outages, times * BURST, shares_of_a_window);
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
    let seconds = short_or_long(3, 30);
    let observations = play([redis.port, relay.port], |[_, cut_off], _| {
        relay.set(Answers::Lost);
        eventually("it grants its share", || is_local(cut_off));
        pause(seconds * 1000);
        relay.set(Answers::Pass);
        eventually("it is back", || !is_local(cut_off));
    });
    check(&format!("one of two cut off for {seconds} s"), &observations, &[], 0, 0);
}

/// Single calls are answered too late. Redis is never down and decides about these calls, but the gateway no longer waits, so
/// the share decides too.
#[test]
fn a_call_that_is_answered_too_late_is_decided_by_the_share_beside_the_limit() {
    let redis = Redis::start();
    let relay = Relay::start(redis.port);
    let times = short_or_long(5, 50);
    let observations = play([redis.port, relay.port], |_, _| {
        for _ in 0..times {
            // One call of each connection or two, so that the breaker stays closed.
            relay.set(Answers::Late(Duration::from_millis(70)));
            pause(40);
            relay.set(Answers::Pass);
            pause(400);
        }
    });
    assert!(observations.gateways[1].share.iter().flatten().count() > 0, "none was late");
    check(&format!("calls answered 70 ms late, {times} times"), &observations, &[], 0, 0);
}

/// Sends requests for each limit until one is refused, at most `most` requests for each.
fn ask_for_each(client: &mut Client, load: &Load, most: usize, seen: &mut Vec<RequestRecord>) {
    for (index, sample) in load.samples.iter().enumerate() {
        for _ in 0..most {
            let sent = load.micros();
            let response = client.get("/", &[(&sample.header(), USER)]);
            let (answered, status) = (load.micros() + 1, response.status);
            let request_id = response.field("X-Request-Id").unwrap();
            seen.push(RequestRecord { sample: index, sent, answered, status, request_id });
            if status == 429 {
                break;
            }
        }
    }
}

/// All requests are in one period, and Redis keeps its data.
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
