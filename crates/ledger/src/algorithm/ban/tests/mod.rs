//! Tests bans of token buckets, fixed windows and budgets.

mod clock;

use super::*;
use crate::algorithm::budget::{Budget, SpentLimit};
use crate::algorithm::fixed_window::{FixedWindow, Window};
use crate::algorithm::token_bucket::{Rate, TokenBucket};
use crate::algorithm::{Algorithm, AlgorithmKind, ChargeResult};
use crate::bucket_key::BucketKey;
use crate::charge::{Charge, ChargePurpose, Plan, Settlement, settle};
use crate::cost::Cost;
use crate::holds::{LIFE, Owner, Report, Resets, SettledSums};
use crate::outcome::{BanNotice, Outcome, Verdict};

const NOW: Timestamp = Timestamp(1_763_672_400_000_000);
const SECOND: u64 = 1_000_000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// Bans of 15 minutes, an hour and a day, which are forgotten after a week.
fn ban() -> Ban {
    Ban::new(&[Micros(15 * MINUTE), Micros(HOUR), Micros(DAY)], Micros(7 * DAY)).unwrap()
}

/// A window of 15 minutes, from the first request on.
fn window(limit: u64) -> SpentLimit {
    SpentLimit::FixedWindow(FixedWindow::new(limit, Window::FirstRequest(Micros(15 * MINUTE))).unwrap())
}

/// A token bucket that is refilled with one token per minute.
fn bucket(burst: u64) -> SpentLimit {
    let rate = Rate { amount: Cost::ONE, period: Micros(MINUTE) };
    SpentLimit::TokenBucket(TokenBucket::new(rate, burst).unwrap())
}

fn banning(limit: SpentLimit) -> Algorithm {
    Algorithm::Budget(Budget::banning(limit, ban()))
}

fn charge(key: u8, algorithm: Algorithm) -> Charge {
    Charge::new(BucketKey([key; 16]), algorithm, Cost::ONE)
}

fn plan(charges: impl IntoIterator<Item = Charge>) -> Plan {
    Plan { enforced: charges.into_iter().collect(), ..Plan::default() }
}

/// The states of a plan's buckets, kept as a store keeps them.
struct Buckets(Vec<Option<State>>);

impl Buckets {
    fn of(plan: &Plan) -> Buckets {
        Buckets(vec![None; plan.charges().count()])
    }

    fn take(&mut self, plan: &Plan, now: Timestamp) -> Settlement {
        let (settlement, entries) = settle(plan, &self.0, now);
        for (state, entry) in self.0.iter_mut().zip(entries) {
            if let Some(entry) = entry {
                *state = Some(entry.state);
            }
        }
        settlement
    }

    /// Takes the plan until it is refused. Returns how many times it was granted, and the outcome of the refusal.
    fn drain(&mut self, plan: &Plan, now: Timestamp) -> (usize, Outcome) {
        let mut granted = 0;
        loop {
            let settlement = self.take(plan, now);
            if !settlement.is_granted() {
                return (granted, settlement.enforced[0]);
            }
            granted += 1;
        }
    }
}

fn begun(step: u32) -> Option<BanNotice> {
    Some(BanNotice { step, begins: true })
}

#[test]
fn the_settings_are_bounded() {
    assert_eq!(Ban::new(&[], Micros(1)), None);
    assert_eq!(Ban::new(&[Micros(1); MOST_DURATIONS + 1], Micros(1)), None);
    assert_eq!(Ban::new(&[Micros(0)], Micros(1)), None);
    assert_eq!(Ban::new(&[Micros(1)], Micros(LONGEST.0 + 1)), None);
    assert_eq!(ban(), ban());
    assert_ne!(ban(), Ban::new(&[Micros(15 * MINUTE)], Micros(7 * DAY)).unwrap());
    assert_eq!(ban().durations().len(), 3);
}

