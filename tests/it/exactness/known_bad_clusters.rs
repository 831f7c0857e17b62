//! Deliberate mistakes of a store that charges several nodes for one request. The judge of such a history finds every one of
//! them.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use base::host_port::HostPort;
use base::time::Micros;
use stores::redis::fault_injection::{Flaw, Hooks};

use super::history::gateways::{Clocks, Gateways, PATIENT, Run};
use super::history::undone::{KEPT, Refusals};
use super::history::{Answer, Findings, History, Kind, Limit, Numbers};
use crate::support::{Lateness, RedisCluster, Replicas, now, print_measured, short_or_long};

/// The longest pause of a load on a machine that did not stand still.
const STEADY: Duration = Duration::from_millis(30);

/// How often a load is played on a machine that stands still again and again.
const MOST_PLAYS: usize = 8;

/// The time at which the current load began.
static BEGUN: Mutex<Option<Instant>> = Mutex::new(None);

/// A cost that the second bucket can never pay. So it refuses, whatever the first bucket holds.
const TOO_MUCH: (usize, u64) = (1, 2_000);

/// Returns two gateways with eight callers and two buckets. The second bucket holds one token.
fn gateways(numbers: Numbers, request: fn(usize) -> Vec<(usize, u64)>) -> Gateways {
    let second = Numbers { burst: 1, amount: 1, period: 1_000_000 };
    Gateways {
        hooks: vec![Hooks::default(); 2],
        workers: 1,
        callers: 4,
        buckets: vec![Limit::TokenBucket(numbers), Limit::TokenBucket(second), Limit::TokenBucket(second)],
        mistaken: |_, limit| limit,
        clocks: Clocks::default(),
        request,
        pauses: [Duration::from_millis(3), Duration::from_millis(6)],
        lasting: Duration::from_millis(800),
        timeout: PATIENT,
    }
}

/// Half of the callers are refused by the second bucket; the others empty the first one.
fn some_are_refused(caller: usize) -> Vec<(usize, u64)> {
    if caller.is_multiple_of(2) { vec![(0, 3_000)] } else { vec![(0, 3_000), TOO_MUCH] }
}

/// First the second bucket refuses all callers. When their payments must have been given back, all ask only the first bucket.
fn refused_then_alone(_: usize) -> Vec<(usize, u64)> {
    let passed = BEGUN.lock().unwrap().map_or(Duration::ZERO, |begun| begun.elapsed());
    let kept = Duration::from_micros(u64::try_from(KEPT).unwrap());
    match passed {
        passed if passed < Duration::from_millis(150) => vec![(0, 6_000_000), TOO_MUCH],
        passed if passed < Duration::from_millis(250) + kept => vec![(2, 1)],
        _ => vec![(0, 4_500_000)],
    }
}

/// First the second bucket refuses all callers. The first bucket is full again when all callers begin to empty it. Only then
/// the payments of refused requests are undone. Nothing may be given back, because everything has been refilled.
fn refused_then_emptied(_: usize) -> Vec<(usize, u64)> {
    match BEGUN.lock().unwrap().map_or(Duration::ZERO, |begun| begun.elapsed()) {
        passed if passed < Duration::from_millis(80) => vec![(0, 3_000), TOO_MUCH],
        passed if passed < Duration::from_millis(800) => vec![(2, 1)],
        _ => vec![(0, 1_000)],
    }
}

fn one_each(_: usize) -> Vec<(usize, u64)> {
    vec![(0, 1_000)]
}

/// Half of the callers ask both buckets, and each bucket is short at times.
fn both_or_one(caller: usize) -> Vec<(usize, u64)> {
    if caller.is_multiple_of(2) { vec![(0, 1_000)] } else { vec![(0, 1_000), (1, 1_000)] }
}

