//! Checks the protocol of holds in every order of events that a small world can have.
//!
//! The world has two owners and a store, all with the released protocol. The network between them loses, delays,
//! doubles and reorders calls and answers. Owners are killed, paused and cut off. The store is flushed, fails over to
//! an old value, and its clock is set back. In each state that can be reached:
//!
//! - an owner has at most as many running requests as the store counts for the owner. Requests that an answer under way
//!   would still admit are included. There are three exceptions, until the owner's next report: the store has lost the
//!   owner's last report, the store has not heard the owner for 7 s, or the owner let requests pass without the store.
//!   At each admission, all owners together have at most as many requests as the limit of the owner that asks;
//! - a call changes nothing after a later report about the same bucket has been answered;
//! - nothing leaks: if all reports arrive from this state on, and calls under way arrive late, the store counts after 7 s
//!   exactly what is held. If the store's clock was set back, this takes longer by the same time;
//! - a cost that an owner settles of a budget is spent once: never twice in one bucket, and at least once unless the
//!   store has lost it, or the owner was killed before the store accepted it.
//!
//! Each variant with a deliberate mistake breaks one of these invariants, and the checker must find the events that
//! break it.
//!
//! The checks visit between 3,420 states (a clock that is set back) and 16,013 (pauses), in the long form up to
//! 118,846.

mod explore;
mod world;

use explore::{Report, explore};
use world::{Bounds, Fault, Limit, Variant, World};

/// Whether the proof runs in its long form.
fn is_long() -> bool {
    std::env::var("TOLLGATE_PROOF").is_ok_and(|form| form == "long")
}

/// Explores the released protocol, and asserts that at least `least` states were found.
#[track_caller]
fn check(name: &str, limits: [Limit; 2], buckets: usize, budget: Bounds, least: usize) {
    match explore(World::new(Variant::Released, limits, buckets, budget)) {
        Ok(Report { states, steps, depth }) => {
            assert!(states >= least, "{name}: {states} states, {steps} steps, {depth} events at most");
        }
        Err(found) => panic!("{name}: {found}"),
    }
}

/// Asserts that the checker finds the mistake of a variant.
#[track_caller]
fn check_bad(variant: Variant, limits: [Limit; 2], budget: Bounds, broken: &str) {
    match explore(World::new(variant, limits, 1, budget)) {
        Ok(Report { states, .. }) => panic!("{variant:?}: nothing found in {states} states"),
        Err(found) => assert!(found.broken.contains(broken), "{variant:?}: {found}"),
    }
}

fn slots(one: u64, other: u64) -> [Limit; 2] {
    [one, other].map(Limit::of_slots)
}

fn tokens(limit: u64) -> [Limit; 2] {
    [Limit::of_tokens(limit); 2]
}

const NO_FAULTS: &[Fault] = &[];

#[test]
fn lost_late_doubled_and_reordered_reports_never_admit_wrongly() {
    let budget = match is_long() {
        true => Bounds { asks: 2, says: 1, ticks: 1, faults: 1, of: &[Fault::Double, Fault::Kill] },
        false => Bounds { asks: 2, says: 1, ticks: 0, faults: 1, of: &[Fault::Double, Fault::Kill] },
    };
    check("network, limit 1", slots(1, 1), 1, budget, 5_000);
    check("network, limits 1 and 2", slots(1, 2), 1, budget, 5_000);
}

#[test]
fn a_store_that_forgets_or_whose_clock_steps_admits_no_more_than_was_not_said() {
    let budget = |of| match is_long() {
        true => Bounds { asks: 2, says: 1, ticks: 1, faults: 1, of },
        false => Bounds { asks: 2, says: 1, ticks: 0, faults: 1, of },
    };
    check("flush, failover", slots(1, 1), 1, budget(&[Fault::Flush, Fault::FailOver]), 1_000);
    check("clock set back", slots(1, 1), 1, budget(&[Fault::ClockBack]), 1_000);
    check("passed without the store", slots(1, 1), 1, budget(&[Fault::Pass]), 1_000);
    let paused = Bounds { asks: 2, says: 1, ticks: 2, faults: 0, of: NO_FAULTS };
    check("paused for longer than 7 s", slots(1, 1), 1, paused, 1_000);
}