#[test]
fn bans_grow_and_are_forgotten_over_a_year() {
    for limit in [window(5), bucket(5)] {
        let plan = plan([charge(1, banning(limit))]);
        let (mut buckets, mut now) = (Buckets::of(&plan), NOW);
        let lengths = [15 * MINUTE, HOUR, DAY, DAY, DAY];
        for (step, length) in (1..).zip(lengths) {
            let (granted, outcome) = buckets.drain(&plan, now);
            assert_eq!((granted, outcome.verdict, outcome.ban), (5, Verdict::Banned, begun(step)));
            assert_eq!(outcome.retry_after, Micros(length));
            let last = buckets.take(&plan, now.plus(Micros(length - 1))).enforced[0];
            assert_eq!((last.verdict, last.retry_after), (Verdict::Banned, Micros(1)));
            assert_eq!(last.ban, Some(BanNotice { step, begins: false }));
            now = now.plus(Micros(length));
            // The bucket is full again before the next ban.
            now = now.plus(Micros(15 * MINUTE));
        }
        // Exactly seven days after its end the last ban still counts. 15 minutes have passed already.
        now = now.plus(Micros(7 * DAY - 15 * MINUTE));
        assert_eq!(buckets.drain(&plan, now).1.ban, begun(6));
        let end = now.plus(Micros(DAY));
        now = end.plus(Micros(7 * DAY + 1));
        assert_eq!(buckets.drain(&plan, now).1.ban, begun(1));
        now = now.plus(Micros(365 * DAY));
        assert_eq!(buckets.drain(&plan, now).1.ban, begun(1));
    }
}

#[test]
fn an_hour_of_requests_during_a_ban_changes_nothing() {
    let settings = Ban::new(&[Micros(HOUR)], Micros(DAY)).unwrap();
    for limit in [window(5), bucket(5)] {
        let plan =
            plan([charge(1, Algorithm::Budget(Budget::banning(limit, settings))), charge(2, banning(bucket(100)))]);
        let mut buckets = Buckets::of(&plan);
        buckets.drain(&plan, NOW);
        let before = buckets.0.clone();
        for second in 0..3600 {
            let now = NOW.plus(Micros(second * SECOND));
            let (settlement, entries) = settle(&plan, &buckets.0, now);
            assert_eq!(settlement.enforced[0].verdict, Verdict::Banned);
            assert_eq!(settlement.enforced[0].retry_after, Micros(HOUR - second * SECOND));
            assert!(entries.is_empty());
        }
        assert_eq!(buckets.0, before);
        assert!(buckets.take(&plan, NOW.plus(Micros(HOUR))).is_granted());
    }
}

#[test]
fn no_ban_begins_before_something_is_spent_after_the_last_one() {
    let settings = Ban::new(&[Micros(MINUTE)], Micros(DAY)).unwrap();
    // The ban ends long before the window ends.
    let plan = plan([charge(1, Algorithm::Budget(Budget::banning(window(5), settings)))]);
    let mut buckets = Buckets::of(&plan);
    assert_eq!(buckets.drain(&plan, NOW).1.ban, begun(1));
    let (granted, outcome) = buckets.drain(&plan, NOW.plus(Micros(2 * MINUTE)));
    assert_eq!((granted, outcome.verdict, outcome.ban), (0, Verdict::Deny, None));
    assert_eq!(outcome.retry_after, Micros(13 * MINUTE));
    let (granted, outcome) = buckets.drain(&plan, NOW.plus(Micros(15 * MINUTE)));
    assert_eq!((granted, outcome.ban), (5, begun(2)));
}

