//! Tests the reports of the next call, and the effect of an answer.

use super::*;
use crate::algorithm::Algorithm;
use crate::algorithm::budget::Budget;
use crate::algorithm::concurrency::Concurrency;
use crate::algorithm::fixed_window::{FixedWindow, Window};

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

/// A budget with a period of an hour.
fn budget(limit: u64) -> Budget {
    Budget::of_fixed_window(FixedWindow::new(limit, Window::Epoch(Micros(3_600_000_000))).unwrap())
}

fn of_budget(limit: u64, amount: u64) -> SlotTerms {
    SlotTerms { amount: Cost::from_tokens(amount), algorithm: Algorithm::Budget(budget(limit)) }
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
    let call = holdings.call(&[(key(1), SLOT)], NOW);
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
    let lost = holdings.call(&[(key(1), SlotTerms { amount: Cost::from_tokens(3), ..SLOT })], NOW);
    holdings.lost(&lost);
    let next = holdings.call(&[(key(1), SLOT)], NOW);
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
    let call = holdings.call(&[(key(1), SLOT)], NOW);
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
    pieces.extend([holdings.call(&[(key(599), SLOT)], NOW), holdings.call(&[], NOW), holdings.call(&[], NOW)]);
    let lengths: Vec<_> = pieces.iter().map(|call| call.reports.len()).collect();
    assert_eq!((lengths, holdings.has_reports()), (vec![256, 256, 88, 256, 256, 88], false));
    assert_eq!(said(&pieces[3])[0], (key(599), 1, 1));
    let all: Vec<_> = (1..1000).map(|bucket| (key(bucket), SLOT)).collect();
    assert_eq!(holdings.call(&all, NOW).reports.len(), 999, "each bucket that is asked");
}

#[test]
fn reports_that_are_due_soon_go_together() {
    let mut holdings = Holdings::new(Owner(1));
    for bucket in 0..1000 {
        let now = after(u64::from(bucket));
        let call = holdings.call(&[(key(bucket), SLOT)], now);
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
    let call = holdings.call(&[(key(1), SLOT), (key(2), SLOT), (key(1), SLOT)], NOW);
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
    let call = holdings.call(&[(key(1), SLOT)], NOW);
    holdings.did_not_run(&call);
    assert!(!holdings.has_reports(), "no call has reported the bucket");
    assert_eq!(said(&holdings.call(&[(key(1), SLOT)], NOW)), [(key(1), 0, 1)]);
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
        let refused = holdings.call(&[(key(number), SLOT)], NOW);
        holdings.did_not_run(&refused);
    }
    assert_eq!((holdings.buckets.len(), holdings.has_reports(), holdings.next_moment()), (0, false, None));
    // The lost call may have run, so the next call must report the bucket.
    let lost = holdings.call(&[(key(1), SLOT)], NOW);
    holdings.lost(&lost);
    assert!(holdings.has_reports());
}

#[test]
fn what_lost_calls_asked_for_is_one_amount() {
    let mut holdings = Holdings::new(Owner(1));
    for _ in 0..1000 {
        let lost = holdings.call(&[(key(1), SLOT)], NOW);
        holdings.lost(&lost);
    }
    assert_eq!((holdings.buckets[&key(1)].asked.len(), holdings.unanswered(&key(1)).whole()), (1, 1000));
    let next = holdings.call(&[(key(1), SLOT)], NOW);
    assert_eq!(said(&next), [(key(1), 1000, 1)]);
    grant(&mut holdings, &next);
    assert_eq!((holdings.held(&key(1)).whole(), holdings.unanswered(&key(1)).whole()), (1, 0));
}

#[test]
fn a_request_that_reserves_nothing_settles_its_cost() {
    let mut holdings = Holdings::new(Owner(7));
    let terms = SlotTerms { amount: Cost::default(), algorithm: Algorithm::Budget(budget(9)) };
    let call = holdings.call(&[(key(1), terms)], NOW);
    let answer = ReportAnswer::Accepted { granted: &[terms] };
    let slots = holdings.answered(&call, &call.reports[0], answer, NOW).unwrap();
    assert_eq!((holdings.has_reports(), holdings.is_reported()), (false, true));
    assert_eq!(holdings.settle(slots[0], Cost::from_tokens(5)), SettledCost::Kept);
    assert!(holdings.has_reports());
    let call = holdings.call(&[], NOW);
    let settled = SettledSums { from: Cost::default(), to: Cost::from_tokens(5), ..SettledSums::default() };
    assert_eq!((call.reports[0].bucket, call.reports[0].settled), (key(1), settled));
}

