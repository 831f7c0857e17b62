//! The Rust step, the memory store and the script on a real redis-server have equal results, bit for bit.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use base::time::{Clock, Micros, Timestamp};
use ledger::algorithm::ban::Ban;
use ledger::algorithm::budget::{Budget, SpentLimit};
use ledger::algorithm::fixed_window::{FixedWindow, Window};
use ledger::algorithm::leaky_bucket::{self, LeakyBucket};
use ledger::algorithm::sliding_log::SlidingLog;
use ledger::algorithm::sliding_window::SlidingWindow;
use ledger::algorithm::token_bucket::{Rate, TokenBucket};
use ledger::algorithm::{Algorithm, AlgorithmKind, RequestNumbers, State};
use ledger::bucket_key::BucketKey;
use ledger::calendar::{Anchor, Calendar, CalendarUnit, TimeOfDay, Zone};
use ledger::charge::{Charge, ChargePurpose, Plan, Settlement, settle};
use ledger::cost::Cost;
use ledger::outcome::Verdict;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use stores::memory::{Memory, Settings};
use stores::redis::script;

use crate::support::charge::{plan_of, spend};
use crate::support::{CompleteReply, Redis, TakeScript, short_or_long};

const START: u64 = 1_763_672_400_123_456;

pub fn algorithm() -> impl Strategy<Value = Algorithm> {
    prop_oneof![
        2 => token_bucket().boxed(),
        2 => numbers_of_requests().boxed(),
        1 => fixed_window().boxed(),
        2 => sliding_log().boxed(),
        1 => sliding_window().boxed(),
        1 => leaky_bucket().boxed(),
        2 => banning().boxed(),
    ]
}

/// Token buckets and fixed windows with bans, some shorter and some longer than a step of the clock.
fn banning() -> impl Strategy<Value = Algorithm> {
    let limit = prop_oneof![token_bucket(), fixed_window()].prop_map(|algorithm| match algorithm {
        Algorithm::TokenBucket(bucket) => with_ban(SpentLimit::TokenBucket(bucket)),
        Algorithm::FixedWindow(window) => with_ban(SpentLimit::FixedWindow(window)),
        other => other,
    });
    // Some requests are those of another proxy.
    (limit, any::<bool>()).prop_map(|(limit, begins)| if begins { limit } else { limit.beginning_no_ban().unwrap() })
}

fn with_ban(limit: SpentLimit) -> Algorithm {
    let ban = Ban::new(&[Micros(1_000), Micros(2_000_000), Micros(60_000_000)], Micros(100_000_000)).unwrap();
    Algorithm::Budget(Budget::banning(limit, ban))
}

/// Logs with few and with many grants, and windows that are short and long in comparison with the steps of the clock.
fn sliding_log() -> impl Strategy<Value = Algorithm> {
    let window = prop::sample::select(vec![1_000_000, 1_234_567, 3_000_000, 3_600_000_000, 86_400_000_000]);
    let limit = prop_oneof![1u64..100, 1u64..10_000];
    (limit, window).prop_map(|(limit, window)| Algorithm::SlidingLog(SlidingLog::new(limit, Micros(window)).unwrap()))
}

/// Queues that are limited by their places, by the wait of a request, or by both, with costs below and above one place.
fn leaky_bucket() -> impl Strategy<Value = Algorithm> {
    let waits = prop_oneof![1u64..5_000, 1u64..3_600_000];
    let patience = prop_oneof![2 => Just(u64::MAX), 1 => 0u64..5_000];
    (rate(), 0u32..80, 0u32..20, waits, patience).prop_filter_map("fits", |(rate, queue, delay_after, wait, most)| {
        let max_wait = Micros(wait * 1000);
        let bucket = LeakyBucket::new(leaky_bucket::Settings { rate, queue, max_wait, delay_after }).ok()?;
        Some(Algorithm::LeakyBucket(bucket.within(Micros(most.saturating_mul(1000)))))
    })
}

/// Windows from the epoch, from a first request, and of calendars.
fn fixed_window() -> impl Strategy<Value = Algorithm> {
    let zones = ["UTC", "Europe/Berlin", "Asia/Kathmandu", "America/Havana"];
    let calendar = (prop::sample::select(CalendarUnit::ALL.to_vec()), prop::sample::select(zones.to_vec()));
    let calendar = calendar.prop_map(|(unit, zone)| {
        Window::Calendar(Calendar::new(Anchor::default_of(unit), TimeOfDay::default(), Zone::parse(zone).unwrap()))
    });
    let length = prop::sample::select(vec![1_000_000, 60_000_000, 1_234_567, 3_600_000_000, 86_400_000_000]);
    let length = length.prop_map(Micros);
    let window = prop_oneof![length.clone().prop_map(Window::Epoch), length.prop_map(Window::FirstRequest), calendar];
    (1u64..100, window).prop_map(|(limit, window)| Algorithm::FixedWindow(FixedWindow::new(limit, window).unwrap()))
}

