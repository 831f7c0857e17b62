//! Tests bans in memory.

use std::sync::atomic::AtomicU64;

use smallvec::smallvec;

use super::*;
use base::time::Micros;
use ledger::algorithm::AlgorithmKind;
use ledger::algorithm::ban::{Ban, BanPeriod};
use ledger::algorithm::budget::{Budget, EVERYTHING, SpentLimit};
use ledger::algorithm::fixed_window::{FixedWindow, Window};
use ledger::bucket_key::LimitTag;
use ledger::calendar::{Anchor, Calendar, CalendarUnit, TimeOfDay, Zone};
use ledger::outcome::Verdict;

const MINUTE: u64 = 60_000_000;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;
const BUCKET: BucketKey = BucketKey([1; 16]);

fn ban() -> Ban {
    Ban::new(&[Micros(HOUR), Micros(DAY)], Micros(7 * DAY)).unwrap()
}

fn window(limit: u64) -> SpentLimit {
    SpentLimit::FixedWindow(FixedWindow::new(limit, Window::FirstRequest(Micros(15 * MINUTE))).unwrap())
}

/// A limit of five wrong guesses. Each guess holds one while it runs.
fn guesses() -> Budget {
    Budget::settling(window(5)).with_ban(ban())
}

fn memory(max_buckets: usize) -> (Arc<Memory>, Clock) {
    let clock = Clock::manual(Timestamp(1_000 * DAY));
    (Memory::new(&Settings { max_buckets, ..Settings::default() }, clock.clone()), clock)
}

fn take(memory: &Arc<Memory>, key: BucketKey, budget: Budget) -> (Reservation, Outcome) {
    let charge = Charge::new(key, Algorithm::Budget(budget), Cost::ONE);
    let TakeReply { settlement, reservation, .. } =
        memory.take(&Plan { enforced: smallvec![charge], shadow: smallvec![] });
    (reservation, settlement.enforced[0])
}

fn stored(memory: &Memory, budget: Budget) -> Option<BanPeriod> {
    let (time, states) = memory.states_of(&[BUCKET]);
    budget.running_ban(states[0].as_deref(), time.now)
}

/// Spends what the bucket has, and begins its ban.
fn begin(memory: &Arc<Memory>, key: BucketKey, budget: Budget) {
    loop {
        let (mut reservation, outcome) = take(memory, key, budget);
        reservation.settle(&key, Cost::ONE);
        if outcome.verdict == Verdict::Banned {
            return;
        }
    }
}

#[test]
fn of_64_guesses_at_once_at_most_five_wrong_ones_pass_and_right_ones_cost_nothing() {
    for round in 0..200 {
        let (memory, _) = memory(1_000);
        let (wrong, right) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for guess in 0..64 {
                let (memory, wrong, right) = (&memory, &wrong, &right);
                scope.spawn(move || {
                    let (mut reservation, outcome) = take(memory, BUCKET, guesses());
                    if outcome.verdict != Verdict::Allow {
                        return;
                    }
                    if (guess + round) % 7 == 0 {
                        right.fetch_add(1, Ordering::Relaxed);
                        drop(reservation);
                    } else {
                        wrong.fetch_add(1, Ordering::Relaxed);
                        reservation.settle(&BUCKET, Cost::ONE);
                    }
                });
            }
        });
        let (time, states) = memory.states_of(&[BUCKET]);
        let spent = guesses().spent(states[0].as_deref(), time.now).whole();
        let wrong = wrong.into_inner();
        assert!(wrong <= 5, "{wrong} wrong guesses passed");
        assert_eq!(spent, wrong, "{right:?} right guesses passed");
    }
}

#[test]
fn a_right_password_forgets_the_wrong_ones_and_no_ban() {
    let (memory, clock) = memory(1_000);
    let guesses = guesses().with_resets();
    let guess = |is_right| {
        let (mut reservation, outcome) = take(&memory, BUCKET, guesses);
        if is_right {
            reservation.reset(&BUCKET, Cost::default())
        } else {
            reservation.settle(&BUCKET, Cost::ONE)
        }
        outcome.verdict
    };
    for is_right in [false, false, false, false, true, false, false, false, false, true, false] {
        assert_eq!(guess(is_right), Verdict::Allow);
    }
    // This one is under way when an operator bans the user.
    let (mut right, _) = take(&memory, BUCKET, guesses);
    let limit = Algorithm::Budget(guesses);
    memory.change(&BUCKET, LimitTag(0), |state, time| limit.set_ban(state, Micros(HOUR), time.of(&limit)));
    right.reset(&BUCKET, Cost::default());
    assert_eq!(stored(&memory, guesses).unwrap().step, 1, "the ban goes on");
    clock.set(clock.now().plus(Micros(HOUR)));
    assert_eq!(guess(true), Verdict::Allow);
    begin(&memory, BUCKET, guesses);
    assert_eq!(stored(&memory, guesses).unwrap().step, 2, "the step is not forgotten");
}

