//! Gateways that leave, are killed or stand still: another gateway on the same Redis gets their slots.

use std::time::Duration;

use super::upstream::SlowUpstream;
use super::{begin, get, hold, slots};
use crate::support::{Gateway, Redis, eventually, now, print_measured, short_or_long};

/// How long a gateway that says nothing more holds its slots.
const HELD: Duration = Duration::from_secs(7);

/// Starts two gateways on one Redis, with so many slots for each user.
fn two_gateways(slow: &SlowUpstream, redis: &Redis, limit: usize, more: &str) -> [Gateway; 2] {
    let config = format!("{}{more}{}", redis.patient_store(), slots(limit));
    [(); 2].map(|()| Gateway::start(&slow.upstream, &config))
}

/// Waits until the user gets a slot, and returns how long that took.
fn time_until_free(gateway: &Gateway) -> Duration {
    let start = now();
    eventually("a slot is free", || get(gateway, "/", "ann").status == 200);
    start.elapsed()
}

#[test]
fn a_drain_frees_slots_as_its_requests_end() {
    let (slow, redis) = (SlowUpstream::start(), Redis::start());
    let [mut one, two] = two_gateways(&slow, &redis, 1, "");
    let mut running = begin(&one, "/hold", "ann");
    slow.expect_running(1);
    one.drain();
    assert_eq!(get(&two, "/", "ann").status, 429);
    slow.finish(1);
    assert_eq!(running.response("GET").unwrap().status, 200);
    assert_eq!(one.wait().0.code(), Some(0));
    let took = time_until_free(&two);
    print_measured(&format!("after a drain, slots are free in {took:?}"));
    assert!(took < Duration::from_secs(2), "{took:?}");
}

#[test]
fn the_end_of_a_drain_frees_the_slots_of_requests_that_it_cuts() {
    let (slow, redis) = (SlowUpstream::start(), Redis::start());
    let [mut one, two] = two_gateways(&slow, &redis, 1, "drain: {timeout: 300ms}\n");
    let _running = begin(&one, "/hold", "ann");
    slow.expect_running(1);
    assert_eq!(get(&two, "/", "ann").status, 429);
    one.signal("TERM");
    assert_eq!(one.wait().0.code(), Some(0));
    let took = time_until_free(&two);
    print_measured(&format!("after the end of a drain, slots are free in {took:?}"));
    assert!(took < Duration::from_secs(2), "{took:?}");
}

/// Fifty streams of one gateway, which is killed.
#[test]
fn a_killed_gateway_frees_its_slots_within_seven_seconds() {
    const STREAMS: usize = 50;
    let (slow, redis) = (SlowUpstream::start(), Redis::start());
    let [one, two] = two_gateways(&slow, &redis, STREAMS, "");
    let running: Vec<_> = (0..STREAMS).map(|_| begin(&one, "/hold", "ann")).collect();
    slow.expect_running(STREAMS);
    assert_eq!(get(&two, "/", "ann").status, 429);
    let killed = now();
    one.signal("KILL");
    let took = time_until_free(&two);
    let passed = killed.elapsed();
    print_measured(&format!("after kill -9 with {STREAMS} streams, slots are free in {took:?}"));
    assert!(passed < HELD + Duration::from_secs(2), "{passed:?}");
    // All of them are free, and not more.
    let again: Vec<_> = (1..=STREAMS).map(|number| hold(&two, &slow, STREAMS + number)).collect();
    assert_eq!(get(&two, "/", "ann").status, 429);
    // Never more than the limit and what the killed gateway held.
    assert_eq!(slow.most(), 2 * STREAMS);
    slow.finish(2 * STREAMS);
    drop((running, again));
}

#[test]
fn a_gateway_that_stood_still_reports_its_slots_when_it_goes_on() {
    let (upstreams, redis) = ([(); 2].map(|()| SlowUpstream::start()), Redis::start());
    let config = format!("{}{}", redis.patient_store(), slots(2));
    let [one, two] = upstreams.each_ref().map(|slow| Gateway::start(&slow.upstream, &config));
    let mut stopped = [(); 2].map(|()| begin(&one, "/hold", "ann"));
    upstreams[0].expect_running(2);
    assert_eq!(get(&two, "/", "ann").status, 429);
    one.signal("STOP");
    let start = now();
    let took = time_until_free(&two);
    assert!(took < HELD + Duration::from_secs(2), "{took:?}");
    while start.elapsed() < short_or_long(took, Duration::from_secs(20)) {
        two.expect("rate_limiter_in_flight", &[], 0.0);
        assert_eq!(get(&two, "/", "ann").status, 200);
    }
    // Two more run: the limit is exceeded by what the stopped gateway holds.
    let mut running = [1, 2].map(|running| hold(&two, &upstreams[1], running));
    one.signal("CONT");
    let goes_on = now();
    upstreams[1].finish(2);
    // The requests of the other gateway have ended, so all slots that are held are those of the one that stood still.
    two.expect("rate_limiter_in_flight", &[], 0.0);
    eventually("what the gateway holds is counted again", || get(&two, "/", "ann").status == 429);
    let took = goes_on.elapsed();
    print_measured(&format!("a gateway that stood still is counted again after {took:?}"));
    assert!(took < Duration::from_secs(4), "{took:?}");
    upstreams[0].finish(2);
    for client in stopped.iter_mut().chain(&mut running) {
        assert_eq!(client.response("GET").unwrap().status, 200);
    }
    eventually("all slots are free", || {
        get(&two, "/", "ann").field("ratelimit").as_deref() == Some("\"in-flight\";r=1")
    });
}
