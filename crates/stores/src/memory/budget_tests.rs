//! Tests budgets in memory.

use proptest::prelude::*;
use smallvec::smallvec;

use super::*;
use base::time::Micros;
use ledger::algorithm::AlgorithmKind;
use ledger::algorithm::budget::Budget;
use ledger::algorithm::fixed_window::{FixedWindow, Window};
use ledger::algorithm::token_bucket::{Rate, TokenBucket};
use ledger::outcome::Verdict;

const SECOND: u64 = 1_000_000;
const HOUR: u64 = 3_600 * SECOND;
const BUCKET: BucketKey = BucketKey([1; 16]);

/// A window of an hour. The test begins at the start of an hour.
fn hourly(limit: u64) -> Budget {
    Budget::of_fixed_window(FixedWindow::new(limit, Window::Epoch(Micros(HOUR))).unwrap())
}

/// A token bucket that refills with one token per second.
fn by_second(burst: u64) -> Budget {
    let rate = Rate { amount: Cost::ONE, period: Micros(SECOND) };
    Budget::of_token_bucket(TokenBucket::new(rate, burst).unwrap())
}

fn memory(max_buckets: usize) -> (Arc<Memory>, Clock) {
    let clock = Clock::manual(Timestamp(1_000 * HOUR));
    (Memory::new(&Settings { max_buckets, ..Settings::default() }, clock.clone()), clock)
}

fn plan(key: BucketKey, budget: Budget, reserve: u64) -> Plan {
    let charge = Charge::new(key, Algorithm::Budget(budget), Cost::from_tokens(reserve));
    Plan { enforced: smallvec![charge], shadow: smallvec![] }
}

/// Takes a reservation. Returns the verdict of the bucket, and what is left of it.
fn take(memory: &Arc<Memory>, budget: Budget, reserve: u64) -> (Reservation, Verdict, u64) {
    let TakeReply { settlement, reservation, .. } = memory.take(&plan(BUCKET, budget, reserve));
    (reservation, settlement.enforced[0].verdict, settlement.enforced[0].remaining.whole())
}

fn settle(mut reservation: Reservation, cost: u64) {
    reservation.settle(&BUCKET, Cost::from_tokens(cost));
}

/// Returns what is spent and what is held of the bucket.
fn books(memory: &Memory, budget: Budget) -> (u64, u64) {
    let (time, states) = memory.states_of(&[BUCKET]);
    let now = time.of(&Algorithm::Budget(budget));
    (budget.spent(states[0].as_deref(), now).whole(), budget.held(states[0].as_deref(), now).whole())
}

#[test]
fn what_is_held_refuses_otherwise_than_what_is_spent() {
    for budget in [hourly(10), by_second(10)] {
        let (memory, _) = memory(1_000);
        let (first, verdict, left) = take(&memory, budget, 4);
        assert_eq!((verdict, left), (Verdict::Allow, 6));
        let (second, verdict, left) = take(&memory, budget, 4);
        assert_eq!((verdict, left), (Verdict::Allow, 2));
        assert_eq!(take(&memory, budget, 4).1, Verdict::Held);
        assert_eq!(take(&memory, budget, 11).1, Verdict::Never);
        settle(first, 1);
        assert_eq!(books(&memory, budget), (1, 4));
        settle(second, 7);
        assert_eq!(books(&memory, budget), (8, 0));
        assert_eq!(take(&memory, budget, 3).1, Verdict::Deny);
        assert_eq!(take(&memory, budget, 2).1, Verdict::Allow);
    }
}

#[test]
fn a_reservation_that_is_dropped_has_spent_nothing() {
    let (memory, _) = memory(1_000);
    let (reservation, ..) = take(&memory, hourly(10), 9);
    assert_eq!(books(&memory, hourly(10)), (0, 9));
    drop(reservation);
    assert_eq!((books(&memory, hourly(10)), memory.buckets()), ((0, 0), 0));
    settle(take(&memory, hourly(10), 9).0, 0);
    assert_eq!((books(&memory, hourly(10)), memory.buckets()), ((0, 0), 0));
}