#[test]
fn all_limits_of_a_plan_begin_their_bans_unless_one_is_banned_already() {
    let both = plan([charge(1, banning(window(2))), charge(2, banning(bucket(2)))]);
    let mut buckets = Buckets::of(&both);
    buckets.take(&both, NOW);
    buckets.take(&both, NOW);
    let refused = buckets.take(&both, NOW).enforced;
    assert_eq!((refused[0].ban, refused[1].ban), (begun(1), begun(1)));

    // The first bucket is banned, and the second has nothing left.
    let second = plan([charge(2, banning(bucket(2)))]);
    let mut buckets = Buckets::of(&both);
    buckets.take(&both, NOW);
    let mut alone = Buckets(vec![buckets.0[1].take()]);
    alone.take(&second, NOW);
    buckets.drain(&plan([charge(1, banning(window(2)))]), NOW);
    buckets.0[1] = alone.0[0].take();
    let before = buckets.0.clone();
    let refused = buckets.take(&both, NOW).enforced;
    assert_eq!((refused[0].verdict, refused[1].verdict, refused[1].ban), (Verdict::Banned, Verdict::Deny, None));
    assert_eq!(buckets.0, before);
}

#[test]
fn a_check_begins_no_ban_and_is_refused_by_one() {
    let spending = plan([charge(1, banning(window(2)))]);
    let mut checking = spending.clone();
    checking.enforced[0].purpose = ChargePurpose::Check;
    let mut buckets = Buckets::of(&spending);
    buckets.take(&spending, NOW);
    buckets.take(&spending, NOW);
    let before = buckets.0.clone();
    assert_eq!(buckets.take(&checking, NOW).enforced[0].verdict, Verdict::Deny);
    assert_eq!(buckets.0, before);
    buckets.take(&spending, NOW);
    assert_eq!(buckets.take(&checking, NOW).enforced[0].ban, Some(BanNotice { step: 1, begins: false }));
}

#[test]
fn the_smaller_of_two_limits_of_one_bucket_begins_its_ban() {
    let mut plan = Plan::default();
    plan.enforce(charge(1, banning(window(2))));
    plan.enforce(charge(1, banning(window(9))));
    let (settlement, entries) = settle(&plan, &[None::<State>, None], NOW);
    assert!(settlement.is_granted());
    let spent = entries[1].clone().map(|entry| entry.state);
    let (refused, entries) = settle(&plan, &[spent.clone(), spent], NOW);
    assert_eq!((refused.enforced[0].ban, refused.enforced[1].verdict), (begun(1), Verdict::Allow));
    assert!(entries[0].is_some() && entries[1].is_none());
}

#[test]
fn a_ban_in_shadow_never_refuses() {
    let mut shadow = plan([charge(1, banning(window(100)))]);
    shadow.shadow.push(charge(2, banning(window(2))));
    let mut buckets = Buckets::of(&shadow);
    let bans: Vec<_> = (0..5)
        .map(|_| {
            let settlement = buckets.take(&shadow, NOW);
            assert!(settlement.is_granted());
            settlement.shadow[0].ban
        })
        .collect();
    let knocked = Some(BanNotice { step: 1, begins: false });
    assert_eq!(bans, [None, None, begun(1), knocked, knocked]);
}

/// Sends the report of an owner. Returns the new state.
fn report(budget: &Budget, state: Option<&State>, sequence: u64, held: u64, settled: u64, now: Timestamp) -> State {
    let settled = SettledSums { from: Cost::default(), to: Cost::from_tokens(settled), ..SettledSums::default() };
    let report = Report { owner: Owner(1), sequence, held: Cost::from_tokens(held), settled, life: LIFE };
    budget.accept(state.map(AsRef::as_ref), report, now).unwrap().state
}

