//! Tests timed holds against the states of their buckets.

use super::report::{LIFE, MOST_TIMED_HOLDS, Owner, Report, SettledSums, TimedHoldStatus};
use super::timed_hold::{TimedHold, TimedHoldCost};
use crate::algorithm::ban::Ban;
use crate::algorithm::budget::{Budget, EVERYTHING};
use crate::algorithm::concurrency::Concurrency;
use crate::algorithm::fixed_window::{FixedWindow, Window};
use crate::algorithm::token_bucket::{Rate, TokenBucket};
use crate::algorithm::{Algorithm, ChargeResult, State};
use crate::bucket_key::BucketKey;
use crate::charge::{Charge, Plan};
use crate::cost::Cost;
use base::time::{Micros, Timestamp};
use proptest::prelude::*;

const NOW: Timestamp = Timestamp(1_763_672_400_000_000);
const SECOND: u64 = 1_000_000;
const KEY: BucketKey = BucketKey([7; 16]);

fn after(seconds: u64) -> Timestamp {
    NOW.plus(Micros(seconds * SECOND))
}

fn slots(limit: u64) -> Algorithm {
    Algorithm::Concurrency(Concurrency::new(limit).unwrap())
}

/// A window of an hour, which begins at `NOW`.
fn hour(limit: u64) -> Algorithm {
    let window = FixedWindow::new(limit, Window::Epoch(Micros(3600 * SECOND))).unwrap();
    Algorithm::Budget(Budget::of_fixed_window(window))
}

/// A token bucket that is refilled with one token per second.
fn second(burst: u64) -> Algorithm {
    let rate = Rate { amount: Cost::ONE, period: Micros(SECOND) };
    Algorithm::Budget(Budget::of_token_bucket(TokenBucket::new(rate, burst).unwrap()))
}

/// A bucket whose state is kept as a store keeps it.
struct Bucket {
    limit: Algorithm,
    state: Option<State>,
    kept_until: Timestamp,
}

impl Bucket {
    fn of(limit: Algorithm) -> Bucket {
        Bucket { limit, state: None, kept_until: NOW }
    }

    /// Takes for a timed hold of 30 seconds.
    fn take(&mut self, number: u64, amount: u64, now: Timestamp) -> bool {
        self.take_for(30, number, amount, now)
    }

    fn take_for(&mut self, seconds: u64, number: u64, amount: u64, now: Timestamp) -> bool {
        let hold = TimedHold { owner: owner(number), life: Micros(seconds * SECOND) };
        let mut plan = Plan::default();
        plan.enforce(Charge::new(KEY, self.limit, Cost::from_tokens(amount)));
        let call = hold.take(&plan);
        let report = call.report(&call.reports[0]);
        let Some(entry) = self.limit.accept(self.state.as_deref(), report, now) else { return false };
        let ChargeResult::Fits { entry, .. } =
            self.limit.step(Some(&entry.state), Cost::from_tokens(amount), now).charge
        else {
            return false;
        };
        (self.state, self.kept_until) = (Some(entry.state), entry.kept_until);
        true
    }

    fn settle(&mut self, number: u64, cost: u64, now: Timestamp) -> bool {
        let cost = TimedHoldCost { bucket: KEY, limit: self.limit, cost: Cost::from_tokens(cost) };
        let call = TimedHold::settle(owner(number), &[cost]);
        let entry = self.limit.accept(self.state.as_deref(), call.report(&call.reports[0]), now);
        let is_accepted = entry.is_some();
        self.state = entry.map(|entry| entry.state).or(self.state.take());
        is_accepted
    }

    fn has_settled(&self, number: u64, now: Timestamp) -> bool {
        self.status(number, now) == TimedHoldStatus::Settled
    }

    fn status(&self, number: u64, now: Timestamp) -> TimedHoldStatus {
        self.limit.timed_hold(self.state.as_deref(), owner(number), now)
    }

