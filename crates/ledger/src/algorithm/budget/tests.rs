//! Tests the budget.

use proptest::prelude::*;

use super::*;
use crate::algorithm::fixed_window::Window;
use crate::algorithm::token_bucket::Rate;
use crate::holds::report::{LIFE, Owner, Resets, SettledSums};

const NOW: Timestamp = Timestamp(1_763_672_400_000_000);
const SECOND: u64 = 1_000_000;

/// A window of an hour, which begins at `NOW`.
fn hour(limit: u64) -> Budget {
    Budget::of_fixed_window(FixedWindow::new(limit, Window::Epoch(Micros(3600 * SECOND))).unwrap())
}

/// A token bucket that is refilled with one token per second.
fn second(burst: u64) -> Budget {
    let rate = Rate { amount: Cost::ONE, period: Micros(SECOND) };
    Budget::of_token_bucket(TokenBucket::new(rate, burst).unwrap())
}

fn after(seconds: u64) -> Timestamp {
    NOW.plus(Micros(seconds * SECOND))
}

/// A bucket whose state is kept as a store keeps it.
#[derive(Default)]
struct Bucket(Option<State>);

impl Bucket {
    /// Sends a report. Returns whether the report was accepted.
    fn report(
        &mut self,
        budget: Budget,
        (owner, sequence): (u64, u64),
        held: u64,
        sums: (u64, u64),
        now: Timestamp,
    ) -> bool {
        let settled =
            SettledSums { from: Cost::from_tokens(sums.0), to: Cost::from_tokens(sums.1), ..SettledSums::default() };
        let report = Report { owner: Owner(owner), sequence, held: Cost::from_tokens(held), settled, life: LIFE };
        let entry = budget.accept(self.0.as_deref(), report, now);
        let is_accepted = entry.is_some();
        self.0 = entry.map(|entry| entry.state).or(self.0.take());
        is_accepted
    }

    /// Holds an amount for the owner whose report was accepted last.
    fn hold(&mut self, budget: Budget, amount: u64, now: Timestamp) -> Option<ChargeResult> {
        match budget.step(self.0.as_deref(), Cost::from_tokens(amount), now).charge {
            ChargeResult::Fits { entry, .. } => {
                self.0 = Some(entry.state);
                None
            }
            refused => Some(refused),
        }
    }

    fn spent_and_held(&self, budget: Budget, now: Timestamp) -> (u64, u64) {
        (budget.spent(self.0.as_deref(), now).whole(), budget.held(self.0.as_deref(), now).whole())
    }
}

#[test]
fn what_is_held_is_not_spent_and_what_is_settled_is_spent_once() {
    let (budget, mut bucket) = (hour(10), Bucket::default());
    assert!(bucket.report(budget, (1, 1), 0, (0, 0), NOW));
    assert_eq!(bucket.hold(budget, 6, NOW), None);
    assert_eq!(bucket.hold(budget, 4, NOW), None);
    assert_eq!(bucket.hold(budget, 1, NOW), Some(ChargeResult::Held));
    assert_eq!(bucket.spent_and_held(budget, NOW), (0, 10));
    // The first request has spent 2 of the 6 tokens that it held.
    assert!(bucket.report(budget, (1, 2), 4, (0, 2), after(1)));
    assert_eq!(bucket.spent_and_held(budget, after(1)), (2, 4));
    assert!(!bucket.report(budget, (1, 2), 4, (0, 2), after(1)), "a copy");
    assert!(bucket.report(budget, (1, 3), 4, (0, 2), after(1)), "repeated in another report");
    assert_eq!(bucket.spent_and_held(budget, after(1)), (2, 4));
    assert_eq!(bucket.hold(budget, 4, after(1)), None);
    assert_eq!(bucket.hold(budget, 1, after(1)), Some(ChargeResult::Held));
    let refused = budget.step(bucket.0.as_deref(), Cost::from_tokens(9), after(1));
    assert_eq!(refused.charge, ChargeResult::Short { wait: Micros(3599 * SECOND) }, "spent alone refuses");
    assert_eq!(refused.untouched.remaining, Cost::default());
    let too_large = budget.step(bucket.0.as_deref(), Cost::from_tokens(11), after(1));
    assert_eq!(too_large.charge, ChargeResult::Never);
}