#[test]
fn what_is_held_begins_no_ban_and_what_settles_during_a_ban_does_not_count() {
    for limit in [window(5), bucket(5)] {
        let settings = Ban::new(&[Micros(MINUTE), Micros(HOUR)], Micros(DAY)).unwrap();
        let budget = Budget::settling(limit).with_ban(settings);
        let ask = |state: &State, now| budget.step(Some(state), Cost::ONE, now).charge;
        // Requests have settled 3, and others hold 3.
        let state = report(&budget, None, 1, 3, 3, NOW);
        assert_eq!(ask(&state, NOW), ChargeResult::Held);
        // One more request has settled 2.
        let state = report(&budget, Some(&state), 2, 2, 5, NOW);
        let ChargeResult::Banned { wait, step: 1, begins: Some(begins) } = ask(&state, NOW) else {
            panic!("no ban begins")
        };
        assert_eq!(wait, Micros(MINUTE));
        let state = begins.entry.state;
        // The last two requests settle 7 during the ban.
        let during = NOW.plus(Micros(30 * SECOND));
        let state = report(&budget, Some(&state), 3, 0, 12, during);
        // Half a token has come back to a token bucket.
        assert!(budget.spent(Some(&state), during) >= Cost::from_thousandths(11_500));
        let wait = Micros(30 * SECOND);
        assert_eq!(ask(&state, during), ChargeResult::Banned { wait, step: 1, begins: None });
        let after = NOW.plus(Micros(MINUTE));
        assert!(matches!(ask(&state, after), ChargeResult::Short { .. }));
        // What settles after the ban counts.
        let state = report(&budget, Some(&state), 4, 0, 13, after);
        assert!(matches!(ask(&state, after), ChargeResult::Banned { step: 2, begins: Some(_), .. }));
    }
}

#[test]
fn a_reset_ends_no_ban_and_forgets_no_step() {
    for limit in [window(5), bucket(5)] {
        let settings = Ban::new(&[Micros(MINUTE), Micros(HOUR)], Micros(DAY)).unwrap();
        let budget = Budget::settling(limit).with_resets().with_ban(settings);
        let ask = |state: &State, now| budget.step(Some(state), Cost::ONE, now).charge;
        let state = report(&budget, None, 1, 0, 5, NOW);
        let ChargeResult::Banned { step: 1, begins: Some(begins), .. } = ask(&state, NOW) else { panic!("no ban") };
        let reset = |state: &State, sequence, to, now| {
            let tokens = Cost::from_tokens;
            let resets = Resets { accepted: 0, count: sequence, sum: tokens(to) };
            let settled = SettledSums { from: tokens(to), to: tokens(to), resets };
            let report = Report { owner: Owner(1), sequence, held: Cost::default(), settled, life: LIFE };
            budget.accept(Some(state), report, now).unwrap().state
        };
        let state = reset(&begins.entry.state, 2, 5, NOW);
        assert_eq!(budget.spent(Some(&state), NOW), Cost::default());
        let without_owners = budget.reset(Some(&budget.excerpt(&begins.entry.state)), Cost::default(), NOW).state;
        assert_eq!(without_owners, budget.excerpt(&state));
        assert!(matches!(ask(&state, NOW), ChargeResult::Banned { step: 1, begins: None, .. }));
        let after = NOW.plus(Micros(MINUTE));
        assert!(matches!(ask(&state, after), ChargeResult::Fits { .. }));
        // What a reset forgets begins no ban, not even of a request that is too large.
        let spent = report(&budget, Some(&state), 3, 0, 8, after);
        let state = reset(&spent, 4, 8, after);
        assert_eq!(budget.step(Some(&state), Cost::from_tokens(6), after).charge, ChargeResult::Never);
        let state = report(&budget, Some(&state), 5, 0, 13, after);
        assert!(matches!(ask(&state, after), ChargeResult::Banned { step: 2, begins: Some(_), .. }));
    }
}

