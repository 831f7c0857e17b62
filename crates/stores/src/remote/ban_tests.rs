//! Tests what a gateway knows of bans without a call.

use std::sync::Arc;

use super::deny_cache::DenyCache;
use super::transport::is_short;
use crate::fallback::FallbackShare;
use base::time::{Clock, Micros, Timestamp};
use ledger::algorithm::ban::Ban;
use ledger::algorithm::budget::{Budget, SpentLimit};
use ledger::algorithm::token_bucket::{Rate, TokenBucket};
use ledger::algorithm::{Algorithm, State};
use ledger::bucket_key::BucketKey;
use ledger::charge::{Charge, Plan, settle};
use ledger::cost::Cost;
use ledger::outcome::{BanNotice, Outcome, Verdict};

const SECOND: u64 = 1_000_000;
/// The time on the store's clock, and on ours.
const THERE: Timestamp = Timestamp(77_000 * SECOND);
const HERE: Timestamp = Timestamp(1_000 * SECOND);

/// A bucket of two tokens, refilled with one token each ten seconds, with bans of a minute.
fn plan() -> Plan {
    let rate = Rate { amount: Cost::ONE, period: Micros(10 * SECOND) };
    let bucket = SpentLimit::TokenBucket(TokenBucket::new(rate, 2).unwrap());
    let ban = Ban::new(&[Micros(60 * SECOND)], Micros(3_600 * SECOND)).unwrap();
    let mut plan = Plan::default();
    plan.enforce(Charge::new(BucketKey([1; 16]), Algorithm::Budget(Budget::banning(bucket, ban)), Cost::ONE));
    plan.enforce(Charge::of_token_bucket(2, 10, 1));
    plan
}

/// Takes the plan several times in the store. Returns the state of the first bucket, and its last outcome.
fn taken(times: usize, at: Timestamp) -> (State, Outcome) {
    let (mut states, mut last) = ([None::<State>, None], None);
    for _ in 0..times {
        let (settlement, entries) = settle(&plan(), &states, at);
        entries.into_iter().zip(&mut states).for_each(|(entry, state)| {
            *state = entry.map(|entry| entry.state).or(state.take());
        });
        last = Some(settlement.enforced[0]);
    }
    (states[0].clone().unwrap(), last.unwrap())
}

fn seconds(seconds: u64) -> Micros {
    Micros(seconds * SECOND)
}

#[test]
fn a_known_ban_is_refused_without_a_call_and_any_other_refusal_needs_one() {
    let (plan, cache) = (plan(), DenyCache::new());
    let [first, _] = &plan.enforced[..] else { panic!("two charges") };
    let (drained, granted) = taken(2, THERE);
    assert!(!is_short(first, &granted));
    cache.remember(first.key, drained, THERE, cache.stamp(HERE));
    assert!(cache.refuse(&plan, HERE).is_none(), "the next request begins a ban");

    let (banned, begun) = taken(3, THERE);
    assert_eq!(begun.ban, Some(BanNotice { step: 1, begins: true }));
    assert!(is_short(first, &begun));
    cache.remember(first.key, banned, THERE, cache.stamp(HERE));
    let (_, settlement) = cache.refuse(&plan, HERE.plus(Micros(500_000))).unwrap();
    let [outcome, other] = settlement.enforced[..] else { panic!("two outcomes") };
    assert_eq!((outcome.verdict, outcome.ban), (Verdict::Banned, Some(BanNotice { step: 1, begins: false })));
    assert_eq!((outcome.retry_after, other.verdict), (Micros(59_499_499), Verdict::Unasked));
    // A reset must be seen within a second.
    assert!(cache.refuse(&plan, HERE.plus(Micros(SECOND + 1))).is_none());
}

#[test]
fn without_the_store_a_known_ban_refuses_until_its_end_and_none_begins() {
    let clock = Clock::manual(HERE);
    let fallback = FallbackShare::new(1, clock.clone(), Arc::default());
    let plan = plan();
    let key = plan.enforced[0].key;
    assert!(fallback.refuse_banned(&plan).is_none());
    let (banned, _) = taken(3, THERE);
    let ban = plan.enforced[0].algorithm.running_ban(Some(&banned), THERE);
    fallback.observe_ban(key, ban, THERE, HERE);
    for (after, wait) in [(0, Some(60)), (59, Some(1)), (60, None)] {
        clock.set(HERE.plus(seconds(after)));
        let refused = fallback.refuse_banned(&plan).map(|reply| {
            assert!(!reply.settlement.is_granted());
            let outcome = reply.settlement.enforced[0];
            assert_eq!(outcome.ban, Some(BanNotice { step: 1, begins: false }));
            outcome.retry_after
        });
        assert_eq!(refused, wait.map(seconds), "after {after} s");
    }
    // An operator has lifted the ban.
    clock.set(HERE);
    assert!(fallback.refuse_banned(&plan).is_some());
    fallback.observe_ban(key, None, THERE, HERE);
    assert!(fallback.refuse_banned(&plan).is_none());
}

#[test]
fn a_bucket_that_another_gateway_may_reset_is_not_refused_without_a_call() {
    let budget =
        Budget::of_token_bucket(TokenBucket::new(Rate { amount: Cost::ONE, period: Micros(SECOND) }, 1).unwrap());
    let (deny_cache, spent) = (DenyCache::new(), budget.settle(None, Cost::ONE, THERE).state);
    deny_cache.remember(BucketKey([1; 16]), spent, THERE, deny_cache.stamp(HERE));
    let is_refused = |budget| {
        let mut plan = Plan::default();
        plan.enforce(Charge::new(BucketKey([1; 16]), Algorithm::Budget(budget), Cost::ONE));
        deny_cache.refuse(&plan, HERE).is_some()
    };
    assert_eq!([budget, budget.with_resets()].map(is_refused), [true, false]);
}
