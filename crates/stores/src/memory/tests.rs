//! Tests the memory store as a whole.

use std::sync::Arc;

use super::*;
use base::time::Micros;
use ledger::algorithm::Algorithm;
use ledger::algorithm::concurrency::Concurrency;
use ledger::algorithm::fixed_window::{FixedWindow, Window};
use ledger::algorithm::token_bucket::{Rate, TokenBucket};
use ledger::bucket_key::LimitTag;
use ledger::calendar::{Anchor, Calendar, CalendarUnit, TimeOfDay, Zone};
use ledger::cost::Cost;
use ledger::outcome::Verdict;
use smallvec::smallvec;

const SECOND: u64 = 1_000_000;

fn plan(charges: impl IntoIterator<Item = Charge>) -> Plan {
    Plan { enforced: charges.into_iter().collect(), shadow: smallvec![] }
}

fn memory(max_buckets: usize) -> (Arc<Memory>, Clock) {
    let clock = Clock::manual(Timestamp(1_000 * SECOND));
    (Memory::new(&Settings { max_buckets, ..Settings::default() }, clock.clone()), clock)
}

fn verdict(memory: &Arc<Memory>, plan: Plan) -> Verdict {
    memory.take(&plan).settlement.verdict
}

#[test]
fn a_refused_request_spends_nothing_in_any_bucket() {
    let (memory, _) = memory(4096);
    assert_eq!(
        verdict(&memory, plan([Charge::of_token_bucket(1, 5, 1), Charge::of_token_bucket(2, 1, 1)])),
        Verdict::Allow
    );
    for _ in 0..10 {
        assert_eq!(
            verdict(&memory, plan([Charge::of_token_bucket(1, 5, 1), Charge::of_token_bucket(2, 1, 1)])),
            Verdict::Deny
        );
    }
    let left = memory.take(&plan([Charge::of_token_bucket(1, 5, 1)])).settlement.enforced[0].remaining;
    assert_eq!(left, Cost::from_tokens(3));
}

#[test]
fn a_shadow_is_charged_by_itself_and_only_when_the_request_passed() {
    let (memory, _) = memory(4096);
    let both = |enforced: u64| Plan {
        enforced: smallvec![Charge::of_token_bucket(1, 3, enforced)],
        shadow: smallvec![Charge::of_token_bucket(2, 1, 1)],
    };
    let first = memory.take(&both(1)).settlement;
    let second = memory.take(&both(1)).settlement;
    let refused = memory.take(&both(2)).settlement;
    assert_eq!((first.verdict, first.shadow[0].verdict), (Verdict::Allow, Verdict::Allow));
    assert_eq!((second.verdict, second.shadow[0].verdict), (Verdict::Allow, Verdict::Deny));
    assert_eq!((refused.verdict, refused.shadow.len()), (Verdict::Deny, 0));
}

#[test]
fn a_bucket_that_is_full_again_is_freed() {
    let (memory, clock) = memory(4096);
    for bucket in 0..100 {
        verdict(&memory, plan([Charge::of_token_bucket(bucket, 200, u64::from(bucket) + 1)]));
    }
    clock.set(Timestamp(1_050 * SECOND));
    memory.sweep();
    assert_eq!(memory.buckets(), 50);
    clock.set(Timestamp(1_100 * SECOND));
    memory.sweep();
    assert_eq!(memory.buckets(), 0);
}

#[test]
fn at_the_bound_the_soonest_full_bucket_is_evicted_and_drained_ones_are_kept() {
    let (memory, _) = memory(10);
    for bucket in 0..10 {
        verdict(&memory, plan([Charge::of_token_bucket(bucket, 100, 100)]));
    }
    let mut evicted = 0;
    for bucket in 100..200 {
        evicted += memory.take(&plan([Charge::of_token_bucket(bucket, 100, 1)])).evicted;
    }
    assert_eq!((memory.buckets(), evicted), (10, 100));
    for bucket in 0..10 {
        assert_eq!(verdict(&memory, plan([Charge::of_token_bucket(bucket, 100, 1)])), Verdict::Deny, "bucket {bucket}");
    }
}

