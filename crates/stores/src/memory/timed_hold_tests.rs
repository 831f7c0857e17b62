//! Tests timed holds in memory.

use smallvec::smallvec;

use super::*;
use crate::timed_settlement::TimedSettlement;
use base::time::Micros;
use ledger::algorithm::AlgorithmKind;
use ledger::algorithm::ban::Ban;
use ledger::algorithm::budget::{Budget, EVERYTHING};
use ledger::algorithm::fixed_window::{FixedWindow, Window};
use ledger::holds::{Owner, TimedHold, TimedHoldCost};
use ledger::outcome::Verdict;

const SECOND: u64 = 1_000_000;
const HOUR: u64 = 3_600 * SECOND;
const BUCKET: BucketKey = BucketKey([1; 16]);

/// A window of an hour. The test begins at the start of an hour.
fn hourly(limit: u64) -> Budget {
    Budget::of_fixed_window(FixedWindow::new(limit, Window::Epoch(Micros(HOUR))).unwrap())
}

fn memory() -> (Arc<Memory>, Clock) {
    let clock = Clock::manual(Timestamp(1_000 * HOUR));
    (Memory::new(&Settings::default(), clock.clone()), clock)
}

fn plan(budget: Budget, amount: u64) -> Plan {
    let charge = Charge::new(BUCKET, Algorithm::Budget(budget), Cost::from_tokens(amount));
    Plan { enforced: smallvec![charge], shadow: smallvec![] }
}

fn owner(number: u64) -> Owner {
    Owner::of_timed_hold(number << 16)
}

/// Takes for a timed hold of 30 seconds.
fn hold(memory: &Arc<Memory>, budget: Budget, number: u64, amount: u64) -> Verdict {
    let hold = TimedHold { owner: owner(number), life: Micros(30 * SECOND) };
    memory.take_timed(&plan(budget, amount), hold).unwrap().settlement.enforced[0].verdict
}

fn settle_hold(memory: &Memory, budget: Budget, number: u64, cost: u64) -> TimedSettlement {
    let cost = TimedHoldCost { bucket: BUCKET, limit: Algorithm::Budget(budget), cost: Cost::from_tokens(cost) };
    memory.settle_timed(&TimedHold::settle(owner(number), &[cost])).pop().unwrap().unwrap()
}

/// Returns what is spent and what is held of the bucket.
fn books(memory: &Memory, budget: Budget) -> (u64, u64) {
    let (time, states) = memory.states_of(&[BUCKET]);
    (budget.spent(states[0].as_deref(), time.now).whole(), budget.held(states[0].as_deref(), time.now).whole())
}

#[test]
fn a_reset_forgets_what_has_ended_and_keeps_what_is_held() {
    let resets: [fn(&Memory); 2] = [
        |memory| drop(memory.remove(&[BUCKET])),
        |memory| drop(memory.give_back(&[(BUCKET, AlgorithmKind::WindowBudget)], EVERYTHING)),
    ];
    for reset in resets {
        let (memory, clock) = memory();
        let begin = clock.now();
        assert_eq!(hold(&memory, hourly(10), 1, 6), Verdict::Allow);
        clock.set(begin.plus(Micros(20 * SECOND)));
        assert_eq!(hold(&memory, hourly(10), 2, 3), Verdict::Allow);
        clock.set(begin.plus(Micros(30 * SECOND)));
        assert_eq!(books(&memory, hourly(10)), (6, 3));
        reset(&memory);
        assert_eq!(books(&memory, hourly(10)), (0, 3));
        assert_eq!(hold(&memory, hourly(10), 3, 7), Verdict::Allow);
        assert_eq!(settle_hold(&memory, hourly(10), 1, 1), TimedSettlement::Ended);
        assert_eq!(settle_hold(&memory, hourly(10), 2, 2), TimedSettlement::Settled);
        assert_eq!(books(&memory, hourly(10)), (2, 7));
    }
}

#[test]
fn a_ban_that_begins_keeps_timed_holds() {
    let ban = Ban::new(&[Micros(60 * SECOND)], Micros(HOUR)).unwrap();
    let (limit, (memory, _)) = (hourly(10).with_ban(ban), memory());
    assert_eq!(hold(&memory, limit, 1, 4), Verdict::Allow);
    let take = |amount| memory.take(&plan(limit, amount));
    take(6).reservation.settle(&BUCKET, Cost::from_tokens(6));
    assert_eq!(take(5).settlement.enforced[0].verdict, Verdict::Banned);
    assert_eq!(books(&memory, limit), (6, 4));
    assert_eq!(settle_hold(&memory, limit, 1, 3), TimedSettlement::Settled);
    assert_eq!(books(&memory, limit), (9, 0));
}