    /// Reports for a thread of a gateway that holds this amount.
    fn report(&mut self, thread: u64, sequence: u64, held: u64, now: Timestamp) -> bool {
        let (held, settled) = (Cost::from_tokens(held), SettledSums::default());
        let report = Report { owner: Owner(thread), sequence, held, settled, life: LIFE };
        let entry = self.limit.accept(self.state.as_deref(), report, now);
        let is_accepted = entry.is_some();
        self.state = entry.map(|entry| entry.state).or(self.state.take());
        is_accepted
    }

    fn spent_and_held(&self, now: Timestamp) -> (u64, u64) {
        let state = self.state.as_deref();
        match self.limit {
            Algorithm::Concurrency(_) => (0, self.limit.spent(state, now).whole()),
            _ => (self.limit.spent(state, now).whole(), self.limit.held(state, now).whole()),
        }
    }
}

fn window(limit: u64, window: Window) -> Algorithm {
    Algorithm::Budget(Budget::of_fixed_window(FixedWindow::new(limit, window).unwrap()))
}

/// A window that begins with a grant.
fn from_first(limit: u64, seconds: u64) -> Algorithm {
    window(limit, Window::FirstRequest(Micros(seconds * SECOND)))
}

fn owner(number: u64) -> Owner {
    Owner::of_timed_hold(number << 16)
}

#[test]
fn a_hold_settles_once_and_a_repeated_call_changes_nothing() {
    for (limit, settled) in [(hour(10), (3, 2)), (slots(10), (0, 2))] {
        let mut bucket = Bucket::of(limit);
        assert!(bucket.take(1, 6, NOW) && bucket.take(2, 2, after(1)));
        assert_eq!(bucket.spent_and_held(after(2)), (0, 8));
        assert!(!bucket.take(3, 3, after(2)));
        assert!(!bucket.take(1, 1, after(2)), "an owner takes once");
        assert!(bucket.settle(1, 3, after(20)) && bucket.has_settled(1, after(20)));
        assert_eq!(bucket.spent_and_held(after(20)), settled);
        for later in [20, 25, 300] {
            assert!(!bucket.settle(1, 3, after(later)) && bucket.has_settled(1, after(later)), "{later}");
        }
        // An unknown hold, and one that has ended.
        assert!(!bucket.settle(9, 1, after(20)) && !bucket.has_settled(9, after(20)));
        assert!(!bucket.settle(2, 1, after(31)) && !bucket.has_settled(2, after(31)));
    }
}

#[test]
fn what_a_hold_held_of_a_budget_is_spent_at_its_end_and_a_slot_is_free() {
    let mut bucket = Bucket::of(slots(2));
    assert!(bucket.take(1, 2, NOW) && !bucket.take(2, 1, after(29)) && bucket.take(2, 1, after(30)));
    let mut bucket = Bucket::of(hour(10));
    assert!(bucket.take(1, 6, NOW));
    assert_eq!(bucket.spent_and_held(after(29)), (0, 6));
    assert_eq!(bucket.spent_and_held(after(30)), (6, 0));
    // The end is written with the next take, and counts once.
    assert!(bucket.take(2, 4, after(40)));
    assert_eq!(bucket.spent_and_held(after(50)), (6, 4));
    assert_eq!(bucket.spent_and_held(after(71)), (10, 0));
    // It counts in the period in which it ends.
    assert_eq!(bucket.spent_and_held(after(3600)), (0, 0));
    let mut late = Bucket::of(hour(10));
    assert!(late.take(1, 6, after(3590)));
    assert_eq!((late.spent_and_held(after(3610)), late.spent_and_held(after(3620))), ((0, 6), (6, 0)));
    assert_eq!(late.spent_and_held(after(7200)), (0, 0));
    // A token bucket is refilled from the end of the hold on.
    let mut bucket = Bucket::of(second(10));
    assert!(bucket.take(1, 6, NOW));
    let spent = [30, 31, 33, 40].map(|seconds| bucket.spent_and_held(after(seconds)));
    assert_eq!(spent, [(6, 0), (5, 0), (3, 0), (0, 0)]);
    assert!(bucket.kept_until >= after(30 + 60));
}