#[test]
fn requests_that_need_slots_of_two_buckets_take_both_or_neither() {
    let of = &[Fault::Double, Fault::Kill, Fault::Flush];
    let budget = match is_long() {
        true => Bounds { asks: 2, says: 1, ticks: 0, faults: 1, of },
        false => Bounds { asks: 2, says: 0, ticks: 0, faults: 1, of },
    };
    check("two buckets, limit 1", slots(1, 1), 2, budget, 5_000);
}

#[test]
fn a_settled_cost_is_spent_once_whatever_the_network_and_the_store_do() {
    let budget = |says, faults, of| Bounds { asks: if is_long() { 3 } else { 2 }, says, ticks: 0, faults, of };
    check("budget, network", tokens(1), 1, budget(2, 1, &[Fault::Double, Fault::Kill]), 5_000);
    check("budget, flush, failover", tokens(2), 1, budget(2, 1, &[Fault::Flush, Fault::FailOver]), 5_000);
    check("budget, clock set back", tokens(2), 1, budget(1, 1, &[Fault::ClockBack]), 1_000);
    let paused = Bounds { asks: 2, says: 1, ticks: 2, faults: 0, of: NO_FAULTS };
    check("budget, paused for longer than 7 s", tokens(2), 1, paused, 1_000);
}

#[test]
fn a_settled_cost_is_spent_once_though_its_owner_forgets_its_sum() {
    for of in [&[Fault::Double, Fault::Kill], &[Fault::Flush, Fault::Pass]] {
        let budget = Bounds { asks: 2, says: if is_long() { 2 } else { 1 }, ticks: 0, faults: 1, of };
        match explore(World::new(Variant::Released, tokens(2), 1, budget).forgetting()) {
            Ok(Report { states, .. }) => assert!(states >= 2_000, "{of:?}: {states} states"),
            Err(found) => panic!("{of:?}: {found}"),
        }
    }
}

#[test]
fn the_checker_finds_what_is_wrong_with_bad_variants_of_settling() {
    let small = Bounds { asks: 1, says: 3, ticks: 0, faults: 0, of: NO_FAULTS };
    check_bad(Variant::SumsAddedAgain, tokens(2), small, "was settled");
    check_bad(Variant::SettledLater, tokens(1), small, "at least");
    check_bad(Variant::SumForgotten, tokens(3), Bounds { asks: 2, says: 2, ..small }, "at least");
    let flush = Bounds { faults: 1, of: &[Fault::Flush], asks: 2, says: 2, ..small };
    check_bad(Variant::FromIgnored, tokens(3), flush, "was settled");
}

#[test]
fn the_checker_finds_what_is_wrong_with_known_bad_variants() {
    let of = NO_FAULTS;
    let small = Bounds { asks: 2, says: 1, ticks: 0, faults: 0, of };
    check_bad(Variant::EarlyRelease, slots(1, 1), small, "more runs");
    check_bad(Variant::SequenceIgnored, slots(1, 1), small, "a late call");
    check_bad(Variant::PlusMinus, slots(1, 1), small, "a late call");
    check_bad(Variant::ClientClock, slots(1, 1), small, "more runs");
    check_bad(Variant::LateAnswerCounts, slots(1, 1), Bounds { asks: 1, says: 2, ..small }, "more runs");
    check_bad(Variant::AsksNotSaid, slots(1, 1), small, "more runs");
    check_bad(Variant::RefusedPlanWritesNothing, slots(1, 1), Bounds { asks: 3, ..small }, "a late call");
    check_bad(Variant::SequenceForgotten, slots(1, 1), Bounds { asks: 2, says: 1, ticks: 2, ..small }, "a late call");
    check_bad(Variant::HoldsForever, slots(1, 1), Bounds { faults: 1, of: &[Fault::Kill], ..small }, "leaks");
}

/// If the store's clock is set ahead, holds end early. The protocol cannot prevent this.
#[test]
fn the_checker_finds_that_a_clock_that_leaps_ahead_ends_holds() {
    check_bad(
        Variant::Released,
        slots(1, 1),
        Bounds { asks: 1, says: 0, ticks: 0, faults: 1, of: &[Fault::ClockAhead] },
        "more runs",
    );
}
