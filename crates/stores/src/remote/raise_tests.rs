//! Tests what a gateway knows of raises without a call.

use std::sync::Arc;

use super::deny_cache::DenyCache;
use crate::fallback::FallbackShare;
use crate::memory::no_slots::NoSlots;
use base::time::{Clock, Micros, Timestamp};
use ledger::algorithm::fixed_window::{FixedWindow, Window};
use ledger::algorithm::raise::{Raise, RaiseId};
use ledger::algorithm::{Algorithm, ChargeResult, State};
use ledger::bucket_key::BucketKey;
use ledger::charge::{Charge, Plan};
use ledger::cost::Cost;
use ledger::outcome::Verdict;

const SECOND: u64 = 1_000_000;
/// The time on the store's clock, and on ours.
const THERE: Timestamp = Timestamp(77_000 * SECOND);
const HERE: Timestamp = Timestamp(1_000 * SECOND);
const KEY: BucketKey = BucketKey([1; 16]);

fn window() -> Algorithm {
    Algorithm::FixedWindow(FixedWindow::new(10, Window::FirstRequest(Micros(100 * SECOND))).unwrap())
}

fn plan(cost: u64) -> Plan {
    let mut plan = Plan::default();
    plan.enforce(Charge::new(KEY, window(), Cost::from_tokens(cost)));
    plan
}

/// Returns the state of a bucket that is raised by 5 for half a second, after this much was spent.
fn raised(spent: u64) -> State {
    let raise = Raise { id: RaiseId(1), amount: Cost::from_tokens(5), end: THERE.plus(Micros(SECOND / 2)) };
    let state = window().set_raise(None, raise, THERE).unwrap().unwrap().state;
    match window().step(Some(&state), Cost::from_tokens(spent), THERE).charge {
        ChargeResult::Fits { entry, .. } => entry.state,
        refused => panic!("{refused:?}"),
    }
}

#[test]
fn a_raise_counts_without_a_call_and_does_not_end_there_before_it_ends_in_the_store() {
    let cache = DenyCache::new();
    cache.remember(KEY, raised(13), THERE, cache.stamp(HERE));
    // 2 are left of the raised limit.
    assert!(cache.refuse(&plan(2), HERE).is_none());
    let (_, refused) = cache.refuse(&plan(3), HERE).unwrap();
    let outcome = refused.enforced[0];
    assert_eq!((outcome.verdict, outcome.remaining.whole(), outcome.raised.whole()), (Verdict::Deny, 2, 5));
    // By our clock the raise has ended. The store's clock may be behind it, so the store is asked.
    assert!(cache.refuse(&plan(2), HERE.plus(Micros(9 * SECOND / 10))).is_none());
}

#[test]
fn without_the_store_a_share_has_no_raise_but_what_is_left_under_it() {
    let clock = Clock::manual(HERE);
    let fallback = FallbackShare::new(1, clock.clone(), Arc::default());
    fallback.observe(KEY, raised(13), THERE, Micros(100 * SECOND), HERE);
    let taken = |cost| fallback.take(&plan(cost), &NoSlots).settlement;
    assert_eq!((taken(3).is_granted(), taken(2).is_granted()), (false, true));
    // After its end, nothing is left of the file's limit.
    let fallback = FallbackShare::new(1, clock.clone(), Arc::default());
    fallback.observe(KEY, raised(13), THERE, Micros(100 * SECOND), HERE);
    clock.set(HERE.plus(Micros(SECOND)));
    assert!(!fallback.take(&plan(1), &NoSlots).settlement.is_granted());
}