#[test]
fn threads_and_holds_end_each_at_their_time() {
    for limit in [hour(100), slots(100)] {
        let mut bucket = Bucket::of(limit);
        assert!(bucket.report(1, 1, 5, NOW));
        assert!(bucket.take(1, 10, NOW));
        assert!(bucket.report(2, 1, 20, after(3)));
        assert!(bucket.take(2, 40, after(4)));
        assert_eq!(bucket.spent_and_held(after(4)).1, 75);
        // The first thread has not reported for 7 seconds, and then the second.
        assert_eq!(bucket.spent_and_held(after(7)).1, 70);
        assert_eq!(bucket.spent_and_held(after(10)).1, 50);
        assert_eq!(bucket.spent_and_held(after(30)).1, 40);
        // What is written in between changes nothing.
        assert!(bucket.report(3, 1, 0, after(11)));
        assert!(!bucket.report(1, 1, 5, after(12)), "the last sequence of an ended owner is known");
        assert_eq!(bucket.spent_and_held(after(12)).1, 50);
        assert_eq!(bucket.spent_and_held(after(34)).1, 0);
        assert!(bucket.kept_until > after(34));
    }
}

#[test]
fn a_bucket_keeps_room_for_threads() {
    let mut bucket = Bucket::of(slots(10_000));
    let taken = (0..MOST_TIMED_HOLDS as u64 + 9).filter(|number| bucket.take(*number, 1, NOW)).count();
    assert_eq!(taken, MOST_TIMED_HOLDS);
    assert!(bucket.report(1, 1, 1, NOW));
    assert!(bucket.settle(3, 0, NOW) && bucket.take(5_000, 1, NOW) && !bucket.take(5_001, 1, NOW));
}

#[test]
fn an_owner_that_is_removed_leaves_what_others_hold() {
    for limit in [hour(10), slots(10)] {
        let mut bucket = Bucket::of(limit);
        assert!(bucket.take(1, 6, NOW) && bucket.take(2, 3, NOW));
        let entry = limit.without_owner(bucket.state.as_deref(), owner(2), NOW).unwrap();
        bucket.state = Some(entry.state);
        assert_eq!(bucket.spent_and_held(NOW), (0, 6));
        assert!(!bucket.settle(2, 1, NOW));
    }
}

#[test]
fn holds_that_end_before_the_bucket_is_read_are_spent_in_the_order_of_their_ends() {
    let mut bucket = Bucket::of(second(100));
    assert!(bucket.take_for(60, 1, 50, NOW) && bucket.take_for(159, 2, 50, after(1)));
    // The first 50 are refilled from 60 on, and the other 50 from 160 on.
    assert_eq!(bucket.spent_and_held(after(160)), (50, 0));
    assert_eq!(bucket.spent_and_held(after(180)), (30, 0));
}

#[test]
fn a_hold_that_outlives_its_period_is_spent_in_the_period_of_its_end() {
    let mut bucket = Bucket::of(from_first(10, 10));
    assert!(bucket.take(1, 6, NOW));
    let books = [29, 30, 39, 40].map(|seconds| bucket.spent_and_held(after(seconds)));
    assert_eq!(books, [(0, 6), (6, 0), (6, 0), (0, 0)]);
}

/// How what is spent comes back, in the model.
#[derive(Clone, Copy, Debug)]
enum Refill {
    OnePerSecond,
    Epoch(u64),
    FirstRequest(u64),
}

/// What is spent of a bucket, in whole seconds and tokens: a model of its own.
struct Model {
    refill: Refill,
    spent: u64,
    /// The second of the last change, and the beginning of the period.
    at: u64,
    begin: Option<u64>,
}

