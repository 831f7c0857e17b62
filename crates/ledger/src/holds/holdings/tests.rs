//! Tests the reports of the next call, and the effect of an answer.

use super::*;
use crate::algorithm::Algorithm;
use crate::algorithm::concurrency::Concurrency;

const NOW: Timestamp = Timestamp(1 << 50);
const SLOT: SlotTerms = SlotTerms { amount: Cost::ONE, algorithm: Algorithm::Concurrency(Concurrency::MOST) };

fn key(number: u16) -> BucketKey {
    let mut key = [0; 16];
    key[..2].copy_from_slice(&number.to_be_bytes());
    BucketKey(key)
}

fn after(milliseconds: u64) -> Timestamp {
    NOW.plus(Micros(milliseconds * 1000))
}

/// Returns the content of a call: each bucket with its held and asked slots.
fn said(call: &Call) -> Vec<(BucketKey, u64, u64)> {
    call.reports.iter().map(|report| (report.bucket, report.held.whole(), report.asked.whole())).collect()
}

/// Accepts each report of a call, and grants what was asked.
fn grant(holdings: &mut Holdings, call: &Call) -> Vec<SlotId> {
    let mut slots = Vec::new();
    for report in &call.reports {
        let granted: &[SlotTerms] = if report.asked > Cost::default() { &[SLOT] } else { &[] };
        slots.extend(holdings.answered(call, report, ReportAnswer::Accepted { granted }, NOW).unwrap());
    }
    slots
}

#[test]
fn a_slot_is_said_every_two_seconds_and_its_end_once() {
    let mut holdings = Holdings::new(Owner(1));
    let call = holdings.call(&[(key(1), Cost::ONE)], NOW);
    assert_eq!(said(&call), [(key(1), 0, 1)]);
    let slots = grant(&mut holdings, &call);
    assert_eq!((holdings.has_reports(), holdings.next_moment()), (false, Some(after(2000))));
    holdings.advance(after(1999));
    assert!(!holdings.has_reports());
    holdings.advance(after(2000));
    assert!(holdings.has_reports());
    let call = holdings.call(&[], after(2000));
    assert_eq!(said(&call), [(key(1), 1, 0)]);
    grant(&mut holdings, &call);
    holdings.end(slots[0]);
    holdings.end(slots[0]);
    assert!(holdings.has_reports(), "given back with the next call");
    let call = holdings.call(&[], after(2100));
    assert_eq!(said(&call), [(key(1), 0, 0)]);
    grant(&mut holdings, &call);
    assert_eq!((holdings.has_reports(), holdings.next_moment()), (false, None), "forgotten");
}

#[test]
fn what_was_asked_without_an_answer_is_said_until_a_later_report_is_answered() {
    let mut holdings = Holdings::new(Owner(1));
    let lost = holdings.call(&[(key(1), Cost::from_tokens(3))], NOW);
    holdings.lost(&lost);
    let next = holdings.call(&[(key(1), Cost::ONE)], NOW);
    assert_eq!((said(&next), holdings.unanswered(&key(1)).whole()), (vec![(key(1), 3, 1)], 4));
    assert_eq!(grant(&mut holdings, &next).len(), 1);
    assert_eq!(holdings.unanswered(&key(1)).whole(), 0);
    let late = holdings.answered(&lost, &lost.reports[0], ReportAnswer::Accepted { granted: &[SLOT; 3] }, NOW);
    assert_eq!((late, holdings.held(&key(1)).whole()), (None, 1), "nobody counts them any more");
    assert_eq!(said(&holdings.call(&[], NOW)), [(key(1), 1, 0)], "the store counts three too many");
}

#[test]
fn a_copy_that_is_answered_as_old_lets_the_ask_fail() {
    let mut holdings = Holdings::new(Owner(1));
    let call = holdings.call(&[(key(1), Cost::ONE)], NOW);
    assert_eq!(holdings.answered(&call, &call.reports[0], ReportAnswer::Old, NOW), None);
    let granted = ReportAnswer::Accepted { granted: &[SLOT] };
    assert_eq!(holdings.answered(&call, &call.reports[0], granted, NOW), None);
    assert_eq!(said(&holdings.call(&[], NOW)), [(key(1), 0, 0)]);
}

#[test]
fn a_new_connection_is_said_everything_in_pieces_those_that_are_asked_first() {
    let mut holdings = Holdings::new(Owner(1));
    for bucket in 0..600 {
        holdings.hold(key(bucket), SLOT, NOW);
    }
    let mut pieces = vec![holdings.call(&[], NOW), holdings.call(&[], NOW), holdings.call(&[], NOW)];
    assert!(!holdings.has_reports());
    holdings.reconnected();
    pieces.extend([holdings.call(&[(key(599), Cost::ONE)], NOW), holdings.call(&[], NOW), holdings.call(&[], NOW)]);
    let lengths: Vec<_> = pieces.iter().map(|call| call.reports.len()).collect();
    assert_eq!((lengths, holdings.has_reports()), (vec![256, 256, 88, 256, 256, 88], false));
    assert_eq!(said(&pieces[3])[0], (key(599), 1, 1));
    let all: Vec<_> = (1..1000).map(|bucket| (key(bucket), Cost::ONE)).collect();
    assert_eq!(holdings.call(&all, NOW).reports.len(), 999, "each bucket that is asked");
}