#[test]
fn a_debt_refuses_until_it_is_refilled_or_the_period_ends() {
    let (memory, clock) = memory(1_000);
    let begin = clock.now();
    settle(take(&memory, hourly(10), 1).0, 15);
    assert_eq!(take(&memory, hourly(10), 0).1, Verdict::Deny);
    clock.set(begin.plus(Micros(HOUR)));
    assert_eq!(take(&memory, hourly(10), 10).1, Verdict::Allow);

    let (memory, clock) = self::memory(1_000);
    let begin = clock.now();
    settle(take(&memory, by_second(10), 1).0, 15);
    clock.set(begin.plus(Micros(6 * SECOND - 1)));
    memory.sweep();
    assert_eq!(take(&memory, by_second(10), 1).1, Verdict::Deny);
    clock.set(begin.plus(Micros(6 * SECOND)));
    assert_eq!(take(&memory, by_second(10), 1).1, Verdict::Allow);
}

#[test]
fn a_cost_counts_in_the_period_in_which_it_is_settled_and_a_hold_in_every_period() {
    let (memory, clock) = memory(1_000);
    let begin = clock.now();
    let (long, ..) = take(&memory, hourly(10), 6);
    clock.set(begin.plus(Micros(HOUR)));
    memory.sweep();
    assert_eq!(take(&memory, hourly(10), 5).1, Verdict::Held);
    settle(long, 3);
    assert_eq!(books(&memory, hourly(10)), (3, 0));
    clock.set(begin.plus(Micros(2 * HOUR)));
    assert_eq!(books(&memory, hourly(10)), (0, 0));
}

#[test]
fn reset_and_grant_change_what_is_spent_and_never_what_is_held() {
    for (budget, kind) in [(hourly(10), AlgorithmKind::WindowBudget), (by_second(10), AlgorithmKind::TokenBudget)] {
        let (memory, _) = memory(1_000);
        settle(take(&memory, budget, 1).0, 5);
        let (running, ..) = take(&memory, budget, 4);
        assert_eq!(memory.keys().flatten().collect::<Vec<_>>(), [BUCKET]);
        let (_, given) = memory.give_back(&[(BUCKET, kind)], Cost::from_tokens(2));
        let now = memory.time().of(&Algorithm::Budget(budget));
        let of = |state: &Option<_>| {
            let state: Option<&ledger::algorithm::State> = state.as_ref();
            (budget.spent(state.map(AsRef::as_ref), now).whole(), budget.held(state.map(AsRef::as_ref), now).whole())
        };
        assert_eq!((of(&given[0].before), of(&given[0].after)), ((5, 4), (3, 4)));
        assert_eq!(books(&memory, budget), (3, 4));
        let (_, before) = memory.remove(&[BUCKET]);
        assert_eq!(of(&before[0]), (3, 4));
        assert_eq!((books(&memory, budget), memory.buckets()), ((0, 4), 0));
        settle(running, 6);
        assert_eq!(books(&memory, budget), (6, 0));
    }
}

#[test]
fn a_flood_of_other_buckets_evicts_no_hold_and_evictions_by_a_settled_cost_are_counted() {
    let (memory, _) = memory(8);
    let (running, ..) = take(&memory, hourly(10), 7);
    let mut evicted = 0;
    for key in 2..30 {
        let TakeReply { mut reservation, evicted: by_take, .. } =
            memory.take(&plan(BucketKey([key; 16]), hourly(10), 1));
        reservation.settle(&BucketKey([key; 16]), Cost::ONE);
        evicted += by_take;
    }
    let refused = memory.take(&plan(BUCKET, hourly(10), 4));
    assert_eq!((refused.settlement.enforced[0].verdict, memory.buckets()), (Verdict::Held, 8));
    assert_eq!(evicted + refused.evicted, 20);
    settle(running, 7);
    assert_eq!(books(&memory, hourly(10)), (7, 0));
}