impl Model {
    fn go_to(&mut self, at: u64) {
        match self.refill {
            Refill::OnePerSecond => self.spent = self.spent.saturating_sub(at - self.at),
            Refill::Epoch(length) if at / length > self.at / length => self.spent = 0,
            Refill::FirstRequest(length) if self.begin.is_some_and(|begin| at >= begin + length) => {
                (self.spent, self.begin) = (0, None);
            }
            Refill::Epoch(_) | Refill::FirstRequest(_) => {}
        }
        self.at = at;
    }

    /// Spends at this second. A take spends nothing, but begins a period.
    fn spend(&mut self, at: u64, amount: u64) {
        self.go_to(at);
        self.spent += amount;
        self.begin = self.begin.or(Some(at));
    }
}

proptest! {
    /// Whatever is written or not between the ends of holds, the spent amount is that of the model.
    #[test]
    fn holds_without_reports_are_spent_as_in_the_model(
        refill in prop_oneof![
            Just(Refill::OnePerSecond),
            (5u64..90).prop_map(Refill::Epoch),
            (5u64..90).prop_map(Refill::FirstRequest),
        ],
        takes in prop::collection::vec((0u64..40, 1u64..200, 1u64..60), 1..25),
        last in 0u64..200,
    ) {
        let limit = match refill {
            Refill::OnePerSecond => second(10_000),
            Refill::Epoch(length) => window(10_000, Window::Epoch(Micros(length * SECOND))),
            Refill::FirstRequest(length) => from_first(10_000, length),
        };
        let mut bucket = Bucket::of(limit);
        let mut now = NOW.0 / SECOND;
        let mut events = Vec::new();
        for (number, (step, seconds, amount)) in (1..).zip(takes) {
            now += step;
            prop_assert!(bucket.take_for(seconds, number, amount, Timestamp(now * SECOND)));
            // At one moment, ends come first.
            events.extend([(now, 1, 0), (now + seconds, 0, amount)]);
        }
        now += last;
        events.sort_unstable();
        let mut model = Model { refill, spent: 0, at: NOW.0 / SECOND, begin: None };
        let (past, to_come): (Vec<_>, Vec<_>) = events.into_iter().partition(|(at, ..)| *at <= now);
        past.into_iter().for_each(|(at, _, amount)| model.spend(at, amount));
        model.go_to(now);
        let held = to_come.into_iter().map(|(_, _, amount)| amount).sum();
        prop_assert_eq!(bucket.spent_and_held(Timestamp(now * SECOND)), (model.spent, held));
    }
}

#[test]
fn a_bucket_is_kept_until_what_its_holds_will_have_spent_has_come_back() {
    let mut bucket = Bucket::of(second(10_000));
    assert!(bucket.take(1, 5_000, NOW) && bucket.take_for(3_600, 2, 3_000, NOW));
    assert!(bucket.kept_until >= after(3_600 + 3_000), "{:?}", bucket.kept_until);
    // Later reads find all of it.
    assert_eq!(bucket.spent_and_held(after(4_000)), (1_430 + 3_000 - 400, 0));
    // The period of the end, and an hour.
    let mut bucket = Bucket::of(hour(10));
    assert!(bucket.take(1, 6, after(3_590)));
    assert_eq!(bucket.kept_until, after(7_200 + 3_600));
    let mut bucket = Bucket::of(from_first(10, 1_800));
    assert!(bucket.take_for(3_600, 1, 6, NOW));
    assert_eq!(bucket.kept_until, after(3_600 + 1_800 + 3_600));
}

#[test]
fn a_hold_of_nothing_is_refused_if_nothing_is_left_also_under_a_limit_with_bans() {
    let Algorithm::Budget(budget) = hour(3) else { panic!("a budget") };
    let ban = Ban::new(&[Micros(60 * SECOND)], Micros(60 * SECOND)).unwrap();
    let limit = Algorithm::Budget(budget.with_ban(ban)).beginning_no_ban().unwrap();
    let mut bucket = Bucket::of(limit);
    assert!(bucket.take(1, 3, NOW) && !bucket.take(2, 0, NOW), "held");
    assert!(bucket.settle(1, 2, NOW) && bucket.take(2, 0, NOW));
    assert!(bucket.settle(2, 1, NOW) && !bucket.take(3, 0, NOW), "spent");
}