#[test]
fn a_longer_memory_is_stored_with_the_next_request_also_if_it_is_refused() {
    let of = |days| {
        let settings = Ban::new(&[Micros(15 * MINUTE)], Micros(days * DAY)).unwrap();
        plan([charge(1, Algorithm::Budget(Budget::banning(window(5), settings)))])
    };
    let mut buckets = Buckets::of(&of(1));
    buckets.drain(&of(1), NOW);
    assert!(settle(&of(1), &buckets.0, NOW).1.is_empty());
    let kept_until =
        |days| settle(&of(days), &buckets.0, NOW).1.first().cloned().flatten().map(|entry| entry.kept_until);
    assert_eq!(kept_until(7), Some(NOW.plus(Micros(15 * MINUTE + 7 * DAY))));
    buckets.take(&of(7), NOW);
    assert!(settle(&of(7), &buckets.0, NOW).1.is_empty(), "it is stored once");
    // The mark that something was spent since, and the step, are as they were.
    let after = NOW.plus(Micros(15 * MINUTE + 2 * DAY));
    assert_eq!(buckets.drain(&of(7), after).1.ban, begun(2));
}

#[test]
fn each_limit_of_a_meter_begins_its_ban() {
    for sizes in [[2, 9], [9, 2], [2, 2]] {
        for limit in [window as fn(u64) -> SpentLimit, bucket] {
            let mut both = Plan::default();
            for size in sizes {
                both.enforce(charge(1, banning(limit(size))));
            }
            let mut buckets = Buckets::of(&both);
            // The charges are one of their sum: two.
            assert!(take_of_one_bucket(&mut buckets, &both, NOW).is_granted());
            let refused = take_of_one_bucket(&mut buckets, &both, NOW).enforced;
            for (outcome, size) in refused.iter().zip(sizes) {
                assert_eq!(outcome.ban, if size == 2 { begun(1) } else { None }, "{sizes:?}");
            }
            let banned = take_of_one_bucket(&mut buckets, &both, NOW).enforced;
            let runs = Some(BanNotice { step: 1, begins: false });
            assert_eq!([banned[0].ban, banned[1].ban], [runs; 2], "{sizes:?}");
        }
    }
}

/// Takes a plan of which all charges are to one bucket.
fn take_of_one_bucket(buckets: &mut Buckets, plan: &Plan, now: Timestamp) -> Settlement {
    let (settlement, entries) = settle(plan, &buckets.0, now);
    if let Some(entry) = entries.into_iter().flatten().last() {
        buckets.0.iter_mut().for_each(|state| *state = Some(entry.state.clone()));
    }
    settlement
}

#[test]
fn changed_durations_hold_for_later_bans() {
    let plan = |ban| plan([charge(1, Algorithm::Budget(Budget::banning(window(5), ban)))]);
    let mut buckets = Buckets::of(&plan(ban()));
    buckets.drain(&plan(ban()), NOW);
    let changed = plan(Ban::new(&[Micros(MINUTE), Micros(2 * MINUTE)], Micros(DAY)).unwrap());
    assert_eq!(buckets.take(&changed, NOW).enforced[0].retry_after, Micros(15 * MINUTE));
    let refused = buckets.drain(&changed, NOW.plus(Micros(15 * MINUTE))).1;
    assert_eq!((refused.ban, refused.retry_after), (begun(2), Micros(2 * MINUTE)));
}

#[test]
fn a_state_is_kept_until_its_ban_is_forgotten() {
    let plan = plan([charge(1, banning(window(1)))]);
    let mut buckets = Buckets::of(&plan);
    buckets.take(&plan, NOW);
    let (_, entries) = settle(&plan, &buckets.0, NOW);
    assert_eq!(entries[0].as_ref().unwrap().kept_until, NOW.plus(Micros(15 * MINUTE + 7 * DAY)));
}