/// Windows that are a multiple of their steps, and windows that are not.
fn sliding_window() -> impl Strategy<Value = Algorithm> {
    let windows = prop::sample::select(vec![1_000_000, 10_000_000, 12_345_678, 3_600_000_000, 2_678_400_000_000]);
    let limits = prop_oneof![3 => 1u64..100, 1 => 1u64..9_007_199_254_740];
    (limits, windows, 2u64..=60).prop_map(|(limit, window, steps)| {
        Algorithm::SlidingWindow(SlidingWindow::new(limit, Micros(window), steps).unwrap())
    })
}

/// Rates that divide evenly, and rates that do not. They include the largest units and refills.
fn rate() -> impl Strategy<Value = Rate> {
    let periods = prop::sample::select(vec![1_000_000, 60_000_000, 900_000_000, 3_600_000_000, 86_400_000_000]);
    let amounts = prop_oneof![1u64..5_000, Just(997_123), Just(1_000_000), 1u64..1_000_000_000];
    (amounts, periods)
        .prop_map(|(amount, period)| Rate { amount: Cost::from_thousandths(amount), period: Micros(period) })
}

fn token_bucket() -> impl Strategy<Value = Algorithm> {
    (rate(), 1u64..100)
        .prop_filter_map("fits", |(rate, burst)| TokenBucket::new(rate, burst).ok().map(Algorithm::TokenBucket))
}

/// Numbers that a request brings, all in one unit. With 0, no request can be granted.
fn numbers_of_requests() -> impl Strategy<Value = Algorithm> {
    let rate = prop_oneof![1u64..5_000, Just(0), Just(997_123), Just(1)].prop_map(Cost::from_thousandths);
    let burst = prop_oneof![6 => 1u64..100, 1 => Just(0)].prop_map(Cost::from_tokens);
    (rate, burst).prop_map(|(rate, burst)| {
        let rates = TokenBucket::with_rates_up_to(Cost::from_tokens(1_000), 1).unwrap();
        let numbers = RequestNumbers { rate: Some(rate), ceiling: Some(burst) };
        Algorithm::TokenBucket(rates.for_request(numbers, Cost::default()))
    })
}

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

/// Calls: each has a step of the clock, which may go backwards, and some requests.
fn history() -> impl Strategy<Value = (Vec<Algorithm>, Vec<(i64, Vec<RandomRequest>)>)> {
    let step = prop_oneof![Just(0), 0i64..2_000, -3_000_000i64..3_000_000, 0i64..4_000_000_000, Just(90_000_000_000)];
    let calls = prop::collection::vec((step, prop::collection::vec(request(), 1..6)), 1..30);
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
            Algorithm::TokenBucket(_) | Algorithm::LeakyBucket(_) | Algorithm::Concurrency(_) => {}
        }
        match purpose {
            ChargePurpose::Spend => plan.enforce(charge),
            ChargePurpose::Check => plan.enforced.push(charge),
        }
    }
    plan
}

const KINDS: [AlgorithmKind; 8] = [
    AlgorithmKind::TokenBucket,
    AlgorithmKind::FixedWindow,
    AlgorithmKind::SlidingLog,
    AlgorithmKind::SlidingWindow,
    AlgorithmKind::LeakyBucket,
    AlgorithmKind::Concurrency,
    AlgorithmKind::TokenBucketWithBan,
    AlgorithmKind::FixedWindowWithBan,
];

/// Returns the first bucket number of an algorithm.
fn of_algorithm(kind: AlgorithmKind) -> u8 {
    let index = KINDS.iter().position(|other| *other == kind).unwrap();
    10 * u8::try_from(index).unwrap()
}

/// The step itself, with a map of states.
#[derive(Default)]
struct Model(HashMap<BucketKey, State>);