#[test]
fn a_debt_refuses_until_it_is_refilled_or_the_period_ends() {
    let (window, mut bucket) = (hour(10), Bucket::default());
    bucket.report(window, (1, 1), 0, (0, 25), NOW);
    assert_eq!(bucket.hold(window, 1, after(3599)), Some(ChargeResult::Short { wait: Micros(SECOND) }));
    assert_eq!(bucket.hold(window, 0, after(3599)), Some(ChargeResult::Short { wait: Micros(SECOND) }));
    assert!(bucket.report(window, (1, 2), 0, (25, 25), after(3600)));
    assert_eq!(bucket.hold(window, 10, after(3600)), None);

    let (tokens, mut bucket) = (second(10), Bucket::default());
    bucket.report(tokens, (1, 1), 0, (0, 25), NOW);
    assert_eq!(bucket.hold(tokens, 1, NOW), Some(ChargeResult::Short { wait: Micros(16 * SECOND) }));
    bucket.report(tokens, (1, 2), 0, (25, 25), after(16));
    assert_eq!(bucket.hold(tokens, 1, after(16)), None);
    assert_eq!(bucket.spent_and_held(tokens, after(20)), (5, 1), "what is held does not refill");
}

/// Sends a report of owner 1 with the sums `from` and `to`, and with resets: how many are known, all, and the sum at the last.
fn report_resets(
    bucket: &mut Bucket,
    budget: Budget,
    (owner, sequence): (u64, u64),
    (from, to): (u64, u64),
    (accepted, count, sum): (u64, u64, u64),
) {
    let tokens = Cost::from_tokens;
    let resets = Resets { accepted, count, sum: tokens(sum) };
    let settled = SettledSums { from: tokens(from), to: tokens(to), resets };
    let report = Report { owner: Owner(owner), sequence, held: Cost::default(), settled, life: LIFE };
    bucket.0 = Some(budget.accept(bucket.0.as_deref(), report, NOW).expect("a new report").state);
}

#[test]
fn a_reset_forgets_once_what_all_owners_have_spent_until_it_is_heard() {
    for budget in [hour(100), second(100)].map(Budget::with_resets) {
        let mut bucket = Bucket::default();
        let spent = |bucket: &Bucket| bucket.spent_and_held(budget, NOW).0;
        report_resets(&mut bucket, budget, (1, 1), (0, 4), (0, 0, 0));
        report_resets(&mut bucket, budget, (2, 1), (0, 3), (0, 0, 0));
        assert_eq!(spent(&bucket), 7);
        // Owner 1 has settled 2, a reset, and 1.
        report_resets(&mut bucket, budget, (1, 2), (4, 7), (0, 1, 6));
        assert_eq!(spent(&bucket), 1);
        report_resets(&mut bucket, budget, (2, 2), (3, 5), (0, 0, 0));
        report_resets(&mut bucket, budget, (1, 3), (4, 9), (0, 1, 6));
        assert_eq!(spent(&bucket), 5);
        // A bucket that lacks the owner is reset only if the owner does not know that its last reset was accepted.
        let mut flushed = Bucket::default();
        report_resets(&mut flushed, budget, (2, 3), (5, 9), (0, 0, 0));
        report_resets(&mut flushed, budget, (1, 4), (7, 9), (1, 1, 6));
        assert_eq!(spent(&flushed), 6);
        let mut flushed = Bucket::default();
        report_resets(&mut flushed, budget, (2, 3), (5, 9), (0, 0, 0));
        report_resets(&mut flushed, budget, (1, 4), (4, 9), (0, 1, 6));
        assert_eq!(spent(&flushed), 3);
    }
}

#[test]
fn an_owner_of_a_budget_without_resets_resets_nothing() {
    let (budget, mut bucket) = (hour(100), Bucket::default());
    report_resets(&mut bucket, budget, (1, 1), (0, 4), (0, 1, 4));
    assert_eq!(bucket.spent_and_held(budget, NOW).0, 4);
}

