//! Mistakes that real gateways have made with budgets. The books find every one of them.

use stores::redis::fault_injection::Flaw;

use super::books::{Finding, Refill};
use super::play::{Fault, Pair, Setup};
use crate::support::print_measured;

/// How often a mistake is played until it is noticed. Where a budget is refilled, nothing is left of a mistake if the machine stands still
/// before the books are read.
const MOST_PLAYS: usize = 4;

/// Plays a setup without and with its mistake.
#[track_caller]
fn is_noticed(as_what: Finding, mistaken: &Setup) {
    let mut pair = Pair::start();
    let right = pair.play(&Setup { flaw: None, cut_costs: None, ..*mistaken });
    assert_eq!(right.findings(), [], "{:?}: {:?}", right.setup, right.after);
    let mut last = String::new();
    for _ in 0..MOST_PLAYS {
        let wrong = pair.play(mistaken);
        let (found, requests) = (wrong.findings(), wrong.books.settled.len());
        print_measured(&format!("mistaken budget: {:?}: {found:?} in {requests} requests", mistaken.flaw));
        if found.contains(&as_what) {
            return;
        }
        last = format!("{found:?}, {:?}, {} used", wrong.after, wrong.books.used());
    }
    panic!("{mistaken:?}: {last}");
}

fn budget(limit: u64, refill: u64, fault: Fault) -> Setup {
    Setup { seed: 7, fault, limit, refill: Refill(refill), callers: 24, flaw: None, cut_costs: None }
}

/// What is held and what is spent are one number: what a killed gateway held is never given back.
#[test]
fn what_is_held_in_the_number_of_what_is_spent_is_noticed() {
    let mistaken = Setup { flaw: Some(Flaw::HeldIsSpent), ..budget(100_000, 0, Fault::Kill) };
    is_noticed(Finding::SpentTooMuch, &mistaken);
}

/// What was reserved and not used is given back as tokens: what was refilled meanwhile is given back again.
#[test]
fn a_reservation_that_is_given_back_as_tokens_is_noticed() {
    let mistaken = Setup { flaw: Some(Flaw::HeldIsSpent), ..budget(400, 1_500, Fault::Nothing) };
    is_noticed(Finding::SpentTooLittle, &mistaken);
}

#[test]
fn sums_that_are_added_as_if_each_were_new_are_noticed() {
    let mistaken = Setup { flaw: Some(Flaw::SumsAdded), ..budget(100_000, 0, Fault::Nothing) };
    is_noticed(Finding::SpentTooMuch, &mistaken);
}

#[test]
fn cut_requests_that_cost_nothing_are_noticed() {
    let mistaken = Setup { cut_costs: Some(0), ..budget(100_000, 0, Fault::Nothing) };
    is_noticed(Finding::SpentTooLittle, &mistaken);
    // Nothing is spent, so that more is used than there is.
    let mistaken = Setup { cut_costs: Some(0), ..budget(300, 0, Fault::Nothing) };
    is_noticed(Finding::OverLimit, &mistaken);
}