#[test]
fn a_bucket_of_which_something_is_held_is_never_evicted() {
    let (memory, _) = memory(64);
    let slots = Algorithm::Concurrency(Concurrency::new(2).unwrap());
    let held = || memory.take(&plan([Charge::new(BucketKey([7; 16]), slots, Cost::ONE)]));
    let (first, second) = (held(), held());
    for key in 0..10_000 {
        memory.take(&plan([charge_by(key, 2, Micros(SECOND))]));
    }
    assert!(memory.buckets() <= 64);
    assert_eq!(held().settlement.verdict, Verdict::Deny);
    drop(first);
    assert_eq!(held().settlement.verdict, Verdict::Allow);
    drop(second);
}

#[test]
fn what_is_held_is_shown_since_when_and_found() {
    let (memory, clock) = memory(4096);
    let slots = Concurrency::new(5).unwrap();
    let plan = plan([Charge::new(BucketKey([7; 16]), Algorithm::Concurrency(slots), Cost::ONE)]);
    let began = clock.now();
    let held = [memory.take(&plan), memory.take(&plan)];
    clock.set(clock.now().plus(Micros(60 * SECOND)));
    let (at, states) = memory.states_of(&[BucketKey([7; 16])]);
    let holders = slots.holders(states[0].as_deref(), at.now);
    let shown: Vec<_> = holders.iter().map(|holder| (holder.owner, holder.held.whole(), holder.since)).collect();
    assert_eq!(shown, [(PROCESS, 2, began)]);
    assert_eq!(memory.keys().flatten().collect::<Vec<_>>(), [BucketKey([7; 16])]);
    drop(held);
    assert_eq!(memory.states_of(&[BucketKey([7; 16])]).1, [None]);
    assert_eq!(memory.keys().flatten().count(), 0);
}

/// A charge of one token. Each `key` has its own bucket, and each `window` is another limit.
fn charge_by(key: u64, burst: u64, window: Micros) -> Charge {
    let rate = Rate { amount: Cost::from_tokens(burst), period: window };
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&key.to_le_bytes());
    bytes[8..].copy_from_slice(&window.0.to_le_bytes());
    Charge {
        key: BucketKey(bytes),
        algorithm: Algorithm::TokenBucket(TokenBucket::new(rate, burst).unwrap()),
        tag: LimitTag(u32::from(window == DAY)),
        purpose: ledger::charge::ChargePurpose::Spend,
        ..Charge::of_token_bucket(0, 1, 1)
    }
}

const DAY: Micros = Micros(86_400 * SECOND);

/// Checks a flood of requests, each with a key and a new account. After it, one key asks for three times its burst at
/// once.
#[track_caller]
fn check_flood(max_buckets: usize, accounts: u64, burst: u64, quota: u64) {
    const AFTERWARDS: u64 = 5_000;
    let (memory, clock) = memory(max_buckets);
    let ceiling = Micros(burst * SECOND);
    let request = |key: u64, account: u64| {
        verdict(&memory, plan([charge_by(key, burst, ceiling), charge_by(account, quota, DAY)]))
    };
    for account in 0..accounts {
        clock.set(Timestamp(1_000 * SECOND + account * 1_000));
        request(account, account);
    }
    let victim = u64::MAX;
    let passed = (0..3 * burst).filter(|number| request(victim, accounts + number) == Verdict::Allow).count();
    assert_eq!(passed as u64, burst, "of three times the burst, with {quota} per day");
    assert!(memory.buckets() <= max_buckets);
    // A flood of other keys between two requests does not refill the bucket.
    for account in 2 * accounts..2 * accounts + AFTERWARDS {
        request(account, account);
    }
    assert_eq!(request(victim, victim), Verdict::Deny, "{burst} at once, {quota} per day");
}

#[test]
fn a_flood_under_a_slow_limit_does_not_switch_a_fast_one_off() {
    for burst in [5, 10, 100] {
        for quota in [1, 2, 5, 10, 20] {
            check_flood(2_000, 4_500, burst, quota);
        }
    }
}