#[test]
fn the_kind_of_a_budget_with_resets_follows_from_its_state() {
    let ban = Ban::new(&[Micros(SECOND)], Micros(SECOND)).unwrap();
    for budget in [hour(100), second(100)] {
        for budget in [budget, budget.with_resets(), budget.with_ban(ban), budget.with_resets().with_ban(ban)] {
            let mut bucket = Bucket::default();
            // With 30 words of entries, the number of entries does not follow from the number of words.
            for owner in 1..=6 {
                assert!(bucket.report(budget, (owner, 1), 2, (0, 3), NOW));
                let state = bucket.0.clone().unwrap();
                let kind = kind_of(&state).unwrap();
                let has = |kind: AlgorithmKind| (kind.has_resets(), kind.has_ban());
                assert_eq!(has(kind), has(budget.kind()), "{owner}");
                let given_back = budget.kind().give_back(&state, Cost::ONE).unwrap();
                assert_eq!(budget.spent(Some(&given_back), NOW).whole(), 3 * owner - 1);
            }
        }
    }
}

#[test]
fn a_bucket_that_lacks_an_owner_charges_only_what_was_not_known_as_accepted() {
    let (budget, mut bucket) = (hour(100), Bucket::default());
    bucket.report(budget, (1, 1), 0, (0, 7), NOW);
    // The store has lost the bucket. The owner knows that 7 of 9 had been accepted.
    let mut flushed = Bucket::default();
    assert!(flushed.report(budget, (1, 2), 0, (7, 9), NOW));
    assert_eq!(flushed.spent_and_held(budget, NOW), (2, 0));
    // A bucket that knows the owner ignores `from`.
    assert!(bucket.report(budget, (1, 2), 0, (0, 9), NOW));
    assert_eq!(bucket.spent_and_held(budget, NOW), (9, 0));
    // A sum that falls charges nothing.
    assert!(bucket.report(budget, (1, 3), 0, (0, 3), NOW));
    assert!(bucket.report(budget, (1, 4), 0, (0, 9), NOW));
    assert_eq!(bucket.spent_and_held(budget, NOW), (9, 0));
}

#[test]
fn a_new_period_keeps_holds_and_sums() {
    let (budget, mut bucket) = (hour(10), Bucket::default());
    bucket.report(budget, (1, 1), 0, (0, 10), after(3598));
    bucket.report(budget, (2, 1), 4, (0, 0), after(3599));
    assert_eq!(bucket.spent_and_held(budget, after(3601)), (0, 4));
    assert!(bucket.report(budget, (2, 2), 0, (0, 5), after(3601)));
    assert!(bucket.report(budget, (1, 2), 0, (0, 10), after(3601)));
    assert_eq!(bucket.spent_and_held(budget, after(3601)), (5, 0), "it settles in the period that runs");
}

#[test]
fn holds_end_after_seven_seconds_and_sums_are_kept_for_ten_minutes() {
    let (budget, mut bucket) = (hour(10), Bucket::default());
    bucket.report(budget, (1, 1), 4, (0, 3), NOW);
    let end = LIFE.0 / SECOND;
    assert_eq!(bucket.spent_and_held(budget, after(end - 1)), (3, 4));
    assert_eq!(bucket.spent_and_held(budget, after(end)), (3, 0));
    let mut early = Bucket(bucket.0.clone());
    assert!(early.report(budget, (1, 2), 0, (0, 3), after(599)));
    assert_eq!(early.spent_and_held(budget, after(599)), (3, 0));
    assert!(bucket.report(budget, (1, 2), 0, (0, 3), after(600)));
    assert_eq!(bucket.spent_and_held(budget, after(600)), (6, 0), "the documented double charge");
}

#[test]
fn an_invalid_state_is_an_empty_bucket_that_is_corrected() {
    for budget in [hour(10), second(10)] {
        let mut valid = Bucket::default();
        valid.report(budget, (1, 1), 1, (0, 1), NOW);
        let state = valid.0.unwrap();
        assert_eq!((state.len(), budget.correction(Some(&state), NOW)), (11, None));
        for broken in [&state[..10], &state[..4], &state[1..], &[], &[0; 11]] {
            let mut bucket = Bucket(Some(State::from_slice(broken)));
            assert!(budget.correction(Some(broken), NOW).is_some(), "{broken:?}");
            assert!(bucket.report(budget, (1, 2), 2, (1, 1), NOW), "{broken:?}");
            assert_eq!(bucket.spent_and_held(budget, NOW), (10, 2), "{broken:?}");
            assert!(matches!(bucket.hold(budget, 1, NOW), Some(ChargeResult::Short { .. })), "{broken:?}");
        }
    }
}