/// Sends the amounts of one process to the next.
fn tell(previous: &Memory, next: &Memory) {
    let mut message = Vec::new();
    slot_stream::write(&previous.held_amounts(), &mut message).unwrap();
    let held = slot_stream::read(&*message).unwrap();
    previous.mark_sent(&held);
    next.count_held_elsewhere(&held);
}

#[test]
fn costs_that_are_settled_after_a_hand_over_are_charged_by_the_next_process_once() {
    for budget in [hourly(100), by_second(100)] {
        let ((first, _), (second, _), (third, _)) = (memory(1_000), memory(1_000), memory(1_000));
        let requests: Vec<Reservation> = (0..4).map(|_| take(&first, budget, 10).0).collect();
        let [one, two, three, four] = <[Reservation; 4]>::try_from(requests).unwrap();
        settle(one, 1);
        first.hand_over();
        settle(two, 2);
        let mut stream = Vec::new();
        first.write_buckets(&mut stream).unwrap();
        assert_eq!(second.read_buckets(&*stream).unwrap(), 1);
        tell(&first, &second);
        // 3 are spent, 20 are held by the previous process. Of the 3, no request has charged 2 yet, so they count as held.
        assert_eq!(books(&second, budget), (1, 22));
        assert_eq!(take(&second, budget, 78).1, Verdict::Held);
        assert_eq!((take(&second, budget, 98).1, books(&second, budget).0), (Verdict::Deny, 3));
        settle(three, 30);
        assert!(first.has_unsent_costs());
        tell(&first, &second);
        tell(&first, &second);
        assert!(!first.has_unsent_costs());
        // What was settled is held until a request charges it.
        assert_eq!(books(&second, budget), (3, 30 + 10));
        // The second process hands over before it has charged the costs of the first.
        second.hand_over();
        let mut stream = Vec::new();
        second.write_buckets(&mut stream).unwrap();
        assert_eq!(third.read_buckets(&*stream).unwrap(), 1);
        tell(&second, &third);
        settle(four, 4);
        tell(&first, &second);
        tell(&second, &third);
        assert_eq!((take(&third, budget, 1).1, books(&third, budget).0), (Verdict::Allow, 37));
        assert!(!second.has_unsent_costs());
    }
}

#[test]
fn a_reset_forgets_what_was_spent_and_not_what_is_held() {
    for budget in [hourly(10), by_second(10)].map(Budget::with_resets) {
        let (memory, _) = memory(1_000);
        let requests: Vec<Reservation> = (0..4).map(|_| take(&memory, budget, 2).0).collect();
        let [one, mut two, three, four] = <[Reservation; 4]>::try_from(requests).unwrap();
        settle(one, 6);
        assert_eq!(take(&memory, budget, 5).1, Verdict::Deny);
        two.reset(&BUCKET, Cost::ONE);
        assert_eq!(books(&memory, budget), (1, 4));
        settle(three, 3);
        assert_eq!(books(&memory, budget), (4, 2));
        drop(four);
        assert_eq!(take(&memory, budget, 6).1, Verdict::Allow);
    }
}