#[test]
fn a_flood_among_a_hundred_thousand_buckets_does_not_switch_a_limit_off() {
    for (burst, quota) in [(5, 20), (5, 1), (100, 2), (10, 5)] {
        check_flood(100_000, 101_000, burst, quota);
    }
}

/// Only `scripts/prove eviction` runs the long form of this test.
#[test]
fn a_flood_among_three_hundred_thousand_buckets_or_a_million_does_not_switch_a_limit_off() {
    let is_long = std::env::var("TOLLGATE_PROOF").is_ok_and(|form| form == "long");
    let buckets = if is_long { 1_000_000 } else { 300_000 };
    check_flood(buckets, u64::try_from(buckets).unwrap() + 1_000, 5, 1);
}

#[test]
fn a_flood_under_one_variant_of_a_limit_does_not_switch_another_off() {
    let (memory, _) = memory(2_000);
    let of = |variant: u32, charge: Charge| Charge { variant, tag: LimitTag(7).of_variant(variant), ..charge };
    for account in 0..4_500 {
        verdict(&memory, plan([of(0, charge_by(account, 1, DAY))]));
    }
    let paying = || verdict(&memory, plan([of(1, charge_by(u64::MAX, 100, Micros(SECOND)))]));
    assert_eq!((0..300).filter(|_| paying() == Verdict::Allow).count(), 100);
}

/// 700 clients use their one request per day. Then 300 keys are charged `costs[0]` tokens each under the limit `other`,
/// and 200 more keys `costs[1]` tokens. All 700 clients must still be refused.
#[track_caller]
fn check_drained_are_kept(other: impl Fn(u64) -> Charge, costs: [u64; 2]) {
    let (memory, _) = memory(1_000);
    let daily = |key| verdict(&memory, plan([charge_by(key, 1, DAY)]));
    assert!((0..700).all(|key| daily(key) == Verdict::Allow));
    for (keys, cost) in [(1_000..1_300, costs[0]), (1_300..1_500, costs[1])] {
        for key in keys {
            verdict(&memory, plan([Charge { cost: Cost::from_tokens(cost), ..other(key) }]));
        }
    }
    assert_eq!((0..700).filter(|key| daily(*key) == Verdict::Allow).count(), 0, "{costs:?}");
}

#[test]
fn new_keys_under_a_smaller_limit_evict_no_drained_bucket_of_a_larger_one() {
    let other = |key| Charge { tag: LimitTag(9), ..charge_by(key, 1_000, DAY) };
    check_drained_are_kept(other, [1, 1]);
    check_drained_are_kept(other, [1_000, 1]);
    check_drained_are_kept(other, [1_000, 499]);
}

#[test]
fn new_keys_with_overrides_evict_no_drained_bucket_of_their_limit() {
    let overridden = |key: u64| {
        let (variant, charge) = (u32::try_from(key).unwrap(), charge_by(key, 1_000, DAY));
        Charge { variant, tag: charge.tag.of_variant(variant), ..charge }
    };
    check_drained_are_kept(overridden, [1, 1]);
    check_drained_are_kept(overridden, [1_000, 1]);
}

#[test]
fn a_ceiling_for_everybody_is_remembered_in_a_flood() {
    let (memory, _) = memory(2_000);
    let ceiling = || verdict(&memory, plan([charge_by(u64::MAX, 100, Micros(100 * SECOND))]));
    assert_eq!(ceiling(), Verdict::Allow);
    let mut passed = 1;
    for account in 0..9_000 {
        verdict(&memory, plan([charge_by(account, 1, DAY)]));
        if account % 40 == 0 && ceiling() == Verdict::Allow {
            passed += 1;
        }
    }
    assert_eq!(passed, 100);
}