#[test]
fn a_bucket_tells_whether_a_hold_runs_has_settled_or_has_ended_and_when() {
    use TimedHoldStatus::{Ended, Runs, Settled, Unknown};
    for limit in [hour(10), second(10), slots(10)] {
        let mut bucket = Bucket::of(limit);
        assert_eq!(bucket.status(1, NOW), Unknown);
        assert!(bucket.take(1, 3, NOW) && bucket.take_for(60, 2, 2, NOW) && bucket.take(3, 1, NOW));
        assert!(bucket.settle(3, 0, after(1)));
        let statuses = |bucket: &Bucket, now| [1, 2, 3].map(|number| bucket.status(number, now));
        assert_eq!(statuses(&bucket, after(29)), [Runs, Runs, Settled]);
        // A later write has forgotten nothing.
        let read = statuses(&bucket, after(40));
        assert!(bucket.take(4, 1, after(35)));
        assert_eq!((read, statuses(&bucket, after(40))), ([Ended(after(30)), Runs, Settled], read));
    }
}

#[test]
fn a_reset_forgets_what_holds_held_that_have_ended() {
    for limit in [hour(10), second(10)] {
        let mut bucket = Bucket::of(limit);
        assert!(bucket.take(1, 6, NOW) && bucket.take_for(60, 2, 2, NOW) && bucket.settle(2, 2, NOW));
        assert!(bucket.take_for(60, 3, 1, NOW));
        let reset = |bucket: &Bucket, now| limit.kind().give_back_at(bucket.state.as_deref().unwrap(), EVERYTHING, now);
        bucket.state = reset(&bucket, after(29));
        assert_eq!((bucket.spent_and_held(after(29)), bucket.spent_and_held(after(30))), ((0, 7), (6, 1)));
        bucket.state = reset(&bucket, after(30));
        assert_eq!(bucket.spent_and_held(after(30)), (0, 1));
        assert!(!bucket.settle(1, 1, after(31)) && !bucket.has_settled(1, after(31)));
        assert!(bucket.has_settled(2, after(31)) && bucket.settle(3, 4, after(31)));
        assert_eq!(bucket.spent_and_held(after(31)), (4, 0));
        // Of a bucket with a single entry, none is left.
        let mut bucket = Bucket::of(limit);
        assert!(bucket.take(1, 6, NOW));
        bucket.state = reset(&bucket, after(30));
        assert_eq!((bucket.spent_and_held(after(30)), bucket.state.as_ref().unwrap().len()), ((0, 0), 3));
        assert!(bucket.take(2, 10, after(30)));
    }
}

#[test]
fn a_bucket_knows_the_last_64_holds_that_have_settled_or_ended() {
    for (limit, head, words) in [(hour(1_000), 6, 5), (slots(1_000), 3, 4)] {
        let mut bucket = Bucket::of(limit);
        assert!(bucket.report(9, 5, 0, NOW));
        for number in 0..100 {
            assert!(bucket.take(number, 1, after(8)) && bucket.settle(number, 0, after(8)));
        }
        let known: Vec<u64> = (0..100).filter(|number| bucket.has_settled(*number, after(9))).collect();
        assert_eq!(known, (36..100).collect::<Vec<u64>>());
        assert_eq!(bucket.state.as_ref().unwrap().len(), head + words * 65);
        // Holds that end together are spent, though not all of them are kept.
        assert!((100..200).all(|number| bucket.take(number, 1, after(10))));
        let spent = if head == 3 { (0, 0) } else { (100, 0) };
        assert_eq!(bucket.spent_and_held(after(40)), spent);
        assert!(!bucket.report(9, 5, 0, after(41)), "a late copy of the thread's report is still known as old");
        assert!(bucket.report(9, 6, 0, after(41)));
        assert_eq!(bucket.spent_and_held(after(41)), spent);
        assert_eq!(bucket.state.as_ref().unwrap().len(), head + words * 65);
    }
}