#[test]
fn an_excerpt_shows_only_what_is_spent() {
    for budget in [hour(10), second(10)] {
        let mut bucket = Bucket::default();
        bucket.report(budget, (1, 1), 5, (0, 4), NOW);
        let excerpt = Bucket(Some(budget.excerpt(bucket.0.as_deref().unwrap())));
        assert_eq!(excerpt.spent_and_held(budget, NOW), (4, 0));
    }
}

#[test]
fn an_operator_who_gives_everything_back_leaves_what_is_held_and_what_the_owners_said() {
    for budget in [hour(10), second(10)] {
        let kind = Algorithm::Budget(budget).kind();
        let mut bucket = Bucket::default();
        assert_eq!(bucket.0.as_deref().and_then(kind_of), None);
        bucket.report(budget, (1, 1), 4, (0, 25), NOW);
        bucket.report(budget, (2, 1), 3, (0, 0), NOW);
        assert_eq!(bucket.spent_and_held(budget, NOW), (25, 7));
        // The kind of budget comes from the limit, or from the state.
        let state = bucket.0.take().unwrap();
        let [known, read] =
            [kind, kind_of(&state).unwrap()].map(|kind| kind.give_back(&state, Cost::from_thousandths((1 << 53) - 1)));
        assert_eq!(known, read);
        bucket.0 = known;
        assert_eq!(bucket.spent_and_held(budget, NOW), (0, 7));
        assert!(!bucket.report(budget, (1, 1), 4, (0, 25), NOW), "a late copy is still known as old");
        assert!(bucket.report(budget, (1, 2), 4, (0, 26), NOW));
        assert_eq!(bucket.spent_and_held(budget, NOW), (1, 7));
    }
    let slots = crate::algorithm::concurrency::state(None, &[], NOW);
    assert_eq!((kind_of(&slots), kind_of(&[5, 1, NOW.0]), kind_of(&[])), (None, None, None));
}

proptest! {
    /// For random requests of two owners: all admitted amounts fit, and all settled costs are spent.
    #[test]
    fn spent_and_held_are_what_the_owners_did(
        is_window in any::<bool>(),
        events in prop::collection::vec((0usize..2, 0u64..6, 0u64..9, any::<bool>()), 1..60),
    ) {
        let budget = if is_window { hour(20) } else { Budget::of_token_bucket(slow()) };
        let mut bucket = Bucket::default();
        // For each owner: the running requests, and the settled sum.
        let mut owners: [(Vec<u64>, u64); 2] = Default::default();
        for (sequence, (owner, reservation, cost, ends)) in (1..).zip(events) {
            let (running, settled) = &mut owners[owner];
            if ends && !running.is_empty() {
                running.remove(0);
                *settled += cost;
            }
            let held: u64 = running.iter().sum();
            prop_assert!(bucket.report(budget, (owner as u64 + 1, sequence), held, (0, *settled), NOW));
            let (spent, all) = bucket.spent_and_held(budget, NOW);
            let admitted = bucket.hold(budget, reservation, NOW).is_none();
            prop_assert_eq!(admitted, spent + all + reservation <= 20 && spent + all < 20);
            if admitted {
                owners[owner].0.push(reservation);
            }
            let held: u64 = owners.iter().flat_map(|(running, _)| running).sum();
            let settled: u64 = owners.iter().map(|(_, settled)| settled).sum();
            prop_assert_eq!(bucket.spent_and_held(budget, NOW), (settled, held));
        }
    }
}

/// A token bucket of 20 tokens that refills one token in a day.
fn slow() -> TokenBucket {
    TokenBucket::new(Rate { amount: Cost::ONE, period: Micros(86_400 * SECOND) }, 20).unwrap()
}
