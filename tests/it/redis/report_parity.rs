//! Calls with reports have the same results in Rust and in the whole script: which reports are accepted, which requests
//! are granted slots, tokens and reservations of budgets, and what is stored.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use base::time::{Micros, Timestamp};
use ledger::algorithm::ban::Ban;
use ledger::algorithm::budget::Budget;
use ledger::algorithm::concurrency::Concurrency;
use ledger::algorithm::fixed_window::{FixedWindow, Window};
use ledger::algorithm::token_bucket::{Rate, TokenBucket};
use ledger::algorithm::{Algorithm, State};
use ledger::bucket_key::BucketKey;
use ledger::calendar::{Anchor, Calendar, CalendarUnit, TimeOfDay, Zone};
use ledger::charge::{Charge, Plan, Settlement, settle};
use ledger::cost::Cost;
use ledger::holds::{self, BucketReport, LIFE, Owner, Resets, SettledSums};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use stores::redis::codec;
use stores::remote::transport::ReportResult;

use crate::support::charge::spend;
use crate::support::slots::slot;
use crate::support::{Redis, TakeScript, short_or_long};

pub(super) const START: u64 = 1_763_672_400_123_456;

/// The number of buckets of budgets, each of another kind.
const BUDGETS: u8 = 8;

/// A request for slots and tokens of some buckets, and for slots in shadow mode.
#[derive(Clone, Debug)]
struct Request {
    /// Buckets with the slots of their limits.
    slots: Vec<(u8, u64)>,
    tokens: Vec<u8>,
    /// Buckets of budgets, with the sizes of their limits and what is reserved, in thousandths.
    budgets: Vec<(u8, (u64, u64))>,
    shadow: Vec<(u8, u64)>,
    times: usize,
}

/// One call of an owner.
#[derive(Clone, Debug)]
struct Act {
    step: i64,
    owner: u64,
    /// The difference of the call's sequence from the owner's last one.
    sequence: i64,
    /// How many slots the owner reports as held of each bucket.
    held: [u64; 6 + BUDGETS as usize],
    /// How much the owner has settled of each budget since its last call, and how much of the sums it does not know to be
    /// accepted, in thousandths.
    settled: [u64; BUDGETS as usize],
    unknown: u64,
    /// The budgets that the owner has reset since its last call, one bit for each. The owner does not know the last reset to be
    /// accepted.
    resets: u8,
    /// The buckets that are reported although nothing is asked of them.
    reported: Vec<u8>,
    /// How far the time that the gateway knows is behind the server's time.
    behind: u64,
    requests: Vec<Request>,
}

fn request() -> impl Strategy<Value = Request> {
    let slots = |most| prop::collection::btree_map(0u8..6, 1u64..7, 0..=most).prop_map(|map| map.into_iter().collect());
    let tokens = prop::collection::btree_set(0u8..3, 0..2).prop_map(|set| set.into_iter().collect());
    let reserved = prop_oneof![1 => Just(0u64), 2 => Just(1000), 2 => 1u64..4000];
    let budgets = prop::collection::btree_map(0u8..BUDGETS, (1u64..9, reserved), 0..3);
    let budgets = budgets.prop_map(|map| map.into_iter().collect());
    let times = prop_oneof![3 => Just(1), 1 => 2usize..6];
    (slots(3), tokens, budgets, slots(1), times).prop_map(|(slots, tokens, budgets, shadow, times)| Request {
        slots,
        tokens,
        budgets,
        shadow,
        times,
    })
}

fn act() -> impl Strategy<Value = Act> {
    let step = prop_oneof![3 => Just(0), 4 => 0i64..3_000_000, 2 => 6_999_998i64..7_000_003, 1 => -12_000_000i64..0];
    let sequence = prop_oneof![6 => Just(1), 1 => -2i64..1];
    let reported = prop::collection::btree_set(0u8..6 + BUDGETS, 0..4).prop_map(|set| set.into_iter().collect());
    let requests = prop::collection::vec(request(), 0..5);
    let settled = prop_oneof![2 => Just(0u64), 1 => 0u64..3000].boxed();
    let settled = (prop::array::uniform8(settled), 0u64..2000, any::<u8>());
    let behind = prop_oneof![5 => Just(0), 1 => Just(86_400_000_000 * 40)];
    (step, 1u64..4, sequence, prop::array::uniform14(0u64..3), settled, reported, requests, behind).prop_map(
        |(step, owner, sequence, held, (settled, unknown, resets), reported, requests, behind)| Act {
            step,
            owner,
            sequence,
            held,
            settled,
            unknown,
            resets,
            reported,
            requests,
            behind,
        },
    )
}

/// Returns the key of a bucket of slots, or of a budget for the numbers from 6 on.
pub(super) fn key(bucket: u8) -> BucketKey {
    BucketKey([1 + bucket; 16])
}

