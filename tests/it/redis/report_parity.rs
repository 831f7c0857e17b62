//! Calls with reports have the same results in Rust and in the whole script: which reports are accepted, which requests
//! are granted slots and tokens, and what is stored.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use base::time::{Micros, Timestamp};
use ledger::algorithm::concurrency::Concurrency;
use ledger::algorithm::token_bucket::{Rate, TokenBucket};
use ledger::algorithm::{Algorithm, State};
use ledger::bucket_key::BucketKey;
use ledger::charge::{Charge, Plan, Settlement, settle};
use ledger::cost::Cost;
use ledger::holds::{self, BucketReport, Owner, SettledSums};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use stores::redis::codec;

use crate::support::charge::spend;
use crate::support::slots::slot;
use crate::support::{Redis, TakeScript, short_or_long};

const START: u64 = 1_763_672_400_123_456;

/// A request for slots and tokens of some buckets, and for slots in shadow mode.
#[derive(Clone, Debug)]
struct Request {
    /// Buckets with the slots of their limits.
    slots: Vec<(u8, u64)>,
    tokens: Vec<u8>,
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
    held: [u64; 6],
    /// The buckets that are reported although nothing is asked of them.
    reported: Vec<u8>,
    requests: Vec<Request>,
}

fn request() -> impl Strategy<Value = Request> {
    let slots = |most| prop::collection::btree_map(0u8..6, 1u64..7, 0..=most).prop_map(|map| map.into_iter().collect());
    let tokens = prop::collection::btree_set(0u8..3, 0..2).prop_map(|set| set.into_iter().collect());
    let times = prop_oneof![3 => Just(1), 1 => 2usize..6];
    (slots(3), tokens, slots(1), times).prop_map(|(slots, tokens, shadow, times)| Request {
        slots,
        tokens,
        shadow,
        times,
    })
}

fn act() -> impl Strategy<Value = Act> {
    let step = prop_oneof![3 => Just(0), 4 => 0i64..3_000_000, 2 => 6_999_998i64..7_000_003, 1 => -12_000_000i64..0];
    let sequence = prop_oneof![6 => Just(1), 1 => -2i64..1];
    let reported = prop::collection::btree_set(0u8..6, 0..3).prop_map(|set| set.into_iter().collect());
    let requests = prop::collection::vec(request(), 0..5);
    (step, 1u64..4, sequence, prop::array::uniform6(0u64..3), reported, requests).prop_map(
        |(step, owner, sequence, held, reported, requests)| Act { step, owner, sequence, held, reported, requests },
    )
}

fn slots_key(bucket: u8) -> BucketKey {
    BucketKey([1 + bucket; 16])
}

fn plan(request: &Request) -> Plan {
    let rate = Rate { amount: Cost::ONE, period: Micros(1_000_000) };
    let tokens = Algorithm::TokenBucket(TokenBucket::new(rate, 5).unwrap());
    let mut plan = Plan::default();
    request.slots.iter().for_each(|(bucket, slots)| plan.enforce(slot(slots_key(*bucket), *slots)));
    request.tokens.iter().for_each(|bucket| plan.enforce(spend(BucketKey([101 + bucket; 16]), tokens, Cost::ONE)));
    plan.shadow.extend(request.shadow.iter().map(|(bucket, slots)| slot(BucketKey([51 + bucket; 16]), *slots)));
    plan
}

/// The result of a call.
#[derive(Debug, PartialEq)]
struct Outcome {
    accepted: Vec<bool>,
    settlements: Vec<Option<Settlement>>,
}

/// The steps themselves, with a map of states.
#[derive(Default)]
struct Model(HashMap<BucketKey, State>);

