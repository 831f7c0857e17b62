//! Plays random schedules of faults on the released steps of purses and homes: words that are lost, late, doubled or cut off, stores that
//! are flushed or come back without their last acts, clocks that are apart and set, two stores under one name, raises and reloads. Over
//! all regions together, at most the limit passes in a period, and at most `burst + rate·T` in any window, apart from what a store
//! has lost.
//!
//! Each variant with a deliberate mistake lets more pass, and some schedule must show it.

mod judge;
mod random;
mod schedule;
mod world;

use random::Random;
use schedule::{END, Fault, ModelLimit, SECOND, Schedule};
use world::{Variant, World};

/// Returns the number of schedules: more if the proof runs in its long form.
fn schedules() -> u64 {
    if std::env::var("TOLLGATE_PROOF").is_ok_and(|form| form == "long") { 100_000 } else { 1000 }
}

/// Returns the first schedule that lets more pass than the limit.
fn search(variant: Variant) -> Option<String> {
    (0..schedules()).find_map(|seed| {
        let schedule = Schedule::random(seed);
        let excess = World::new(variant, &schedule).play(&schedule).judge.excess()?;
        let Schedule { limit, share, faults, .. } = &schedule;
        Some(format!("seed {seed}: {excess}; {limit:?}, share {share} %, {faults:?}"))
    })
}

#[test]
fn no_schedule_of_faults_lets_more_pass_than_the_limit() {
    assert_eq!(search(Variant::Released), None);
}

#[test]
fn nothing_is_spent_at_home_but_what_has_passed_is_unspent_or_was_lost() {
    let keeps_all =
        |fault: &Fault| matches!(fault, Fault::Link { .. } | Fault::Flush { .. } | Fault::Reload | Fault::Raise { .. });
    let mut compared = 0;
    for seed in 0..schedules() {
        let schedule = Schedule::random(seed);
        let is_window = matches!(schedule.limit, ModelLimit::Window { .. });
        if is_window && !schedule.has_twin && schedule.faults.iter().all(|(_, fault)| keeps_all(fault)) {
            let [least, _] = World::new(Variant::Released, &schedule).play(&schedule).lost;
            assert_eq!(least, 0, "seed {seed}: {schedule:?}");
            compared += 1;
        }
    }
    assert!(compared > 10, "{compared}");
}

#[test]
fn every_deliberate_mistake_is_found() {
    let mistakes = [
        Variant::CreditBeforeDebit,
        Variant::PurseWithoutEnd,
        Variant::OwnClock,
        Variant::AnswersForgotten,
        Variant::ReturnedAndKept,
    ];
    for mistake in mistakes {
        assert!(search(mistake).is_some(), "{mistake:?} is not found in {} schedules", schedules());
    }
}

/// Plays a steady demand without faults, in these regions, `factor` times a window of 1000.
fn play_demand(regions: &[usize], limit: ModelLimit, share: u64, factor: u64) -> World {
    let random = &mut Random::new(7);
    let (mut now, mut requests) = (0, Vec::new());
    while now < END {
        now += 1 + random.below(2 * END / (factor * limit.amount()));
        requests.push((now, random.one_of(regions), 1));
    }
    let (faults, apart) = (Vec::new(), [1_700_000, -900_000, 300_000, 0]);
    let schedule = Schedule { seed: 7, limit, largest_cost: 1, share, apart, has_twin: false, faults, requests };
    World::new(Variant::Released, &schedule).play(&schedule)
}

/// A window of 1000 that contains the whole demand.
const WINDOW: ModelLimit = ModelLimit::Window { limit: 1000, window: 86_400 * SECOND };

#[test]
fn all_of_the_limit_is_granted_to_the_request_if_demand_is_everywhere() {
    let world = play_demand(&[0, 1, 2], WINDOW, 5, 3);
    assert_eq!(world.judge.passed, 1_000_000);
    assert_eq!((world.judge.excess(), world.lost), (None, [0, 0]));
}

#[test]
fn almost_all_is_granted_before_the_first_refusal_if_demand_is_in_one_region() {
    for region in 0..3 {
        let world = play_demand(&[region], WINDOW, 5, 3);
        let before = world.first_refusal.unwrap();
        assert!(before >= 970_000 && world.judge.passed == 1_000_000, "region {region}: {before} thousandths");
    }
}

#[test]
fn a_token_bucket_grants_its_rate_over_all_regions() {
    let limit = ModelLimit::Rate { burst: 200, per_second: 100 };
    let world = play_demand(&[0, 1, 2], limit, 25, 16);
    let passed = world.judge.passed / 1000;
    assert!((1260..=1400).contains(&passed) && world.judge.excess().is_none(), "{passed} of 1400");
}