#[test]
fn resets_after_a_hand_over_reach_the_next_process_once_and_in_order() {
    for budget in [hourly(100), by_second(100)].map(Budget::with_resets) {
        let ((first, _), (second, _)) = (memory(1_000), memory(1_000));
        let requests: Vec<Reservation> = (0..5).map(|_| take(&first, budget, 1).0).collect();
        let [one, two, mut three, four, mut five] = <[Reservation; 5]>::try_from(requests).unwrap();
        settle(one, 9);
        first.hand_over();
        let mut stream = Vec::new();
        first.write_buckets(&mut stream).unwrap();
        assert_eq!(second.read_buckets(&*stream).unwrap(), 1);
        settle(two, 8);
        three.reset(&BUCKET, Cost::ONE);
        settle(four, 3);
        tell(&first, &second);
        tell(&first, &second);
        let spent = |memory: &Arc<Memory>| {
            drop(take(memory, budget, 0));
            books(memory, budget).0
        };
        assert_eq!(spent(&second), 4, "17 are forgotten");
        let (own, ..) = take(&second, budget, 1);
        settle(own, 20);
        assert_eq!(spent(&second), 24);
        assert!(!first.has_unsent_costs());
        five.reset(&BUCKET, Cost::default());
        assert!(first.has_unsent_costs());
        tell(&first, &second);
        assert_eq!(spent(&second), 0);
        // A hand-over that fails.
        let (mut own, ..) = take(&second, budget, 1);
        settle(take(&second, budget, 1).0, 5);
        second.hand_over();
        own.reset(&BUCKET, Cost::ONE);
        second.resume();
        assert_eq!(spent(&second), 1);
    }
}

#[test]
fn a_hand_over_that_fails_loses_no_cost() {
    let (memory, _) = memory(1_000);
    let (request, ..) = take(&memory, hourly(10), 1);
    memory.hand_over();
    settle(request, 7);
    memory.resume();
    assert_eq!(take(&memory, hourly(10), 4).1, Verdict::Deny);
    assert_eq!(books(&memory, hourly(10)), (7, 0));
}

#[test]
fn callers_on_many_threads_spend_what_they_settle() {
    let (memory, _) = memory(1_000);
    let budget = hourly(1_000_000);
    let spent: u64 = std::thread::scope(|scope| {
        let caller = |number: u64| {
            let memory = &memory;
            scope.spawn(move || {
                let mut spent = 0;
                for turn in 0..2_000 {
                    let (reservation, verdict, _) = take(memory, budget, 10);
                    assert_eq!(verdict, Verdict::Allow);
                    match (number + turn) % 3 {
                        0 => drop(reservation),
                        cost => {
                            settle(reservation, cost * 9);
                            spent += cost * 9;
                        }
                    }
                }
                spent
            })
        };
        let callers: Vec<_> = (0..8).map(caller).collect();
        callers.into_iter().map(|caller| caller.join().unwrap()).sum()
    });
    assert_eq!(books(&memory, budget), (spent, 0));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(500) })]

    /// Compares a budget with two numbers: the spent and the held amount.
    #[test]
    fn a_window_agrees_with_two_numbers(acts in prop::collection::vec((0u8..4, 0u64..8, 0usize..8), 1..60)) {
        let ((memory, clock), budget) = (memory(1_000), hourly(12));
        let (mut spent, mut running): (u64, Vec<(Reservation, u64)>) = (0, Vec::new());
        for (act, amount, which) in acts {
            match act {
                0 | 1 => {
                    let held: u64 = running.iter().map(|(_, amount)| amount).sum();
                    let (reservation, verdict, _) = take(&memory, budget, amount);
                    let needed = |before: u64| before * 1000 + (amount * 1000).max(1) <= 12_000;
                    let expected = match (needed(spent), needed(spent + held)) {
                        (false, _) => Verdict::Deny,
                        (true, false) => Verdict::Held,
                        (true, true) => Verdict::Allow,
                    };
                    prop_assert_eq!(verdict, expected);
                    if verdict == Verdict::Allow {
                        running.push((reservation, amount));
                    }
                }
                2 if !running.is_empty() => {
                    let (reservation, _) = running.swap_remove(which % running.len());
                    settle(reservation, amount);
                    spent += amount;
                }
                3 if which == 0 => {
                    clock.set(clock.now().plus(Micros(HOUR)));
                    spent = 0;
                }
                _ => {}
            }
            let held = running.iter().map(|(_, amount)| amount).sum();
            prop_assert_eq!(books(&memory, budget), (spent, held));
        }
    }
}