/// Returns the limit of the bucket with this number.
pub(super) fn limit(bucket: u8, size: u64) -> Algorithm {
    let rate = Rate { amount: Cost::from_tokens(2), period: Micros(7_000_000) };
    let window = |window| Algorithm::Budget(Budget::of_fixed_window(FixedWindow::new(size, window).unwrap()));
    match bucket.checked_sub(6) {
        None => Algorithm::Concurrency(Concurrency::new(size).unwrap()),
        Some(0) => Algorithm::Budget(Budget::of_token_bucket(TokenBucket::new(rate, size).unwrap())),
        Some(1) => window(Window::Epoch(Micros(9_000_000))),
        Some(2) => window(Window::FirstRequest(Micros(5_000_000))),
        Some(6) => Algorithm::Budget(Budget::of_token_bucket(TokenBucket::new(rate, size).unwrap()).with_resets()),
        Some(7) => {
            let window = FixedWindow::new(size, Window::Epoch(Micros(9_000_000))).unwrap();
            Algorithm::Budget(Budget::of_fixed_window(window).with_resets().with_ban(ban()))
        }
        Some(4) => Algorithm::Budget(Budget::of_token_bucket(TokenBucket::new(rate, size).unwrap()).with_ban(ban())),
        Some(5) => {
            let window = FixedWindow::new(size, Window::FirstRequest(Micros(5_000_000))).unwrap();
            Algorithm::Budget(Budget::of_fixed_window(window).with_ban(ban()))
        }
        Some(_) => {
            let (anchor, zone) = (Anchor::default_of(CalendarUnit::Month), Zone::parse("UTC").unwrap());
            window(Window::Calendar(Calendar::new(anchor, TimeOfDay::default(), zone)))
        }
    }
}

/// Bans about as long as the steps of the clock.
fn ban() -> Ban {
    Ban::new(&[Micros(2_000_000), Micros(7_000_000)], Micros(5_000_000)).unwrap()
}

/// Returns whether the limit's numbers in a call, made for the time `near`, do not hold at `now`.
pub(super) fn is_outside(limit: &Algorithm, near: Timestamp, now: Timestamp) -> bool {
    match limit.twin(near).1[..] {
        [_, 2, first, end, ..] if limit.window().is_some() => !(first..end).contains(&now.0),
        _ => false,
    }
}

fn plan(request: &Request) -> Plan {
    let rate = Rate { amount: Cost::ONE, period: Micros(1_000_000) };
    let tokens = Algorithm::TokenBucket(TokenBucket::new(rate, 5).unwrap());
    let mut plan = Plan::default();
    request.slots.iter().for_each(|(bucket, slots)| plan.enforce(slot(key(*bucket), *slots)));
    for (bucket, (size, reserved)) in &request.budgets {
        plan.enforce(spend(key(6 + bucket), limit(6 + bucket, *size), Cost::from_thousandths(*reserved)));
    }
    request.tokens.iter().for_each(|bucket| plan.enforce(spend(BucketKey([101 + bucket; 16]), tokens, Cost::ONE)));
    plan.shadow.extend(request.shadow.iter().map(|(bucket, slots)| slot(BucketKey([51 + bucket; 16]), *slots)));
    plan
}

/// The result of a call.
#[derive(Debug, PartialEq)]
struct Outcome {
    reports: Vec<ReportResult>,
    settlements: Vec<Option<Settlement>>,
}

/// The steps themselves, with a map of states.
#[derive(Default)]
struct Model(HashMap<BucketKey, State>);

impl Model {
    fn call(&mut self, call: &holds::Call, plans: &[Plan], near: Timestamp, now: Timestamp) -> Outcome {
        let mut reports = Vec::new();
        for report in &call.reports {
            let limit = &report.limit;
            if is_outside(limit, near, now) {
                reports.push(ReportResult::OutsidePeriod);
                continue;
            }
            let found = self.0.get(&report.bucket).map(|state| &state[..]);
            let entry = limit.accept(found, call.report(report), now);
            reports.push(if entry.is_some() { ReportResult::Accepted } else { ReportResult::Old });
            if let Some(entry) = entry.or_else(|| limit.correction(found, now)) {
                self.0.insert(report.bucket, entry.state);
            }
        }
        let is_undecided = |charge: &Charge| {
            let mut reports = call.reports.iter().zip(&reports);
            reports.any(|(report, result)| report.bucket == charge.key && *result != ReportResult::Accepted)
        };
        let mut settlements = Vec::new();
        for plan in plans {
            if plan.charges().any(is_undecided) {
                // The plan is left out, but a bucket whose time is too far ahead is corrected when it is read.
                for charge in plan.charges().filter(|charge| !is_outside(&charge.algorithm, near, now)) {
                    let found = self.0.get(&charge.key).map(|state| &state[..]);
                    if let Some(entry) = charge.algorithm.correction(found, now) {
                        self.0.insert(charge.key, entry.state);
                    }
                }
                settlements.push(None);
                continue;
            }
            let states: Vec<_> = plan.charges().map(|charge| self.0.get(&charge.key).cloned()).collect();
            let (settlement, entries) = settle(plan, &states, now);
            for (charge, entry) in plan.charges().zip(entries) {
                if let Some(entry) = entry {
                    self.0.insert(charge.key, entry.state);
                }
            }
            settlements.push(Some(settlement));
        }
        Outcome { reports, settlements }
    }
}

