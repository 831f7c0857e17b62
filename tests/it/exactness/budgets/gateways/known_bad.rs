//! Deliberate mistakes of whole gateways. The books find every one of them.

use super::super::books::Finding;
use super::play::{Fault, LIMITS, Setup, Site};
use crate::support::print_measured;

/// A killed gateway can hold so little that one run does not show it.
const SEEDS: [u64; 5] = [7, 8, 9, 10, 11];

/// Plays runs with these seeds until one finds the mistake.
#[track_caller]
fn is_noticed(as_what: Finding, fault: Fault, limit: &str, flaw: Option<&'static str>, more: &str) {
    let limit = LIMITS.into_iter().find(|known| known.name == limit).unwrap();
    let found = SEEDS.into_iter().any(|seed| {
        let setup = Setup { seed, faults: vec![fault], limit, clients: 16 };
        let run = Site::start(fault, flaw, more).play(&setup);
        let (found, calls) = (run.findings(), run.books.entries.len());
        print_measured(&format!("mistaken gateways: {flaw:?} {more}: {found:?} in {calls} calls, {:?}", run.after));
        found.contains(&as_what)
    });
    assert!(found, "{as_what:?} was not found");
}

/// What a killed gateway held is never given back.
#[test]
fn gateways_that_count_what_is_held_as_spent_are_noticed() {
    is_noticed(Finding::SpentTooMuch, Fault::Kill, "much", Some("held_is_spent"), "");
}

#[test]
fn gateways_whose_sums_are_added_again_with_each_report_are_noticed() {
    is_noticed(Finding::SpentTooMuch, Fault::Nothing, "large", Some("sums_added"), "");
}

#[test]
fn gateways_that_estimate_a_tenth_of_what_was_cut_are_noticed() {
    is_noticed(Finding::SpentTooLittle, Fault::Nothing, "large", None, "llm: {bytes_per_token: 40}\n");
}