#[test]
fn reports_that_are_due_soon_go_together() {
    let mut holdings = Holdings::new(Owner(1));
    for bucket in 0..1000 {
        let now = after(u64::from(bucket));
        let call = holdings.call(&[(key(bucket), Cost::ONE)], now);
        assert_eq!(call.reports.len(), 1, "a call with an ask has only what is due");
        grant(&mut holdings, &call);
    }
    // The reports are due from 2000 ms to 2999 ms.
    let next = |holdings: &mut Holdings| {
        let moment = holdings.next_moment().unwrap();
        holdings.advance(moment);
        let call = holdings.call(&[], moment);
        grant(holdings, &call);
        (moment.since(NOW).0 / 1000, call.reports.len())
    };
    let calls: Vec<_> = (0..8).map(|_| next(&mut holdings)).collect();
    let first = [(2000, 256), (2256, 256), (2512, 256), (2768, 232)];
    assert_eq!(calls[..4], first);
    let again: Vec<_> = first.map(|(moment, reports)| (moment + 2000, reports)).into();
    assert_eq!(calls[4..], again, "every two seconds from then on");
}

#[test]
fn asks_of_several_requests_for_one_bucket_are_their_sum() {
    let mut holdings = Holdings::new(Owner(1));
    let call = holdings.call(&[(key(1), Cost::ONE), (key(2), Cost::ONE), (key(1), Cost::ONE)], NOW);
    assert_eq!(said(&call), [(key(1), 0, 2), (key(2), 0, 1)]);
}

#[test]
fn a_slot_with_a_longest_time_is_given_back_though_its_request_goes_on() {
    let mut holdings = Holdings::new(Owner(1));
    let terms = SlotTerms {
        algorithm: Algorithm::Concurrency(Concurrency::MOST.with_max_hold(Some(Micros(1_500_000)))),
        ..SLOT
    };
    let (short, long) = (holdings.hold(key(1), terms, NOW), holdings.hold(key(1), SLOT, NOW));
    holdings.call(&[], NOW);
    assert_eq!(holdings.next_moment(), Some(after(1500)));
    holdings.advance(after(1500));
    assert_eq!((holdings.held(&key(1)).whole(), holdings.has_reports()), (1, true));
    holdings.end(short);
    assert_eq!(holdings.held(&key(1)).whole(), 1);
    holdings.end(long);
    assert_eq!(said(&holdings.call(&[], after(1500))), [(key(1), 0, 0)]);
}

#[test]
fn what_a_call_asked_that_did_not_run_is_not_said() {
    let mut holdings = Holdings::new(Owner(1));
    let call = holdings.call(&[(key(1), Cost::ONE)], NOW);
    holdings.did_not_run(&call);
    assert!(!holdings.has_reports(), "no call has reported the bucket");
    assert_eq!(said(&holdings.call(&[(key(1), Cost::ONE)], NOW)), [(key(1), 0, 1)]);
}

#[test]
fn the_end_of_a_process_ends_all_slots_once() {
    let mut holdings = Holdings::new(Owner(7));
    let terms = SlotTerms { amount: Cost::ONE, algorithm: Algorithm::Concurrency(Concurrency::MOST) };
    let slots = [1, 1, 2].map(|bucket| holdings.hold(key(bucket), terms, NOW));
    let call = holdings.call(&[], NOW);
    for report in &call.reports {
        holdings.answered(&call, report, ReportAnswer::Accepted { granted: &[] }, NOW);
    }
    assert!(holdings.is_reported());
    holdings.end_all();
    assert!(!holdings.is_reported());
    assert_eq!(said(&holdings.call(&[], NOW)), [(key(1), 0, 0), (key(2), 0, 0)]);
    slots.into_iter().for_each(|slot| holdings.end(slot));
    assert_eq!(holdings.held(&key(1)), Cost::default());
}

#[test]
fn a_bucket_that_no_call_has_reported_is_forgotten_with_its_last_slot() {
    let mut holdings = Holdings::new(Owner(1));
    for number in 0..1000 {
        let slot = holdings.hold(key(number), SLOT, NOW);
        holdings.end(slot);
        let refused = holdings.call(&[(key(number), Cost::ONE)], NOW);
        holdings.did_not_run(&refused);
    }
    assert_eq!((holdings.buckets.len(), holdings.has_reports(), holdings.next_moment()), (0, false, None));
    // The lost call may have run, so the next call must report the bucket.
    let lost = holdings.call(&[(key(1), Cost::ONE)], NOW);
    holdings.lost(&lost);
    assert!(holdings.has_reports());
}

#[test]
fn what_lost_calls_asked_for_is_one_amount() {
    let mut holdings = Holdings::new(Owner(1));
    for _ in 0..1000 {
        let lost = holdings.call(&[(key(1), Cost::ONE)], NOW);
        holdings.lost(&lost);
    }
    assert_eq!((holdings.buckets[&key(1)].asked.len(), holdings.unanswered(&key(1)).whole()), (1, 1000));
    let next = holdings.call(&[(key(1), Cost::ONE)], NOW);
    assert_eq!(said(&next), [(key(1), 1000, 1)]);
    grant(&mut holdings, &next);
    assert_eq!((holdings.held(&key(1)).whole(), holdings.unanswered(&key(1)).whole()), (1, 0));
}

#[test]
fn a_request_that_reserves_nothing_settles_its_cost() {
    let mut holdings = Holdings::new(Owner(7));
    let call = holdings.call(&[(key(1), Cost::default())], NOW);
    let terms = SlotTerms { amount: Cost::default(), ..SLOT };
    let answer = ReportAnswer::Accepted { granted: &[terms] };
    let slots = holdings.answered(&call, &call.reports[0], answer, NOW).unwrap();
    assert_eq!((holdings.has_reports(), holdings.is_reported()), (false, true));
    holdings.settle(slots[0], Cost::from_tokens(5));
    assert!(holdings.has_reports());
    let call = holdings.call(&[], NOW);
    let settled = SettledSums { from: Cost::default(), to: Cost::from_tokens(5) };
    assert_eq!((call.reports[0].bucket, call.reports[0].settled), (key(1), settled));
}
