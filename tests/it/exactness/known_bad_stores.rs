//! Deliberate mistakes that real rate limiters have made. The judges of a history find every one of them.

use std::time::Duration;

use base::time::Micros;
use stores::redis::fault_injection::{Flaw, Hooks, Refusals};

use super::history::gateways::{Clocks, Gateways, PATIENT, Run};
use super::history::{Answer, Findings, Kind, Limit, Numbers};
use crate::support::{Answers, Redis, Relay, print_measured};

/// Returns two gateways with 24 callers. All callers ask one bucket for one token, with short pauses.
pub fn gateways(limit: impl Into<Limit>) -> Gateways {
    Gateways {
        hooks: vec![Hooks::default(); 2],
        workers: 1,
        callers: 12,
        buckets: vec![limit.into()],
        mistaken: |_, limit| limit,
        clocks: Clocks::default(),
        request: |_| vec![(0, 1000)],
        pauses: [Duration::from_millis(2), Duration::from_millis(4)],
        lasting: Duration::from_millis(1300),
        timeout: PATIENT,
    }
}

/// Runs the gateways with and without their flaws, and checks that the flaws are found. `late` is the delay of Redis' answers
/// in both runs.
#[track_caller]
pub fn is_noticed(as_what: &[Kind], flaws: [Flaw; 2], gateways: Gateways, late: Duration) {
    let redis = Redis::start();
    let relay = Relay::start(redis.port);
    let port = if late.is_zero() { redis.port } else { relay.port };
    let play = |flaws: [Option<Flaw>; 2]| -> (usize, Findings) {
        redis.command::<()>(&["FLUSHALL"]);
        relay.set(Answers::Pass);
        let mut gateways = gateways.clone();
        gateways.hooks.iter_mut().zip(flaws).for_each(|(hooks, flaw)| hooks.flaw = flaw);
        let Run { history, .. } = gateways.play(&redis, port, || relay.set(Answers::Late(late)));
        assert_eq!(history.count(|answer| matches!(answer, Answer::Unknown | Answer::Unasked)), 0);
        (history.records.len(), history.check())
    };
    let (requests, findings) = play([None; 2]);
    assert!(findings.is_empty() && requests > 50, "without it, in {requests} requests: {findings:?}");
    let (requests, findings) = play(flaws.map(Some));
    print_measured(&format!("flaw: {:?}: {:?} in {requests} requests", flaws[0], findings.counts));
    for kind in as_what {
        assert!(findings.of(*kind) > 0, "{flaws:?} in {requests} requests: {findings:?}");
    }
}

#[test]
fn times_of_gateways_whose_clocks_differ_are_noticed() {
    let flaws = [0, 300_000].map(|ahead| Flaw::ClientTime { ahead: Micros(ahead) });
    is_noticed(&[Kind::OverGrant, Kind::OutOfTime], flaws, gateways(Numbers::per_second(50, 20)), Duration::ZERO);
}

#[test]
fn an_expiry_that_is_the_same_for_every_bucket_is_noticed() {
    // It gives back one token in two seconds: nothing writes the bucket before it has expired.
    let slow = Numbers { burst: 10, amount: 500, period: 1_000_000 };
    let mut gateways = Gateways { lasting: Duration::from_millis(1800), ..gateways(slow) };
    // What was seen counts for a second here too: who asks just before it has expired would not ask again in time.
    gateways.hooks.iter_mut().for_each(|hooks| hooks.refusals = Refusals::ByRedis);
    is_noticed(&[Kind::OverGrant, Kind::WrongGrant], [Flaw::FixedExpiry; 2], gateways, Duration::ZERO);
}

#[test]
fn a_refusal_that_writes_a_refill_rounded_up_is_noticed() {
    let mut gateways = gateways(Numbers::per_second(5, 10));
    gateways.hooks.iter_mut().for_each(|hooks| hooks.refusals = Refusals::ByRedis);
    is_noticed(&[Kind::OverGrant, Kind::WrongGrant], [Flaw::WriteOnRefusal; 2], gateways, Duration::ZERO);
}

#[test]
fn a_call_that_is_sent_again_after_a_late_reply_is_noticed() {
    let flaw = Flaw::Retry { after: Micros(30_000) };
    let late = Duration::from_millis(60);
    is_noticed(&[Kind::OtherLevel], [flaw; 2], gateways(Numbers::per_second(100, 100)), late);
}

#[test]
fn a_bound_that_counts_from_the_reply_instead_of_the_call_is_noticed() {
    let mut gateways = gateways(Numbers::per_second(10, 10));
    gateways.lasting = Duration::from_millis(2500);
    // Alone: what one does not ask for, another would take.
    gateways.hooks.truncate(1);
    is_noticed(&[Kind::Unjustified], [Flaw::LateBound; 2], gateways, Duration::from_millis(150));
}

#[test]
fn costs_that_are_summed_and_refused_as_one_are_noticed() {
    let gateways =
        Gateways { request: |_| vec![(0, fastrand::u64(1..=7) * 1000)], ..gateways(Numbers::per_second(100, 20)) };
    is_noticed(&[Kind::Unjustified], [Flaw::SummedCosts; 2], gateways, Duration::ZERO);
}