#[test]
fn an_operator_lifts_a_ban_with_a_reset_and_keeps_it_with_a_grant() {
    let Algorithm::Budget(budget) = banning(window(5)) else { panic!("a budget") };
    let plan = plan([charge(1, Algorithm::Budget(budget))]);
    let mut buckets = Buckets::of(&plan);
    buckets.drain(&plan, NOW);
    let state = buckets.0[0].clone().unwrap();
    let kind = budget.kind();
    assert_eq!(kind, AlgorithmKind::FixedWindowWithBan);
    let banned = BanPeriod { end: NOW.plus(Micros(15 * MINUTE)), step: 1 };
    let granted = kind.give_back(&state, Cost::from_tokens(3)).unwrap();
    assert_eq!(budget.running_ban(Some(&granted), NOW), Some(banned));
    assert_eq!(budget.spent(Some(&granted), NOW).whole(), 2);
    let reset = kind.give_back(&state, crate::algorithm::budget::EVERYTHING).unwrap();
    assert_eq!((budget.last_ban(Some(&reset), NOW), budget.spent(Some(&reset), NOW).whole()), (None, 0));
    // An operator sets a ban.
    let set = budget.set_ban(None, Micros(DAY), NOW).unwrap().state;
    let banned = BanPeriod { end: NOW.plus(Micros(DAY)), step: 1 };
    assert_eq!(budget.running_ban(Some(&set), NOW), Some(banned));
    assert_eq!(budget.last_ban(Some(&set), banned.end.plus(Micros(7 * DAY + 1))), None);
}

#[test]
fn an_invalid_state_refuses_without_a_ban() {
    let algorithm = banning(window(5));
    let states: [&[u64]; 4] = [&[0, 1, 2], &[1, 2, 3, 9, 8, 0], &[1, 2, 3, 0, 0, 1 << 53], &[1, 2, 3, 0, 0, 0, 0]];
    for state in states {
        assert!(matches!(algorithm.step(Some(state), Cost::ONE, NOW).charge, ChargeResult::Short { .. }), "{state:?}");
    }
}

#[test]
fn limits_of_one_meter_have_the_same_bans() {
    let other = Budget::banning(window(5), Ban::new(&[Micros(MINUTE)], Micros(DAY)).unwrap());
    assert_eq!(banning(window(5)).conflict(&banning(window(9))), None);
    assert_eq!(banning(window(5)).conflict(&Algorithm::Budget(other)), Some("ban"));
    let SpentLimit::FixedWindow(plain) = window(5) else { panic!("a window") };
    assert_eq!(banning(window(5)).conflict(&Algorithm::FixedWindow(plain)), Some("ban"));
}

#[test]
fn a_request_that_begins_no_ban_is_refused_while_one_runs() {
    for limit in [window(3), bucket(3)] {
        let plans = [banning(limit), banning(limit).beginning_no_ban().unwrap()].map(|one| plan([charge(1, one)]));
        let mut buckets = Buckets::of(&plans[0]);
        // Requests that must begin no ban still spend, and are refused without a ban.
        let (granted, refused) = buckets.drain(&plans[1], NOW);
        assert_eq!((granted, refused.verdict, refused.ban), (3, Verdict::Deny, None));
        assert_eq!(buckets.take(&plans[0], NOW).enforced[0].ban, begun(1));
        let outcome = buckets.take(&plans[1], NOW).enforced[0];
        assert_eq!((outcome.verdict, outcome.ban), (Verdict::Banned, Some(BanNotice { step: 1, begins: false })));
    }
}

#[test]
fn only_a_ban_refuses_a_check_of_a_budget_that_begins_none() {
    let budget = Algorithm::Budget(Budget::settling(window(3)).with_ban(ban()));
    let check = |algorithm| Charge { cost: Cost::default(), purpose: ChargePurpose::Check, ..charge(1, algorithm) };
    let check = plan([check(budget.beginning_no_ban().unwrap())]);
    let mut buckets = Buckets::of(&check);
    let Algorithm::Budget(settling) = budget else { panic!("a budget") };
    buckets.0[0] = Some(settling.settle(None, Cost::from_tokens(9), NOW).state);
    let before = buckets.0.clone();
    assert!(buckets.take(&check, NOW).is_granted());
    assert_eq!(buckets.0, before);
    buckets.0[0] = settling.set_ban(before[0].as_deref(), Micros(HOUR), NOW).map(|entry| entry.state);
    assert_eq!(buckets.take(&check, NOW).enforced[0].verdict, Verdict::Banned);
}
