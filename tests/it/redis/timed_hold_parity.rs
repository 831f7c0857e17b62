//! Timed holds have the same results in Rust and in the whole script, beside holds of threads: what is granted, what is settled,
//! and what is stored.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};

use base::time::{Micros, Timestamp};
use ledger::algorithm::{Algorithm, State};
use ledger::bucket_key::BucketKey;
use ledger::charge::{Charge, Plan, settle};
use ledger::cost::Cost;
use ledger::holds::{self, BucketReport, LIFE, Owner, SettledSums, TimedHold, TimedHoldCost};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use stores::redis::codec;
use stores::remote::transport::ReportResult;

use super::report_parity::{START, is_outside, key, limit};
use crate::support::charge::spend;
use crate::support::{Redis, TakeScript, short_or_long};

/// The buckets of slots have the numbers 0 to 5, and those of budgets the numbers from 6 on.
const BUCKETS: u8 = 14;

#[derive(Clone, Debug)]
enum Act {
    /// A hold takes amounts of some buckets, in thousandths, under limits of these sizes.
    Take { hold: u64, seconds: u64, asks: BTreeMap<u8, (u64, u64)> },
    /// The hold that has taken this many takes ago settles this cost of each of its buckets, and of further ones.
    Settle { ago: usize, cost: u64, further: Option<u8> },
    /// A thread holds this amount of a bucket, and has settled as much more.
    Report { thread: u64, bucket: u8, held: u64 },
}

fn act() -> impl Strategy<Value = (i64, Act)> {
    let step = prop_oneof![3 => Just(0), 4 => 0i64..3_000_000, 2 => 4_999_998i64..5_000_003, 1 => -12_000_000i64..0];
    let asks = prop::collection::btree_map(
        0..BUCKETS,
        (1u64..9, prop_oneof![3 => Just(1000u64), 1 => Just(0), 4 => 0u64..4000]),
        1..4,
    );
    let asks = asks.prop_map(|asks| {
        // Slots are whole.
        asks.into_iter().map(|(bucket, (size, cost))| (bucket, (size, if bucket < 6 { 1000 } else { cost }))).collect()
    });
    let hold = prop_oneof![9 => any::<u64>(), 1 => 0u64..4];
    let take = (hold, 1u64..12, asks).prop_map(|(hold, seconds, asks)| Act::Take { hold, seconds, asks });
    let settled = (0usize..4, 0u64..5000, prop::option::weighted(0.2, 0..BUCKETS));
    let settled = settled.prop_map(|(ago, cost, further)| Act::Settle { ago, cost, further });
    let report = (1u64..4, 0..BUCKETS, 0u64..3);
    let report = report.prop_map(|(thread, bucket, held)| Act::Report { thread, bucket, held });
    (step, prop_oneof![5 => take, 3 => settled, 2 => report])
}

/// The states of the buckets, by the steps in Rust.
#[derive(Default)]
struct Model(HashMap<BucketKey, State>);

impl Model {
    fn state(&self, bucket: &BucketKey) -> Option<&[u64]> {
        self.0.get(bucket).map(|state| &state[..])
    }

    /// Accepts a report about a bucket of no plan.
    fn report(&mut self, call: &holds::Call, report: &BucketReport, now: Timestamp) -> ReportResult {
        let (limit, found) = (&report.limit, self.state(&report.bucket));
        let accepted = limit.accept(found, call.report(report), now);
        let result = match &accepted {
            Some(_) => ReportResult::Accepted,
            None if limit.has_settled(found, call.owner, now) => ReportResult::SettledBefore,
            None => ReportResult::Old,
        };
        if let Some(entry) = accepted.or_else(|| limit.correction(found, now)) {
            self.0.insert(report.bucket, entry.state);
        }
        result
    }

    /// Writes what is noticed of a bucket although nothing is charged, such as a hold that has ended.
    fn correct(&mut self, charge: &Charge, now: Timestamp) {
        if let Some(entry) = charge.algorithm.correction(self.state(&charge.key), now) {
            self.0.insert(charge.key, entry.state);
        }
    }

    /// Takes for a timed hold. Returns whether the plan is granted; `None` if a report was not accepted.
    fn take(&mut self, call: &holds::Call, plan: &Plan, now: Timestamp) -> Option<bool> {
        let mut states: Vec<Option<State>> = Vec::new();
        for charge in plan.charges() {
            let report = call.reports.iter().find(|report| report.bucket == charge.key).unwrap();
            let found = self.state(&charge.key);
            states.push(charge.algorithm.accept(found, call.report(report), now).map(|entry| entry.state));
        }
        if states.iter().any(Option::is_none) {
            plan.charges().for_each(|charge| self.correct(charge, now));
            return None;
        }
        let (settlement, entries) = settle(plan, &states, now);
        for (index, charge) in plan.charges().enumerate() {
            if settlement.is_granted() {
                self.0.insert(charge.key, entries[index].clone().unwrap().state);
            } else if let Some(Some(begun)) = entries.get(index) {
                self.0.insert(charge.key, begun.state.clone());
            } else {
                self.correct(charge, now);
            }
        }
        Some(settlement.is_granted())
    }
}