#[test]
fn a_report_about_a_budget_has_the_limit_that_was_asked_last() {
    let mut holdings = Holdings::new(Owner(7));
    let call = holdings.call(&[(key(1), of_budget(5, 1)), (key(1), of_budget(6, 1)), (key(2), SLOT)], NOW);
    let limits = |call: &Call| call.reports.iter().map(|report| report.limit).collect::<Vec<_>>();
    let slots = Algorithm::Concurrency(Concurrency::MOST);
    assert_eq!(limits(&call), [Algorithm::Budget(budget(5)), slots]);
    holdings.lost(&call);
    assert_eq!(limits(&holdings.call(&[], NOW)), [Algorithm::Budget(budget(6)), slots]);
    holdings.hold(key(1), of_budget(7, 1), NOW);
    holdings.hold(key(2), SlotTerms { algorithm: Algorithm::Concurrency(Concurrency::new(3).unwrap()), ..SLOT }, NOW);
    holdings.reconnected();
    assert_eq!(limits(&holdings.call(&[], NOW)), [Algorithm::Budget(budget(7)), slots]);
}

#[test]
fn what_is_asked_in_a_call_outside_of_the_period_is_not_held_and_the_report_is_sent_again() {
    let mut holdings = Holdings::new(Owner(7));
    let slot = holdings.hold(key(1), of_budget(9, 2), NOW);
    let call = holdings.call(&[(key(1), of_budget(9, 1))], NOW);
    assert_eq!(holdings.answered(&call, &call.reports[0], ReportAnswer::OutsidePeriod, NOW), None);
    assert_eq!((holdings.unanswered(&key(1)).whole(), holdings.has_reports()), (0, true));
    settle(&mut holdings, slot, 3);
    assert_eq!(report_all(&mut holdings, NOW), [(0, 0)], "the store may know an older sum");
    let call = holdings.call(&[], NOW);
    let settled = SettledSums { from: Cost::default(), to: Cost::from_tokens(3), ..SettledSums::default() };
    assert_eq!((said(&call), call.reports[0].settled), (vec![(key(1), 0, 0)], settled));
}

#[test]
fn a_bucket_whose_only_slots_hold_nothing_is_kept_until_they_end_and_seldom_reported() {
    let mut holdings = Holdings::new(Owner(7));
    let call = holdings.call(&[(key(1), of_budget(9, 0))], NOW);
    let answer = ReportAnswer::Accepted { granted: &[of_budget(9, 0)] };
    let slots = holdings.answered(&call, &call.reports[0], answer, NOW).unwrap();
    holdings.advance(after(600_000));
    assert!(!holdings.has_reports());
    let hour = after(3_600_000);
    holdings.advance(hour);
    let call = holdings.call(&[], hour);
    holdings.answered(&call, &call.reports[0], ReportAnswer::Accepted { granted: &[] }, hour).unwrap();
    settle(&mut holdings, slots[0], 4);
    assert_eq!(holdings.call(&[], hour).reports[0].settled.to.whole(), 4);
}

#[test]
fn a_settled_cost_is_counted_without_the_store_once_until_the_store_has_accepted_it() {
    let mut holdings = Holdings::new(Owner(7));
    let counted = |holdings: &mut Holdings| holdings.count_settled(&key(1)).whole();
    assert_eq!(counted(&mut holdings), 0);
    spend(&mut holdings, 1, 3);
    spend(&mut holdings, 1, 4);
    assert_eq!([counted(&mut holdings), counted(&mut holdings)], [7, 0]);
    spend(&mut holdings, 1, 5);
    report_all(&mut holdings, NOW);
    let call = holdings.call(&[], NOW);
    assert_eq!(
        call.reports[0].settled,
        SettledSums { from: Cost::default(), to: Cost::from_tokens(12), ..SettledSums::default() }
    );
    spend(&mut holdings, 1, 1);
    holdings.answered(&call, &call.reports[0], ReportAnswer::Accepted { granted: &[] }, NOW);
    assert_eq!(counted(&mut holdings), 1, "the store has charged the others");
}

fn settle(holdings: &mut Holdings, slot: SlotId, cost: u64) {
    assert_eq!(holdings.settle(slot, Cost::from_tokens(cost)), SettledCost::Kept);
}

/// Makes a request that holds something of this bucket and spends a cost.
fn spend(holdings: &mut Holdings, bucket: u16, cost: u64) {
    let slot = holdings.hold(key(bucket), of_budget(9, 1), NOW);
    settle(holdings, slot, cost);
}