#[test]
fn a_day_ends_when_the_machines_clock_is_set_forward_and_does_not_begin_again_when_it_is_set_back() {
    let clock = Clock::system();
    let Clock::System { ahead, .. } = &clock else { panic!("{clock:?}") };
    let memory = Memory::new(&Settings { max_buckets: 4096, ..Settings::default() }, clock.clone());
    let zone = Zone::parse("UTC").unwrap();
    let day = Calendar::new(Anchor::default_of(CalendarUnit::Day), TimeOfDay::default(), zone);
    let of = |algorithm: Algorithm| Charge { algorithm, ..charge_by(u64::from(algorithm.zone().is_some()), 1, DAY) };
    let daily = of(Algorithm::FixedWindow(FixedWindow::new(1, Window::Calendar(day)).unwrap()));
    let refilled = of(charge_by(0, 1, DAY).algorithm);
    let take = |charge: &Charge| memory.take(&plan([charge.clone()]));
    let set = |seconds: i64| ahead.store(seconds * 1_000_000, Ordering::Relaxed);
    let is_granted = |charge: &Charge| take(charge).settlement.is_granted();
    // The test begins an hour after midnight, so that the day does not end during the test.
    let midnight = i64::try_from(day.around(clock.now()).begin.0 / SECOND).unwrap();
    let since = i64::try_from(clock.now().0 / SECOND).unwrap() - midnight;
    let begin = 86_400 + 3_600 - since;
    set(begin);
    assert!(is_granted(&daily) && is_granted(&refilled));
    assert!(!is_granted(&daily));
    // Twelve hours later it is the same day.
    set(begin + 12 * 3_600);
    let reply = take(&daily);
    let left = reply.settlement.enforced[0].retry_after;
    assert!(!reply.settlement.is_granted() && left <= Micros(11 * 3_600 * SECOND), "{left:?}");
    // The wait of the client ends exactly when the day ends.
    assert_eq!(reply.now.plus(left).0 % DAY.0, 0);
    set(begin + 24 * 3_600);
    assert!(is_granted(&daily) && !is_granted(&daily));
    for back in [23, 24, 48, 24 * 365] {
        set(begin - back * 3_600);
        assert!(!is_granted(&daily), "{back} hours back");
    }
    assert!(!is_granted(&refilled), "only time refills a token bucket");
}

/// docs/algorithms.md documents this number of tokens, under "When numbers change".
#[test]
fn a_bucket_is_forgotten_when_the_faster_numbers_that_charged_it_have_refilled_it() {
    let (memory, clock) = memory(4096);
    let ten_at = |seconds: u64, cost: u64| {
        let algorithm = charge_by(0, 10, Micros(seconds * SECOND)).algorithm;
        plan([Charge { algorithm, cost: Cost::from_tokens(cost), ..charge_by(0, 10, DAY) }])
    };
    assert_eq!(verdict(&memory, ten_at(10, 8)), Verdict::Allow);
    clock.set(Timestamp(1_000 * SECOND + 8 * SECOND - 1));
    memory.sweep();
    // At a tenth of the rate, not even one of the eight tokens has come back.
    let slower = memory.take(&ten_at(100, 3)).settlement;
    assert_eq!((slower.verdict, slower.enforced[0].remaining.whole()), (Verdict::Deny, 2));
    clock.set(Timestamp(1_000 * SECOND + 8 * SECOND));
    memory.sweep();
    // The bucket forgets that 8 × (1 − 1 ÷ 10) tokens were spent, so it holds 10 tokens in place of 2.8.
    assert_eq!(verdict(&memory, ten_at(100, 10)), Verdict::Allow);
    assert_eq!(verdict(&memory, ten_at(100, 1)), Verdict::Deny);
}

#[test]
fn callers_on_many_threads_never_get_more_than_the_burst_between_them() {
    let (memory, _) = memory(1_000_000);
    // The callers list the same buckets in opposite orders. Locks taken in these orders would deadlock.
    let orders = [[1, 2, 3], [3, 2, 1]];
    let granted = std::thread::scope(|scope| {
        let memory = &memory;
        let caller = |order: [u8; 3]| {
            scope.spawn(move || {
                let plan = plan(order.map(|bucket| Charge::of_token_bucket(bucket, 1000, 1)));
                (0..1000).filter(|_| verdict(memory, plan.clone()) == Verdict::Allow).count()
            })
        };
        let callers: Vec<_> = (0..8).map(|caller_number| caller(orders[caller_number % 2])).collect();
        callers.into_iter().map(|caller| caller.join().unwrap()).sum::<usize>()
    });
    assert_eq!(granted, 1000);
}
