//! The Rust step, the memory store and the script on a real redis-server have equal results, bit for bit.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use base::time::{Clock, Micros, Timestamp};
use ledger::algorithm::budget::SpentLimit;
use ledger::algorithm::lease::{HomeAnswer, HomeRaise, PurseAct, PurseReply, RegionId, Word, WordId, WordKind};
use ledger::algorithm::raise::{Raise, RaiseId};
use ledger::algorithm::token_bucket::{Rate, TokenBucket};
use ledger::algorithm::{Algorithm, AlgorithmKind, Entry, State};
use ledger::bucket_key::{BucketKey, LimitTag};
use ledger::charge::{Charge, ChargePurpose, Plan, Settlement, settle};
use ledger::cost::Cost;
use ledger::outcome::Verdict;
use ledger::store_time::StoreTime;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use stores::memory::{Memory, Settings};
use stores::redis::script;

use super::random_algorithms::{algorithm, with_ban};
use crate::support::charge::{plan_of, spend};
use crate::support::{CompleteReply, Redis, TakeScript, short_or_long};

const START: u64 = 1_763_672_400_123_456;

fn cost() -> impl Strategy<Value = Cost> {
    prop_oneof![Just(1000), 1u64..10_000, 1u64..120_000].prop_map(Cost::from_thousandths)
}

/// A request for up to three of eight buckets, each under one of several sets of numbers, sometimes under two.
#[derive(Clone, Debug)]
struct RandomRequest {
    enforced: Vec<(u8, usize, Cost)>,
    /// Charges that only check their bucket.
    checked: Vec<(u8, usize, Cost)>,
    shadow: Vec<(u8, usize, Cost)>,
    times: usize,
}

fn request() -> impl Strategy<Value = RandomRequest> {
    let charges = |most: usize| {
        let bucket = prop::collection::btree_map(0u8..8, (0usize..4, cost()), 0..=most);
        bucket.prop_map(|map| map.into_iter().map(|(bucket, (numbers, cost))| (bucket, numbers, cost)).collect())
    };
    let again =
        prop::option::weighted(0.3, (any::<prop::sample::Index>(), any::<prop::sample::Index>(), 0usize..4, cost()));
    let checked = prop_oneof![3 => Just(Vec::new()), 1 => charges(2)];
    (charges(3), checked, charges(2), again, prop_oneof![3 => Just(1), 1 => 2usize..9]).prop_map(
        |(mut enforced, checked, shadow, again, times): (Vec<(u8, usize, Cost)>, _, _, _, _)| {
            if let Some((which, at, numbers, cost)) = again.filter(|_| !enforced.is_empty()) {
                let (bucket, ..) = *which.get(&enforced);
                enforced.insert(at.index(enforced.len() + 1), (bucket, numbers, cost));
            }
            RandomRequest { enforced, checked, shadow, times }
        },
    )
}

/// A raise of one of eight buckets: its bucket, a set of numbers, its id, its tokens, and after how many microseconds it ends.
type RandomRaise = (u8, usize, u64, u64, u64);

fn raise() -> impl Strategy<Value = RandomRaise> {
    let tokens = prop_oneof![4 => 1u64..100, 1 => 1u64..9_000_000_000_000];
    (0u8..8, 0usize..4, 0u64..6, tokens, prop_oneof![1u64..5_000_000, Just(100_000_000_000)])
}

/// A step of the clock, which may go backwards, sometimes a raise, and some requests.
type RandomCall = (i64, Option<RandomRaise>, Vec<RandomRequest>);

/// Some algorithms, and calls.
fn history() -> impl Strategy<Value = (Vec<Algorithm>, Vec<RandomCall>)> {
    let step = prop_oneof![Just(0), 0i64..2_000, -3_000_000i64..3_000_000, 0i64..4_000_000_000, Just(90_000_000_000)];
    let raise = prop::option::weighted(0.3, raise());
    let calls = prop::collection::vec((step, raise, prop::collection::vec(request(), 1..6)), 1..30);
    (prop::collection::vec(algorithm(), 4), calls)
}