impl Model {
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
    let (granted, refused, begun) = (Cell::new(0), Cell::new(0), Cell::new(0));
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
        for (step, requests) in calls {
            now = now.saturating_add_signed(step);
            clock.set(Timestamp(now));
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
}

fn per_second(amount: u64, burst: u64) -> Algorithm {
    let rate = Rate { amount: Cost::from_tokens(amount), period: Micros(1_000_000) };
    Algorithm::TokenBucket(TokenBucket::new(rate, burst).unwrap())
}

fn one(key: BucketKey, algorithm: Algorithm) -> Plan {
    plan_of(spend(key, algorithm, Cost::ONE))
}

#[test]
fn an_invalid_state_heals_to_an_empty_bucket_and_never_to_a_full_one() {
    let redis = Redis::start();
    let mut take_script = TakeScript::new(&redis);
    let (key, bucket, now) = (BucketKey([7; 16]), per_second(1, 5), Timestamp(START));
    let words = |words: [u64; 3]| words.map(u64::to_le_bytes).concat();
    let impossible: [(&str, &[&[u8]]); 13] = [
        ("SADD", &[b"member"]),
        ("HSET", &[b"field", b"value"]),
        ("LPUSH", &[b"value"]),
        ("SET", &[b""]),
        ("SET", &[b"12"]),
        ("SET", &[b"twenty-four bytes, text."]),
        ("SET", &[&[0xff; 24]]),
        ("SET", &[&[0; 8]]),
        ("SET", &[&[0; 32]]),
        ("SET", &[&[0; 6000]]),
        ("SET", &[&words([0, 0, START])]),
        ("SET", &[&words([1 << 53, 1, START])]),
        ("SET", &[&words([0, 1, 1 << 53])]),
    ];
    for (command, rest) in impossible {
        take_script.tamper(&key, command, rest);
        let refused = take_script.take(&[one(key, bucket)], now);
        assert_eq!(refused.healed, 1, "{command} {rest:?}");
        assert_eq!(refused.settlements[0].verdict, Verdict::Deny, "{command} {rest:?}");
        assert_eq!(refused.settlements[0].enforced[0].retry_after, Micros(1_000_000));
        // It was written, although the request was refused: it refills from now on.
        let second = Timestamp(START + 1_000_000);
        let granted = take_script.take(&[one(key, bucket), one(key, bucket)], second);
        assert_eq!(granted.healed, 0, "{command} {rest:?}");
        let verdicts: Vec<_> = granted.settlements.iter().map(|settlement| settlement.verdict).collect();
        assert_eq!(verdicts, [Verdict::Allow, Verdict::Deny], "{command} {rest:?}");
    }
    // At the very edge of what can be.
    take_script.tamper(&key, "SET", &[&words([0, 1, (1 << 53) - 1])]);
    assert_eq!(take_script.take(&[one(key, bucket)], now).healed, 0);
}

#[test]
fn an_invalid_sliding_window_heals_to_one_that_has_just_granted_everything() {
    let redis = Redis::start();
    let mut take_script = TakeScript::new(&redis);
    let (key, now) = (BucketKey([8; 16]), Timestamp(START));
    let window = Algorithm::SlidingWindow(SlidingWindow::new(5, Micros(10_000_000), 10).unwrap());
    // How many bytes a number has and how many there are, the length of a step, the latest step, and one number.
    let packed = |width: u8, count: u8, length: u64, latest: u64, amount: u64| {
        let six = |number: u64| number.to_le_bytes()[..6].to_vec();
        [vec![width, count], six(length), six(latest), amount.to_le_bytes().to_vec(), vec![0; 2]].concat()
    };
    let latest = START / 1_000_000;
    let impossible = [
        vec![],
        vec![0; 24],
        vec![0xff; 24],
        b"another value of 24 byte".to_vec(),
        packed(0, 1, 1_000_000, latest, 0),
        packed(8, 1, 1_000_000, latest, 1000),
        packed(7, 0, 1_000_000, latest, 0),
        packed(7, 2, 1_000_000, latest, 1000),
        packed(7, 1, 0, latest, 1000),
        packed(7, 1, 1_339_200_000_001, 1, 1000),
        packed(7, 1, 1_339_200_000_000, 6_726, 1000),
        packed(1, 3, 1_000_000, 1, 1),
        packed(7, 1, 1_000_000, latest, 1 << 53),
        [packed(7, 1, 1_000_000, latest, 1000), vec![0; 8]].concat(),
        packed(7, 1, 1_000_000, latest, 1000)[..23].to_vec(),
    ];
    for value in impossible {
        take_script.tamper(&key, "SET", &[&value]);
        let refused = take_script.take(&[one(key, window)], now);
        assert_eq!(refused.healed, 1, "{value:?}");
        // START is 123456 us into its step.
        let outcome = refused.settlements[0].enforced[0];
        assert_eq!((outcome.verdict, outcome.retry_after), (Verdict::Deny, Micros(10_876_544)), "{value:?}");
        let later = Timestamp(START + 10_876_544);
        let granted = take_script.take(&[one(key, window)], later);
        assert_eq!((granted.healed, granted.settlements[0].verdict), (0, Verdict::Allow), "{value:?}");
    }
    take_script.tamper(&key, "SET", &[&packed(7, 1, 1_000_000, latest, 1000)]);
    let granted = take_script.take(&[one(key, window)], now);
    assert_eq!((granted.healed, granted.settlements[0].enforced[0].remaining.whole()), (0, 3));
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
    let undo = "  -- Undoes a charge, less what may have come back since";
    // Another value of the same worth: in half the units, so that it cannot be the one that is stored.
    let digest = "  digest = function(limit, bucket, value)
    local spent, unit, since = struct.unpack('<I8I8I8', value)
    return struct.pack('<I8I8I8', spent * 2, unit * 2, since)
  end,
";
    let script = script::take();
    // The twin of a token bucket is also part of the twins of a budget and of both with bans.
    assert_eq!(script.matches(undo).count(), 4);
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