#[test]
fn how_many_requests_are_refused_for_what_others_get_back() {
    let cluster = RedisCluster::start(Replicas::None);
    let [first, second] =
        [(400, 40), (50, 10)].map(|(rate, burst)| Limit::TokenBucket(Numbers::per_second(rate, burst)));
    // A gateway knows of its own requests what was undone, and nothing of those of others.
    for (count, callers) in [(1, 8), (2, 4)] {
        let mut gateways = gateways(Numbers::per_second(400, 40), both_or_one);
        gateways.hooks.truncate(count);
        gateways.callers = callers;
        gateways.buckets = vec![first, second];
        gateways.lasting = short_or_long(Duration::from_millis(800), Duration::from_secs(5));
        let (history, findings) = play(&cluster, &cluster.addresses(), &gateways, |_, findings| findings.is_empty());
        assert!(findings.is_empty(), "{findings:?}");
        let Refusals { all, wrong_by_node, wrong_by_cache } = Refusals::of(&history);
        let asked = history.records.len();
        print_measured(&format!(
            "spread, gateways: {count}: of {asked} requests {all} were refused, {wrong_by_node} of them wrongly by a node and \
             {wrong_by_cache} wrongly without a call"
        ));
        assert!((wrong_by_node + wrong_by_cache) * 2 < asked, "{wrong_by_node} and {wrong_by_cache} of {asked}");
    }
}

/// Plays the load, and judges it. A play that does not show what it must is repeated if the machine stood still during it: then the
/// load has lost one of its parts, or charges were undone later than the judge allows.
fn play(
    cluster: &RedisCluster,
    nodes: &[HostPort],
    gateways: &Gateways,
    shows: impl Fn(&History, &Findings) -> bool,
) -> (History, Findings) {
    let late = i64::try_from(gateways.hooks[0].undo_late.0).unwrap();
    let mut plays = 0;
    loop {
        cluster.masters.iter().for_each(|master| master.command::<()>(&["FLUSHALL"]));
        let lateness = Lateness::measure();
        let Run { history, .. } = gateways.play_on_cluster(nodes, || *BEGUN.lock().unwrap() = Some(now()));
        assert_eq!(history.count(|answer| matches!(answer, Answer::Unknown | Answer::Unasked)), 0);
        let findings = history.check_undone(late);
        plays += 1;
        let pause = Duration::from_micros(u64::try_from(history.longest_pause()).unwrap()).max(lateness.of_a_request());
        if shows(&history, &findings) || pause < STEADY || plays == MOST_PLAYS {
            return (history, findings);
        }
        print_measured(&format!("play {plays} is repeated, it had a pause of {pause:?}: {:?}", findings.counts));
    }
}

/// A load, how much later its charges are undone, and the flaws that it shows, each with the kind of finding.
type Case<'c> = (Gateways, Micros, &'c [(Flaw, Kind)]);

#[test]
fn mistakes_in_what_is_given_back_are_noticed() {
    let cluster = RedisCluster::start(Replicas::None);
    let nodes = cluster.addresses();
    let slow = Numbers { burst: 10_000, amount: 1_000, period: 1_000_000 };
    let fast = Numbers::per_second(100, 50);
    let late = Micros(850_000);
    let cases: [Case<'_>; 4] = [
        (
            gateways(slow, refused_then_alone),
            Micros(0),
            &[(Flaw::UndoneNever, Kind::Unjustified), (Flaw::UndoneIsKept, Kind::Unjustified)],
        ),
        (gateways(fast, some_are_refused), Micros(0), &[(Flaw::UndoneTwice, Kind::OverGrant)]),
        (gateways(fast, refused_then_emptied), late, &[(Flaw::UndoneInFull, Kind::OverGrant)]),
        (gateways(Numbers::per_second(20, 50), one_each), Micros(0), &[(Flaw::Resend, Kind::Unjustified)]),
    ];
    for (mut gateways, late, flaws) in cases {
        gateways.hooks.iter_mut().for_each(|hooks| hooks.undo_late = late);
        gateways.lasting += Duration::from(late);
        let is_clean = |history: &History, findings: &Findings| findings.is_empty() && history.records.len() > 50;
        let (history, findings) = play(&cluster, &nodes, &gateways, is_clean);
        assert!(is_clean(&history, &findings), "without it, in {} requests: {findings:?}", history.records.len());
        for (flaw, kind) in flaws {
            gateways.hooks.iter_mut().for_each(|hooks| hooks.flaw = Some(*flaw));
            let (history, findings) = play(&cluster, &nodes, &gateways, |_, findings| findings.of(*kind) > 0);
            let requests = history.records.len();
            print_measured(&format!("flaw: {flaw:?}: {:?} in {requests} requests", findings.counts));
            assert!(findings.of(*kind) > 0, "{flaw:?} in {requests} requests: {findings:?}");
        }
    }
}