impl Model {
    fn call(&mut self, call: &holds::Call, plans: &[Plan], now: Timestamp) -> Outcome {
        let mut accepted = Vec::new();
        for report in &call.reports {
            let asks = |charge: &&Charge| charge.key == report.bucket;
            let asked = plans.iter().flat_map(Plan::charges).find(asks).map(|charge| charge.algorithm);
            let limit = asked.unwrap_or(Algorithm::Concurrency(Concurrency::MOST));
            let found = self.0.get(&report.bucket).map(|state| &state[..]);
            let entry = limit.accept(found, call.report(report), now);
            accepted.push(entry.is_some());
            let corrected = || limit.slots().unwrap().correction(found, now);
            if let Some(entry) = entry.or_else(corrected) {
                self.0.insert(report.bucket, entry.state);
            }
        }
        let is_old = |charge: &Charge| {
            let mut reports = call.reports.iter().zip(&accepted);
            reports.any(|(report, accepted)| report.bucket == charge.key && !accepted)
        };
        let mut settlements = Vec::new();
        for plan in plans {
            if plan.charges().any(is_old) {
                // The plan is left out, but a bucket whose time is too far ahead is corrected when it is read.
                for charge in plan.charges() {
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
        Outcome { accepted, settlements }
    }
}

/// Returns a call with a report about each bucket of which these plans ask something, and about other buckets.
fn call_of(act: &Act, sequence: u64, plans: &[Plan]) -> holds::Call {
    let mut keys: Vec<BucketKey> = Vec::new();
    let asked = plans.iter().flat_map(Plan::asks).map(|(_, charge, _)| charge.key);
    for key in asked.chain(act.reported.iter().map(|bucket| slots_key(*bucket))) {
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    let report = |bucket: BucketKey| {
        let held = Cost::from_tokens(act.held[usize::from(bucket.0[0]) % 6]);
        BucketReport { bucket, held, asked: Cost::default(), settled: SettledSums::default() }
    };
    holds::Call { owner: Owner(act.owner), sequence, reports: keys.into_iter().map(report).collect() }
}

#[test]
fn calls_with_reports_have_the_same_results_in_rust_and_in_the_whole_script() {
    let redis = Redis::start();
    let script = RefCell::new(TakeScript::new(&redis));
    let counts = Cell::new([0; 3]);
    let mut runner = TestRunner::new(ProptestConfig {
        cases: short_or_long(300, 10_000),
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let result = runner.run(&prop::collection::vec(act(), 1..30), |acts| {
        redis.command::<()>(&["FLUSHALL"]);
        let script = &mut *script.borrow_mut();
        let (mut model, mut now, mut sequences) = (Model::default(), START, HashMap::new());
        for act in acts {
            now = now.saturating_add_signed(act.step);
            let last = sequences.entry(act.owner).or_insert(5u64);
            let sequence = last.saturating_add_signed(act.sequence);
            *last = sequence.max(*last);
            let plans: Vec<Plan> = act.requests.iter().flat_map(|one| vec![plan(one); one.times]).collect();
            let plans: Vec<Plan> = plans.into_iter().filter(|plan| !plan.enforced.is_empty()).collect();
            let said = call_of(&act, sequence, &plans);
            if said.reports.is_empty() {
                continue;
            }
            let call = codec::Call::with_reports(Some(&said), &plans);
            let reply = script.raw_reply(&call, Timestamp(now), Timestamp(now));
            let reply = call.settle(&reply).unwrap_or_else(|error| panic!("{error:?}: {act:?}"));
            let expected = model.call(&said, &plans, Timestamp(now));
            let outcome = Outcome { accepted: reply.accepted, settlements: reply.settlements };
            prop_assert_eq!(&outcome, &expected, "{:?}", &act);
            for report in &said.reports {
                let stored = script.stored(&report.bucket);
                let expected = model.0.get(&report.bucket).map(|state| state.to_vec());
                prop_assert_eq!(stored, expected, "{:?} of {:?}", report, &act);
            }
            let [old, refused, granted] = counts.get();
            let is_granted = |one: &&Option<Settlement>| one.as_ref().is_some_and(Settlement::is_granted);
            let (more, all) = (outcome.settlements.iter().filter(is_granted).count(), outcome.settlements.len());
            let left_out = outcome.settlements.iter().filter(|one| one.is_none()).count();
            counts.set([old + left_out, refused + all - more - left_out, granted + more]);
        }
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
    let [old, refused, granted] = counts.get();
    assert!(old > 200 && refused > 500 && granted > 500, "{old} old, {refused} refused, {granted} granted");
}