/// Returns a call with a report about each bucket of which these plans ask something, and about other buckets. `sums` are
/// what the owner has settled of the budgets, each with the number of resets, and the sum at the last one.
fn call_of(act: &Act, sequence: u64, sums: &[(u64, u64, u64)], plans: &[Plan]) -> holds::Call {
    let mut buckets: Vec<(BucketKey, Algorithm)> = Vec::new();
    let asked = plans.iter().flat_map(Plan::asks).map(|(_, charge, _)| (charge.key, charge.algorithm));
    for (key, limit) in asked.chain(act.reported.iter().map(|bucket| (key(*bucket), limit(*bucket, 1_000_000)))) {
        if !buckets.iter().any(|(other, _)| *other == key) {
            buckets.push((key, limit));
        }
    }
    let report = |(bucket, limit): (BucketKey, Algorithm)| {
        // The buckets in shadow mode have the numbers 50 to 55.
        let number = usize::from(bucket.0[0] - 1) % 50;
        let (sum, count, at_reset) = number.checked_sub(6).map_or((0, 0, 0), |budget| sums[budget]);
        let (from, to) = (sum.saturating_sub(act.unknown), sum);
        let resets = Resets { accepted: count.saturating_sub(1), count, sum: Cost::from_thousandths(at_reset) };
        let settled = SettledSums { from: Cost::from_thousandths(from), to: Cost::from_thousandths(to), resets };
        let held = Cost::from_tokens(act.held[number]);
        BucketReport { bucket, limit, held, asked: Cost::default(), settled }
    };
    holds::Call { owner: Owner(act.owner), sequence, life: LIFE, reports: buckets.into_iter().map(report).collect() }
}

#[test]
fn calls_with_reports_have_the_same_results_in_rust_and_in_the_whole_script() {
    let redis = Redis::start();
    let script = RefCell::new(TakeScript::new(&redis));
    let counts = Cell::new([0; 4]);
    let mut runner = TestRunner::new(ProptestConfig {
        cases: short_or_long(300, 10_000),
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let result = runner.run(&prop::collection::vec(act(), 1..30), |acts| {
        redis.command::<()>(&["FLUSHALL"]);
        let script = &mut *script.borrow_mut();
        let (mut model, mut now, mut owners) = (Model::default(), START, HashMap::new());
        for act in acts {
            now = now.saturating_add_signed(act.step);
            let (last, sums) = owners.entry(act.owner).or_insert((5u64, [(0u64, 0u64, 0u64); BUDGETS as usize]));
            let sequence = last.saturating_add_signed(act.sequence);
            *last = sequence.max(*last);
            for (budget, ((sum, count, at_reset), settled)) in sums.iter_mut().zip(act.settled).enumerate() {
                if budget >= 6 && act.resets & 1 << budget != 0 {
                    (*count, *at_reset) = (*count + 1, *sum);
                }
                *sum += settled;
            }
            let plans: Vec<Plan> = act.requests.iter().flat_map(|one| vec![plan(one); one.times]).collect();
            let plans: Vec<Plan> = plans.into_iter().filter(|plan| !plan.enforced.is_empty()).collect();
            let said = call_of(&act, sequence, sums, &plans);
            if said.reports.is_empty() {
                continue;
            }
            let call = codec::Call::with_reports(Some(&said), &plans);
            let near = Timestamp(now - act.behind);
            let reply = script.raw_reply(&call, near, Timestamp(now));
            let reply = call.settle(&reply).unwrap_or_else(|error| panic!("{error:?}: {act:?}"));
            let expected = model.call(&said, &plans, near, Timestamp(now));
            let outcome = Outcome { reports: reply.reports, settlements: reply.settlements };
            prop_assert_eq!(&outcome, &expected, "{:?}", &act);
            for report in &said.reports {
                let stored = script.stored(&report.bucket);
                let expected = model.0.get(&report.bucket).map(|state| state.to_vec());
                prop_assert_eq!(stored, expected, "{:?} of {:?}", report, &act);
            }
            let outside = outcome.reports.iter().filter(|result| **result == ReportResult::OutsidePeriod).count();
            let [old, refused, granted, before] = counts.get();
            let is_granted = |one: &&Option<Settlement>| one.as_ref().is_some_and(Settlement::is_granted);
            let (more, all) = (outcome.settlements.iter().filter(is_granted).count(), outcome.settlements.len());
            let left_out = outcome.settlements.iter().filter(|one| one.is_none()).count();
            counts.set([old + left_out, refused + all - more - left_out, granted + more, before + outside]);
        }
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
    let [old, refused, granted, outside] = counts.get();
    assert!(
        old > 200 && refused > 500 && granted > 500 && outside > 100,
        "{old} old, {refused} refused, {granted} granted, {outside} outside of the period"
    );
}