fn plan(request: &RandomRequest, numbers: &[Algorithm]) -> Plan {
    let charge = |(bucket, which, cost): &(u8, usize, Cost), shadow: u8| {
        // A bucket has one algorithm.
        let algorithm = numbers[*which];
        spend(BucketKey([bucket + shadow + of_algorithm(algorithm.kind()); 16]), algorithm, *cost)
    };
    // Buckets of their own, as shadows have.
    let shadow = request.shadow.iter().map(|limit| charge(limit, 100)).collect();
    let mut plan = Plan { enforced: Default::default(), shadow };
    let mut first = HashMap::new();
    let checked = request.checked.iter().map(|limit| (limit, ChargePurpose::Check));
    for (limit, purpose) in request.enforced.iter().map(|limit| (limit, ChargePurpose::Spend)).chain(checked) {
        let mut charge = Charge { purpose, ..charge(limit, 0) };
        let known = *first.entry(charge.key).or_insert(charge.algorithm);
        // All that charge one bucket have its window.
        let limit = charge.algorithm.ceiling().whole();
        match known {
            Algorithm::FixedWindow(known) => {
                charge.algorithm = Algorithm::FixedWindow(known.with_limit(limit).unwrap());
            }
            Algorithm::SlidingLog(known) => charge.algorithm = Algorithm::SlidingLog(known.with_limit(limit).unwrap()),
            Algorithm::SlidingWindow(known) => {
                charge.algorithm = Algorithm::SlidingWindow(known.with_limit(limit).unwrap());
            }
            Algorithm::Budget(known) => {
                if let SpentLimit::FixedWindow(known) = known.limit() {
                    charge.algorithm = with_ban(SpentLimit::FixedWindow(known.with_limit(limit).unwrap()));
                }
            }
            Algorithm::Home(known) if known.limit().token_bucket().is_none() => {
                charge.algorithm = Algorithm::Home(known)
            }
            Algorithm::Purse(known) if known.limit().token_bucket().is_none() => {
                charge.algorithm = Algorithm::Purse(known)
            }
            Algorithm::TokenBucket(_)
            | Algorithm::LeakyBucket(_)
            | Algorithm::Concurrency(_)
            | Algorithm::Purse(_)
            | Algorithm::Home(_) => {}
        }
        match purpose {
            ChargePurpose::Spend => plan.enforce(charge),
            ChargePurpose::Check => plan.enforced.push(charge),
        }
    }
    plan
}

const KINDS: [AlgorithmKind; 12] = [
    AlgorithmKind::TokenBucket,
    AlgorithmKind::FixedWindow,
    AlgorithmKind::SlidingLog,
    AlgorithmKind::SlidingWindow,
    AlgorithmKind::LeakyBucket,
    AlgorithmKind::Concurrency,
    AlgorithmKind::TokenBucketWithBan,
    AlgorithmKind::FixedWindowWithBan,
    AlgorithmKind::TokenPurse,
    AlgorithmKind::WindowPurse,
    AlgorithmKind::TokenHome,
    AlgorithmKind::WindowHome,
];

/// Returns the first bucket number of an algorithm.
fn of_algorithm(kind: AlgorithmKind) -> u8 {
    let index = KINDS.iter().position(|other| *other == kind).unwrap();
    8 * u8::try_from(index).unwrap()
}

/// The step itself, with a map of states.
#[derive(Default)]
struct Model(HashMap<BucketKey, State>);

impl Model {
    /// Raises the limit of a bucket. Returns its new state; `None` if it cannot be raised.
    fn raise(&mut self, key: BucketKey, limit: &Algorithm, raise: Raise, now: Timestamp) -> Option<State> {
        let state = limit.set_raise(self.0.get(&key).map(|state| &state[..]), raise, now).ok()??.state;
        self.0.insert(key, state.clone());
        Some(state)
    }

    /// Fills a purse with these tokens, or lets a region lease them from a home. Returns the new entry of the bucket; `None` if it
    /// is neither, or does not change.
    fn lease(
        &mut self,
        key: BucketKey,
        limit: &Algorithm,
        tokens: u64,
        length: Micros,
        now: Timestamp,
    ) -> Option<Entry> {
        let state = self.0.get(&key).cloned();
        let (number, amount) = (now.0 / 1000, Cost::from_tokens(tokens));
        let mut id = WordId { number, tag: tokens };
        let entry = match limit {
            Algorithm::Purse(_) => {
                let (marked, reply) =
                    limit.act(state.as_deref(), PurseAct::Mark { cost: Cost::ONE, tag: tokens }, now)?;
                let state = marked.map(|entry| entry.state).or(state);
                if let PurseReply::Send(marked) = reply {
                    id = marked.word.id;
                }
                let answer = HomeAnswer::Answer {
                    id,
                    kind: WordKind::Lease,
                    given: amount,
                    period: Timestamp(1),
                    remains: length,
                    again_after: Micros(tokens),
                    rest: Cost::ONE,
                    raise: HomeRaise::default(),
                };
                limit.act(state.as_deref(), PurseAct::Credit { answer, mark: now, wanted: Cost::ONE }, now)?.0?
            }
            Algorithm::Home(_) => {
                let (least, left) = (Cost::ONE, Cost::from_tokens(tokens / 2));
                let word = Word { id, kind: WordKind::Lease, amount, least, left, period: Timestamp(0) };
                limit.hear(state.as_deref(), RegionId(tokens % 3), &word, now)?.0?
            }
            _ => return None,
        };
        self.0.insert(key, entry.state.clone());
        Some(entry)
    }