#[test]
fn an_hour_of_requests_changes_nothing_and_the_ban_is_kept_after_the_window() {
    let (memory, clock) = memory(1_000);
    let begun = clock.now();
    begin(&memory, BUCKET, guesses());
    let before = memory.states_of(&[BUCKET]).1;
    for minute in 0..60 {
        clock.set(begun.plus(Micros(minute * MINUTE)));
        memory.sweep();
        let outcome = take(&memory, BUCKET, guesses()).1;
        assert_eq!((outcome.verdict, outcome.retry_after), (Verdict::Banned, Micros(HOUR - minute * MINUTE)));
    }
    assert_eq!(memory.states_of(&[BUCKET]).1, before);
    clock.set(begun.plus(Micros(HOUR)));
    assert_eq!(take(&memory, BUCKET, guesses()).1.verdict, Verdict::Allow);
    // The step is remembered for a week, although the window is full again.
    clock.set(begun.plus(Micros(HOUR + 7 * DAY - 1)));
    memory.sweep();
    begin(&memory, BUCKET, guesses());
    let ban = stored(&memory, guesses()).unwrap();
    assert_eq!((ban.step, ban.end), (2, clock.now().plus(Micros(DAY))));
    clock.set(ban.end.plus(Micros(7 * DAY + 1)));
    memory.sweep();
    assert_eq!(memory.buckets(), 0);
}

#[test]
fn a_reset_lifts_a_ban_and_a_grant_keeps_it() {
    for (budget, kind) in [
        (guesses(), AlgorithmKind::WindowBudgetWithBan),
        (Budget::banning(window(5), ban()), AlgorithmKind::FixedWindowWithBan),
    ] {
        let (memory, _) = memory(1_000);
        begin(&memory, BUCKET, budget);
        memory.give_back(&[(BUCKET, kind)], Cost::from_tokens(5));
        assert_eq!(take(&memory, BUCKET, budget).1.verdict, Verdict::Banned);
        memory.give_back(&[(BUCKET, kind)], EVERYTHING);
        assert_eq!(take(&memory, BUCKET, budget).1.verdict, Verdict::Allow);
        begin(&memory, BUCKET, budget);
        assert_eq!(stored(&memory, budget).unwrap().step, 1);
        memory.remove(&[BUCKET]);
        assert_eq!(take(&memory, BUCKET, budget).1.verdict, Verdict::Allow);
    }
}

#[test]
fn a_banned_bucket_is_evicted_after_buckets_that_are_half_spent() {
    let (memory, _) = memory(64);
    let key = |number: u8| BucketKey([number; 16]);
    let banned: Vec<_> = (0..32).map(key).collect();
    banned.iter().for_each(|key| begin(&memory, *key, Budget::banning(window(1), ban())));
    // Floods the store with other buckets of the same limit. None of them is drained.
    for number in 32..=255 {
        let charge = Charge { tag: LimitTag::default(), ..Charge::new(key(number), plain(4), Cost::from_tokens(2)) };
        memory.take(&Plan { enforced: smallvec![charge], shadow: smallvec![] });
    }
    assert_eq!(memory.buckets(), 64);
    let (time, states) = memory.states_of(&banned);
    let budget = Budget::banning(window(1), ban());
    assert!(states.iter().all(|state| budget.running_ban(state.as_deref(), time.now).is_some()));
}

fn plain(limit: u64) -> Algorithm {
    Algorithm::FixedWindow(FixedWindow::new(limit, Window::FirstRequest(Micros(15 * MINUTE))).unwrap())
}

#[test]
fn a_ban_outlives_the_process_in_a_stream_of_buckets() {
    let (first, _) = memory(1_000);
    begin(&first, BUCKET, guesses());
    let mut stream = Vec::new();
    assert_eq!(first.write_buckets(&mut stream).unwrap(), 1);
    let (second, clock) = memory(1_000);
    clock.set(clock.now().plus(Micros(30 * MINUTE)));
    assert_eq!(second.read_buckets(&*stream).unwrap(), 1);
    let outcome = take(&second, BUCKET, guesses()).1;
    assert_eq!((outcome.verdict, outcome.retry_after), (Verdict::Banned, Micros(30 * MINUTE)));
}