/// Makes a call without requests, whose reports are accepted. Returns the sums of its reports.
fn report_all(holdings: &mut Holdings, now: Timestamp) -> Vec<(u64, u64)> {
    let call = holdings.call(&[], now);
    for report in &call.reports {
        holdings.answered(&call, report, ReportAnswer::Accepted { granted: &[] }, now);
    }
    let sums = |SettledSums { from, to, .. }: SettledSums| (from.whole(), to.whole());
    call.reports.iter().map(|report| sums(report.settled)).collect()
}

#[test]
fn sums_are_kept_for_eleven_minutes_and_of_too_many_buckets_the_oldest_ones_are_forgotten() {
    let mut holdings = Holdings::with_most_sums(Owner(7), 3);
    for bucket in 1..=5 {
        let now = after(u64::from(bucket));
        spend(&mut holdings, bucket, 2);
        assert_eq!([report_all(&mut holdings, now), report_all(&mut holdings, now)], [[(0, 0)], [(0, 2)]]);
        assert!(holdings.is_reported() && !holdings.has_reports());
    }
    assert_eq!(holdings.buckets.keys().copied().collect::<Vec<_>>(), [key(3), key(4), key(5)]);
    // The store may know the sum of the forgotten bucket, so 0 is reported first, and the cost counts as held.
    spend(&mut holdings, 1, 7);
    spend(&mut holdings, 4, 1);
    assert_eq!([holdings.said(&key(1)), holdings.said(&key(4))].map(|held| held.unwrap().whole()), [7, 0]);
    assert_eq!(report_all(&mut holdings, after(6)), [(0, 0), (2, 3)]);
    assert_eq!(holdings.said(&key(1)), Some(Cost::default()));
    assert_eq!(report_all(&mut holdings, after(6)), [(0, 7)]);
    holdings.advance(after(660_003));
    assert_eq!(holdings.buckets.len(), 3);
    holdings.advance(after(660_006));
    assert_eq!((holdings.buckets.len(), holdings.next_moment()), (0, None));
}

#[test]
fn without_the_store_the_costs_of_so_many_buckets_are_kept_and_those_of_further_buckets_are_lost() {
    let mut holdings = Holdings::with_most_sums(Owner(7), 3);
    for round in 1..=2 {
        for bucket in 1..=1000 {
            let slot = holdings.hold(key(bucket), of_budget(9, 1), NOW);
            let expected = if bucket <= 3 { SettledCost::Kept } else { SettledCost::Lost };
            assert_eq!(holdings.settle(slot, Cost::from_tokens(round)), expected, "{bucket}");
        }
        assert_eq!(holdings.buckets.len(), 3);
    }
    report_all(&mut holdings, NOW);
    assert_eq!(report_all(&mut holdings, NOW), [(0, 3), (0, 3), (0, 3)]);
    spend(&mut holdings, 900, 1);
}

#[test]
fn an_answer_about_sums_that_were_forgotten_meanwhile_acknowledges_nothing() {
    let mut holdings = Holdings::with_most_sums(Owner(7), 1);
    spend(&mut holdings, 1, 4);
    report_all(&mut holdings, NOW);
    let late = holdings.call(&[], NOW);
    holdings.lost(&late);
    report_all(&mut holdings, NOW);
    spend(&mut holdings, 2, 1);
    (0..2).for_each(|_| drop(report_all(&mut holdings, NOW)));
    assert!(!holdings.buckets.contains_key(&key(1)));
    spend(&mut holdings, 1, 6);
    holdings.answered(&late, &late.reports[0], ReportAnswer::Accepted { granted: &[] }, NOW);
    assert_eq!([report_all(&mut holdings, NOW), report_all(&mut holdings, NOW)], [[(0, 0)], [(0, 6)]]);
}

/// A store cuts sums at 2^53, and would charge nothing above.
#[test]
fn a_sum_that_becomes_too_large_begins_again_so_that_later_costs_are_charged() {
    let mut holdings = Holdings::new(Owner(7));
    let largest = MOST_COST.whole();
    spend(&mut holdings, 1, u64::MAX / 1000);
    assert_eq!([report_all(&mut holdings, NOW), report_all(&mut holdings, NOW)], [[(0, 0)], [(0, largest)]]);
    spend(&mut holdings, 1, u64::MAX / 1000);
    let [(from, to)] = report_all(&mut holdings, NOW)[..] else { panic!("one report is due") };
    assert_eq!((from, to), (largest, NEW_SUM.whole()));
    assert!(holdings.is_reported());
    spend(&mut holdings, 1, 5);
    assert_eq!([report_all(&mut holdings, NOW), report_all(&mut holdings, NOW)], [[(0, 0)], [(0, 5)]]);
}