    fn take(&mut self, plan: &Plan, now: Timestamp) -> Settlement {
        let states: Vec<_> = plan.charges().map(|charge| self.0.get(&charge.key).cloned()).collect();
        let (settlement, entries) = settle(plan, &states, now);
        for (charge, entry) in plan.charges().zip(entries) {
            if let Some(entry) = entry {
                self.0.insert(charge.key, entry.state);
            }
        }
        settlement
    }
}

#[test]
fn all_three_implementations_agree_on_answers_and_state() {
    let redis = Redis::start();
    let take_script = RefCell::new(TakeScript::new(&redis));
    let (granted, refused, begun, raised) = (Cell::new(0), Cell::new(0), Cell::new(0), Cell::new(0));
    let (leased, paid) = (Cell::new(0), Cell::new(0));
    let mut runner = TestRunner::new(ProptestConfig {
        cases: short_or_long(400, 20_000),
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let result = runner.run(&history(), |(numbers, calls)| {
        let mut take_script = take_script.borrow_mut();
        redis.command::<()>(&["FLUSHALL"]);
        let mut now = START;
        let clock = Clock::manual(Timestamp(now));
        let memory = Memory::new(&Settings { max_buckets: 4096, ..Settings::default() }, clock.clone());
        let mut model = Model::default();
        for (step, raise, requests) in calls {
            now = now.saturating_add_signed(step);
            clock.set(Timestamp(now));
            if let Some((bucket, which, id, tokens, length)) = raise {
                let key = BucketKey([bucket + of_algorithm(numbers[which].kind()); 16]);
                let end = Timestamp(now).plus(Micros(length));
                let raise = Raise { id: RaiseId(id), amount: Cost::from_tokens(tokens), end };
                if let Some(state) = model.raise(key, &numbers[which], raise, Timestamp(now)) {
                    let entry =
                        |state: Option<&[u64]>, time: StoreTime| numbers[which].set_raise(state, raise, time.now);
                    memory.change(&key, LimitTag::default(), |state, time| entry(state, time).unwrap());
                    let bytes: Vec<u8> = state.iter().flat_map(|word| word.to_le_bytes()).collect();
                    take_script.tamper(&key, "SET", &[&bytes]);
                    raised.set(raised.get() + 1);
                }
                let length = Micros(length.min(100_000_000));
                if let Some(entry) = model.lease(key, &numbers[which], tokens, length, Timestamp(now)) {
                    let bytes: Vec<u8> = entry.state.iter().flat_map(|word| word.to_le_bytes()).collect();
                    memory.change(&key, LimitTag::default(), |_, _| Some(entry));
                    take_script.tamper(&key, "SET", &[&bytes]);
                    leased.set(leased.get() + 1);
                }
            }
            let plans: Vec<Plan> = requests
                .iter()
                .flat_map(|request| std::iter::repeat_with(|| plan(request, &numbers)).take(request.times))
                .collect();
            let reply = take_script.take(&plans, Timestamp(now));
            prop_assert_eq!(reply.now, Timestamp(now));
            prop_assert_eq!(reply.healed, 0);
            for (plan, settlement) in plans.iter().zip(&reply.settlements) {
                prop_assert_eq!(settlement, &model.take(plan, Timestamp(now)));
                prop_assert_eq!(settlement, &memory.take(plan).settlement);
                let count = if settlement.is_granted() { &granted } else { &refused };
                count.set(count.get() + 1);
                let is_paid = |charge: &Charge| charge.algorithm.kind().is_purse() && settlement.is_granted();
                paid.set(paid.get() + plan.enforced.iter().filter(|charge| is_paid(charge)).count());
                let outcomes = settlement.enforced.iter().chain(&settlement.shadow);
                begun.set(begun.get() + outcomes.filter(|one| one.ban.is_some_and(|ban| ban.begins)).count());
            }
            let all = KINDS.into_iter().map(of_algorithm).flat_map(|first| first..first + 8);
            for bucket in all.flat_map(|bucket| [bucket, bucket + 100]) {
                let key = BucketKey([bucket; 16]);
                let expected = model.0.get(&key).map(|state| state.to_vec());
                prop_assert_eq!(take_script.stored(&key), expected, "bucket {}", bucket);
            }
        }
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    // Otherwise the above says little.
    assert!(granted.get() > 2_000 && refused.get() > 2_000, "{granted:?} granted, {refused:?} refused");
    assert!(begun.get() > 200, "{begun:?} bans");
    assert!(raised.get() > 300, "{raised:?} raises");
    assert!(leased.get() > 100 && paid.get() > 10, "{leased:?} leases, {paid:?} payments from purses");
}

pub fn per_second(amount: u64, burst: u64) -> Algorithm {
    let rate = Rate { amount: Cost::from_tokens(amount), period: Micros(1_000_000) };
    Algorithm::TokenBucket(TokenBucket::new(rate, burst).unwrap())
}

pub fn one(key: BucketKey, algorithm: Algorithm) -> Plan {
    plan_of(spend(key, algorithm, Cost::ONE))
}

#[test]
fn one_bucket_under_two_sets_of_numbers_in_one_call_is_still_one_bucket() {
    let redis = Redis::start();
    let mut take_script = TakeScript::new(&redis);
    let key = BucketKey([9; 16]);
    let plans = [
        one(key, per_second(1, 3)),
        one(key, per_second(7, 2)),
        one(key, per_second(1, 3)),
        one(key, per_second(1, 3)),
    ];
    let reply = take_script.take(&plans, Timestamp(START));
    let left: Vec<_> = reply
        .settlements
        .iter()
        .map(|settlement| (settlement.verdict, settlement.enforced[0].remaining.whole()))
        .collect();
    assert_eq!(left, [(Verdict::Allow, 2), (Verdict::Allow, 0), (Verdict::Allow, 0), (Verdict::Deny, 0)]);
}

/// The reply contains the digest of a twin instead of a bucket's value. The step has the same result from the digest.
#[test]
fn a_digest_stands_for_the_value() {
    let redis = Redis::start();
    let undo = "  -- Undoes a charge, less what may have been refilled since";
    // Another value of the same worth: in half the units, so that it cannot be the one that is stored.
    let digest = "  digest = function(limit, bucket, value)
    local spent, unit, since = struct.unpack('<I8I8I8', value)
    return struct.pack('<I8I8I8', spent * 2, unit * 2, since)
  end,
";
    let script = script::take();
    // The twin of a token bucket is also part of the twins of budgets, with and without resets, of all of these with bans, of homes, and of the
    // shares of purses.
    assert_eq!(script.matches(undo).count(), 8);
    let mut take_script = TakeScript::with(&redis, &script.replace(undo, &format!("{digest}{undo}")));
    let (key, bucket) = (BucketKey([9; 16]), per_second(1, 3));
    let now = |tenth: u64| Timestamp(START + tenth * 100_000);
    let left = |taken: CompleteReply| (taken.settlements[0].verdict, taken.settlements[0].enforced[0].remaining);
    let thousandths = Cost::from_thousandths;
    assert_eq!(left(take_script.take(&[one(key, bucket)], now(0))), (Verdict::Allow, thousandths(2000)));
    assert_eq!(left(take_script.take(&[one(key, bucket)], now(5))), (Verdict::Allow, thousandths(1500)));
    assert_eq!(left(take_script.take(&[one(key, bucket)], now(6))), (Verdict::Allow, thousandths(600)));
    assert_eq!(left(take_script.take(&[one(key, bucket)], now(7))), (Verdict::Deny, thousandths(700)));
    assert_eq!(take_script.stored(&key).unwrap()[1], 1000);
}

#[test]
fn a_refused_request_writes_nothing() {
    let redis = Redis::start();
    let mut take_script = TakeScript::new(&redis);
    let (full, empty) = (BucketKey([1; 16]), BucketKey([2; 16]));
    take_script.take(&[one(empty, per_second(1, 1))], Timestamp(START));
    let writes = || -> String { redis.command(&["INFO", "commandstats"]) };
    let sets = |stats: String| stats.lines().find(|line| line.starts_with("cmdstat_set:")).map(str::to_owned);
    let before = sets(writes());
    let mut both = one(full, per_second(1, 1));
    both.enforced.extend(one(empty, per_second(1, 1)).enforced);
    for _ in 0..10 {
        assert_eq!(take_script.take(&[both.clone()], Timestamp(START)).settlements[0].verdict, Verdict::Deny);
    }
    assert_eq!(sets(writes()), before);
    assert_eq!(take_script.stored(&full), None);
}