#[test]
fn timed_holds_have_the_same_results_in_rust_and_in_the_whole_script() {
    let redis = Redis::start();
    let script = RefCell::new(TakeScript::new(&redis));
    let counts = Cell::new([0; 5]);
    let cases = short_or_long(400, 10_000);
    let mut runner = TestRunner::new(ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() });
    let result = runner.run(&prop::collection::vec(act(), 1..40), |acts| {
        redis.command::<()>(&["FLUSHALL"]);
        let script = &mut *script.borrow_mut();
        let (mut model, mut now, mut sequences) = (Model::default(), START, HashMap::<u64, u64>::new());
        let mut sums: HashMap<(u64, u8), u64> = HashMap::new();
        let mut taken: Vec<(Owner, Vec<u8>)> = Vec::new();
        for (step, act) in acts {
            now = now.saturating_add_signed(step);
            let at = Timestamp(now);
            let [mut granted, mut refused, mut settled, mut repeated, mut ended] = counts.get();
            let (call, plan) = match &act {
                Act::Take { hold, seconds, asks } => {
                    let mut plan = Plan::default();
                    for (bucket, (size, cost)) in asks {
                        // As at a door: a hold begins no ban.
                        let limit = limit(*bucket, *size);
                        let limit = if *size > 4 { limit } else { limit.beginning_no_ban().unwrap_or(limit) };
                        plan.enforce(spend(key(*bucket), limit, Cost::from_thousandths(*cost)));
                    }
                    let hold = TimedHold { owner: Owner::of_timed_hold(*hold), life: Micros(seconds * 1_000_000) };
                    taken.push((hold.owner, asks.keys().copied().collect()));
                    (hold.take(&plan), plan)
                }
                Act::Settle { ago, cost, further } => {
                    let Some((owner, buckets)) = taken.iter().rev().nth(*ago) else { continue };
                    let further = further.filter(|bucket| !buckets.contains(bucket));
                    let of = |bucket: u8| TimedHoldCost {
                        bucket: key(bucket),
                        limit: limit(bucket, 5),
                        cost: Cost::from_thousandths(if bucket < 6 { 0 } else { *cost }),
                    };
                    let costs: Vec<TimedHoldCost> = buckets.iter().copied().chain(further).map(of).collect();
                    (TimedHold::settle(*owner, &costs), Plan::default())
                }
                Act::Report { thread, bucket, held } => {
                    let sequence = sequences.entry(*thread).or_insert(4);
                    *sequence += 1;
                    let sum = sums.entry((*thread, *bucket)).or_default();
                    let from = *sum;
                    *sum += held * 100;
                    let [from, to] = [from, *sum].map(|sum| Cost::from_thousandths(if *bucket < 6 { 0 } else { sum }));
                    let report = BucketReport {
                        bucket: key(*bucket),
                        limit: limit(*bucket, 5),
                        held: Cost::from_tokens(*held),
                        asked: Cost::default(),
                        settled: SettledSums { from, to, ..SettledSums::default() },
                    };
                    let (owner, sequence) = (Owner(*thread), *sequence);
                    (holds::Call { owner, sequence, life: LIFE, reports: vec![report] }, Plan::default())
                }
            };
            let is_in_period = |limit: &Algorithm| !is_outside(limit, at, at);
            prop_assert!(call.reports.iter().all(|report| is_in_period(&report.limit)));
            let encoded = codec::Call::with_reports(Some(&call), [&plan]);
            let reply = script.raw_reply(&encoded, at, at);
            let reply = encoded.settle(&reply).unwrap_or_else(|error| panic!("{error:?}: {act:?}"));
            if plan.is_empty() {
                let results: Vec<_> = call.reports.iter().map(|report| model.report(&call, report, at)).collect();
                prop_assert_eq!(&reply.reports, &results, "{:?}", &act);
                if matches!(act, Act::Settle { .. }) {
                    let count = |one| results.iter().filter(|result| **result == one).count();
                    settled += count(ReportResult::Accepted);
                    repeated += count(ReportResult::SettledBefore);
                    ended += count(ReportResult::Old);
                }
            } else {
                let expected = model.take(&call, &plan, at);
                let found = reply.settlements[0].as_ref().map(|settlement| settlement.is_granted());
                prop_assert_eq!(found, expected, "{:?}", &act);
                granted += usize::from(expected == Some(true));
                refused += usize::from(expected == Some(false));
            }
            for report in &call.reports {
                let stored = script.stored(&report.bucket);
                let expected = model.state(&report.bucket).map(<[u64]>::to_vec);
                prop_assert_eq!(stored, expected, "{:?} of {:?}", report, &act);
            }
            counts.set([granted, refused, settled, repeated, ended]);
        }
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
    let [granted, refused, settled, repeated, ended] = counts.get();
    assert!(
        granted > 500 && refused > 200 && settled > 200 && repeated > 50 && ended > 500,
        "{granted} granted, {refused} refused, {settled} settled, {repeated} repeated, {ended} ended"
    );
}