#[test]
fn a_ban_outlives_a_clock_that_is_set_back_between_two_processes() {
    for back in [30 * MINUTE, 2 * HOUR, 400 * DAY] {
        let (first, _) = memory(1_000);
        begin(&first, BUCKET, guesses());
        let mut stream = Vec::new();
        first.write_buckets(&mut stream).unwrap();
        let (second, clock) = memory(1_000);
        clock.set(Timestamp(clock.now().0 - back));
        assert_eq!(second.read_buckets(&*stream).unwrap(), 1);
        let outcome = take(&second, BUCKET, guesses()).1;
        // It begins now, so it lasts no longer than any other.
        assert_eq!((outcome.verdict, outcome.retry_after), (Verdict::Banned, Micros(HOUR)), "{back}");
        clock.set(clock.now().plus(Micros(HOUR)));
        begin(&second, BUCKET, guesses());
        assert_eq!(stored(&second, guesses()).unwrap().step, 2, "{back}");
    }
}

#[test]
fn a_longer_memory_of_bans_holds_from_the_next_request_on() {
    let keeping = |days| {
        let ban = Ban::new(&[Micros(HOUR)], Micros(days * DAY)).unwrap();
        [Budget::settling(window(5)).with_ban(ban), Budget::banning(window(5), ban)]
    };
    for (short, long) in keeping(1).into_iter().zip(keeping(7)) {
        let (memory, clock) = memory(1_000);
        begin(&memory, BUCKET, short);
        let begun = clock.now();
        // A request that the ban refuses, and one that costs nothing.
        for (after, expected) in [(0, Verdict::Banned), (HOUR + 6 * DAY, Verdict::Allow)] {
            clock.set(begun.plus(Micros(after)));
            memory.sweep();
            assert_eq!(take(&memory, BUCKET, long).1.verdict, expected);
        }
        begin(&memory, BUCKET, long);
        assert_eq!(stored(&memory, long).unwrap().step, 2);
    }
}

#[test]
fn a_day_by_the_machines_clock_is_not_moved_to_the_day_by_the_clock_of_the_process() {
    let Clock::System { epoch, start, ahead } = Clock::system() else { panic!("the machine's clock") };
    // The machine's clock was set forward by two days.
    let clock = Clock::System { epoch: Timestamp(epoch.0 - 2 * DAY), start, ahead };
    clock.compare();
    let calendar =
        Calendar::new(Anchor::default_of(CalendarUnit::Day), TimeOfDay::default(), Zone::parse("UTC").unwrap());
    let daily = SpentLimit::FixedWindow(FixedWindow::new(5, Window::Calendar(calendar)).unwrap());
    let memory = Memory::new(&Settings { max_buckets: 1_000, ..Settings::default() }, clock);
    for budget in [Budget::settling(daily), Budget::settling(daily).with_ban(ban())] {
        let key = BucketKey([u8::from(budget.ban().is_some()); 16]);
        take(&memory, key, budget).0.settle(&key, Cost::from_tokens(5));
        for _ in 0..3 {
            assert_ne!(take(&memory, key, budget).1.verdict, Verdict::Allow);
        }
    }
}

#[test]
fn what_settles_during_a_ban_is_charged_and_begins_no_other() {
    let (memory, clock) = memory(1_000);
    let (mut slow, _) = take(&memory, BUCKET, guesses());
    let (mut slower, _) = take(&memory, BUCKET, guesses());
    for cost in [2, 3] {
        take(&memory, BUCKET, guesses()).0.settle(&BUCKET, Cost::from_tokens(cost));
    }
    assert_eq!(take(&memory, BUCKET, guesses()).1.verdict, Verdict::Banned);
    slow.settle(&BUCKET, Cost::from_tokens(9));
    clock.set(clock.now().plus(Micros(HOUR)));
    // The window of the requests has ended. The cost of the slower request begins another.
    slower.settle(&BUCKET, Cost::from_tokens(9));
    let outcome = take(&memory, BUCKET, guesses()).1;
    assert_eq!((outcome.verdict, outcome.ban.map(|ban| ban.step)), (Verdict::Banned, Some(2)));
}
