//! Compares limits that requests hold something of, in Rust and in Lua: slots and budgets, with reports, asks, settled sums,
//! stored values, and the reply's digests.

use base::time::{Micros, Timestamp};
use ledger::algorithm::budget::Budget;
use ledger::algorithm::concurrency::Concurrency;
use ledger::algorithm::fixed_window::{FixedWindow, Window};
use ledger::algorithm::raise::{self, Raise, RaiseId};
use ledger::algorithm::token_bucket::{Rate, TokenBucket};
use ledger::algorithm::{Algorithm, ChargeResult, State, TWINS};
use ledger::cost::Cost;
use ledger::holds::{LIFE, Owner, Report, Resets, SettledSums};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use crate::support::{Redis, short_or_long};

const START: u64 = 1_763_672_400_123_456;

/// Calls the twin as `take.lua` does, with one report before the asks. ARGV: the numbers of the limit, the time, the owner, its
/// sequence, what it holds, how often it asks and for how much, whether the bucket is closed and opened between the report and the
/// asks, as for a second limit, the sums that the owner has settled, and its resets: known, all, and the sum at the last.
const FRAME: &str = "
local now = tonumber(ARGV[2])
local limit = twin.new(ARGV[1], 1, now)
limit.twin = twin
local function open(value)
  local bucket = twin.open(limit, value, now)
  if bucket.invalid then bucket = make_raises().open(limit, value, now) or bucket end
  return bucket
end
local function close(bucket)
  local value, kept_until = twin.close(bucket.limit, bucket)
  if bucket.raises then return bucket.raises .. value, math.max(kept_until, bucket.raised_until) end
  return value, kept_until
end
local bucket = open(redis.call('GET', KEYS[1]))
local healed = bucket.invalid and 1 or 0
if bucket.invalid then
  bucket.found, bucket.changed = close(bucket), true
end
local first, accepted, granted = bucket, 0, 0
local said = {}
for index = 4, 13 do said[index] = tonumber(ARGV[index]) end
if twin.accept(limit, bucket, ARGV[3], said[4], said[5], said[9], said[10], said[11], said[12], said[13]) then accepted = 1 end
if ARGV[8] == 'reopened' and bucket.changed then bucket = open((close(bucket))) end
if accepted == 1 then
  local amount = tonumber(ARGV[7])
  granted = math.max(math.min(tonumber(ARGV[6]), twin.most(bucket.limit, bucket, amount)), 0)
  if granted > 0 then twin.charge(limit, bucket, granted * amount) end
end
local kept = 0
if first.changed then
  local value, kept_until = close(bucket)
  redis.call('SET', KEYS[1], value)
  kept = kept_until - now
end
local digest = first.found
if digest and not first.raises then
  digest = twin.digest(limit, first, digest)
elseif digest and first.rest ~= '' then
  digest = string.sub(digest, 1, #digest - #first.rest) .. twin.digest(first.limit, first, first.rest)
end
return {healed, accepted, granted, kept, digest, redis.call('GET', KEYS[1])}
";

type Reply = (u64, u64, u64, u64, Option<Vec<u8>>, Option<Vec<u8>>);

/// One call for one bucket.
#[derive(Clone, Debug)]
struct Act {
    step: i64,
    /// A value that replaces the stored value before the call.
    tampered: Option<Vec<u64>>,
    limit: u64,
    owner: u64,
    sequence: i64,
    held: u64,
    asks: u64,
    /// The amount of each ask, in thousandths.
    amount: u64,
    is_reopened: bool,
    /// What the owner has settled since its last call, in thousandths, and how much of its sum it does not know to be accepted.
    settled: u64,
    unknown: u64,
    /// How often the owner has reset the bucket since its last call, and how many of its resets it does not know to be
    /// accepted.
    resets: u64,
    unknown_resets: u64,
    /// Whether the owner has forgotten its sum, and begins again at 0.
    forgets: bool,
    /// A raise that the bucket gets before the call: its id, its tokens, and after how many microseconds it ends.
    raise: Option<(u64, u64, u64)>,
}

/// What an owner has said in its last call.
#[derive(Clone, Copy, Default)]
struct Said {
    sequence: u64,
    sum: u64,
    resets: u64,
    sum_at_reset: u64,
}

fn act() -> impl Strategy<Value = Act> {
    let step = prop_oneof![
        3 => Just(0), 4 => 0i64..3_000_000, 2 => 6_999_998i64..7_000_003, 1 => 590_000_000i64..610_000_000,
        2 => -12_000_000i64..0, 1 => -4_000_000_000i64..0,
    ];
    let number = prop_oneof![0u64..4, 256u64..260, START..START + 9_000_000, 0u64..1 << 53];
    let tampered = prop::option::weighted(0.03, prop::collection::vec(number, 0..13));
    let owner = prop_oneof![1u64..5, Just(0x0101_0101_0101_0101), Just(u64::MAX)];
    let held = prop_oneof![4 => 0u64..4, 1 => Just(1 << 40)];
    let amount = prop_oneof![4 => Just(1000u64), 1 => Just(0), 1 => 1u64..4000];
    let settled = prop_oneof![2 => Just(0u64), 2 => 0u64..3000, 1 => Just(1 << 52)];
    let calls = (1u64..12, owner, -1i64..3, held, 0u64..4, any::<bool>());
    let forgets = prop::bool::weighted(0.1);
    let resets = (prop_oneof![4 => Just(0u64), 2 => Just(1), 1 => Just(1 << 53)], 0u64..3);
    let raise =
        (0u64..5, prop_oneof![4 => 1u64..6, 1 => Just(1_000_000)], prop_oneof![1u64..20_000_000, Just(1 << 45)]);
    let raise = prop::option::weighted(0.1, raise);
    (step, tampered, calls, amount, (settled, 0u64..5000), resets, (forgets, raise)).prop_map(
        |(
            step,
            tampered,
            (limit, owner, sequence, held, asks, is_reopened),
            amount,
            (settled, unknown),
            resets,
            (forgets, raise),
        )| Act {
            step,
            tampered,
            limit,
            owner,
            sequence,
            held,
            asks,
            amount,
            is_reopened,
            settled,
            unknown,
            resets: resets.0,
            unknown_resets: resets.1,
            forgets,
            raise,
        },
    )
}

fn bytes(state: &[u64]) -> Vec<u8> {
    state.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn words(bytes: &[u8]) -> State {
    bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect()
}

/// Makes the same call in Rust. Returns whether the report was accepted, how many slots were granted, the state afterwards, and
/// until when it is kept.
fn act_in_rust(
    limit: Algorithm,
    found: Option<&[u64]>,
    report: Report,
    (asks, amount): (u64, Cost),
    now: Timestamp,
) -> (u64, u64, Option<State>, u64) {
    let Some(entry) = limit.accept(found, report, now) else {
        let corrected = limit.correction(found, now);
        let kept = corrected.as_ref().map_or(0, |entry| entry.kept_until.since(now).0);
        return (0, 0, corrected.map(|entry| entry.state), kept);
    };
    let (mut last, mut granted) = (entry, 0);
    while granted < asks
        && let ChargeResult::Fits { entry, .. } = limit.step(Some(&last.state), amount, now).charge
    {
        last = entry;
        granted += 1;
    }
    (1, granted, Some(last.state), last.kept_until.since(now).0)
}

fn slots(limit: u64) -> Algorithm {
    Algorithm::Concurrency(Concurrency::new(limit).unwrap())
}

/// A budget of tokens, of which two come back every seven seconds.
fn tokens(limit: u64) -> Algorithm {
    let rate = Rate { amount: Cost::from_tokens(2), period: Micros(7_000_000) };
    Algorithm::Budget(Budget::of_token_bucket(TokenBucket::new(rate, limit).unwrap()))
}

fn minutes(limit: u64) -> Algorithm {
    Algorithm::Budget(Budget::of_fixed_window(FixedWindow::new(limit, Window::Epoch(Micros(60_000_000))).unwrap()))
}

fn from_first(limit: u64) -> Algorithm {
    Algorithm::Budget(Budget::of_fixed_window(
        FixedWindow::new(limit, Window::FirstRequest(Micros(60_000_000))).unwrap(),
    ))
}

/// Returns the function `twin` for the limits, and the frame that calls it.
fn script(limit: fn(u64) -> Algorithm) -> String {
    let (twin, _) = limit(1).twin(Timestamp(START));
    let raises = format!("local function make_raises()\n{}\nend\n", raise::TWIN);
    format!("local twin = (function()\n{}\nend)()\n{raises}{FRAME}", TWINS[twin])
}

fn numbers(limit: Algorithm) -> Vec<u8> {
    bytes(&limit.twin(Timestamp(START)).1)
}

#[test]
fn reports_and_asks_for_slots_have_the_same_results_in_rust_and_in_lua() {
    compare(slots);
}

#[test]
fn reports_and_asks_for_a_budget_of_a_token_bucket_have_the_same_results_in_rust_and_in_lua() {
    compare(tokens);
}

#[test]
fn reports_and_asks_for_a_budget_with_resets_have_the_same_results_in_rust_and_in_lua() {
    compare(|limit| with_resets(tokens(limit)));
    compare(|limit| with_resets(minutes(limit)));
    compare(|limit| with_resets(from_first(limit)));
}

fn with_resets(limit: Algorithm) -> Algorithm {
    let Algorithm::Budget(budget) = limit else { panic!("no budget") };
    Algorithm::Budget(budget.with_resets())
}

#[test]
fn reports_and_asks_for_a_budget_of_a_window_have_the_same_results_in_rust_and_in_lua() {
    compare(minutes);
    compare(from_first);
}

fn compare(limits: fn(u64) -> Algorithm) {
    let redis = Redis::start();
    let script = script(limits);
    let sha: String = redis.command(&["SCRIPT", "LOAD", &script]);
    let connection = std::cell::RefCell::new(redis.connection());
    let (counts, raised) = (std::cell::Cell::new([0u64; 3]), std::cell::Cell::new(0u64));
    let mut runner = TestRunner::new(ProptestConfig {
        cases: short_or_long(400, 20_000),
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let result = runner.run(&prop::collection::vec(act(), 1..40), |acts| {
        let connection = &mut *connection.borrow_mut();
        redis::cmd("FLUSHALL").exec(connection).unwrap();
        let (mut now, mut stored, mut owners) = (START, None::<State>, std::collections::HashMap::new());
        for act in acts {
            now = now.saturating_add_signed(act.step);
            // An entry without resets, behind the state of a token bucket or a window, is made only in memory, for a bucket
            // whose limit is not known there. Only Rust reads it.
            let is_read_alike =
                |value: &&Vec<u64>| !limits(act.limit).kind().has_resets() || !matches!(value.len(), 10 | 11);
            if let Some(value) = act.tampered.as_ref().filter(is_read_alike) {
                redis::cmd("SET").arg("bucket").arg(bytes(value)).exec(connection).unwrap();
                stored = Some(State::from_slice(value));
            }
            let limit = limits(act.limit);
            if let Some((id, tokens, length)) = act.raise {
                let end = Timestamp(now).plus(Micros(length));
                let raise = Raise { id: RaiseId(id), amount: Cost::from_tokens(tokens), end };
                if let Ok(Some(entry)) = limit.set_raise(stored.as_deref(), raise, Timestamp(now)) {
                    redis::cmd("SET").arg("bucket").arg(bytes(&entry.state)).exec(connection).unwrap();
                    stored = Some(entry.state);
                    raised.set(raised.get() + 1);
                }
            }
            let said = owners.entry(act.owner).or_insert(Said { sequence: 5, ..Said::default() });
            let sequence = said.sequence.saturating_add_signed(act.sequence);
            said.sequence = sequence.max(said.sequence);
            if act.forgets {
                *said = Said { sequence: said.sequence, ..Said::default() };
            } else {
                if act.resets > 0 && limit.kind().has_resets() {
                    (said.resets, said.sum_at_reset) = (said.resets.saturating_add(act.resets), said.sum);
                }
                said.sum = said.sum.saturating_add(act.settled).min(1 << 60);
            }
            let from = Cost::from_thousandths(said.sum.saturating_sub(act.unknown).min(1 << 53));
            let resets = Resets {
                accepted: said.resets.saturating_sub(act.unknown_resets).min(1 << 53),
                count: said.resets,
                sum: Cost::from_thousandths(said.sum_at_reset),
            };
            let settled = SettledSums { from, to: Cost::from_thousandths(said.sum), resets };
            let report =
                Report { owner: Owner(act.owner), sequence, held: Cost::from_tokens(act.held), settled, life: LIFE };
            let amount = if limit.slots().is_some() { Cost::ONE } else { Cost::from_thousandths(act.amount) };
            let mut call = redis::cmd("EVALSHA");
            call.arg(&sha).arg(1).arg("bucket").arg(numbers(limit)).arg(now);
            call.arg(act.owner.to_le_bytes().to_vec()).arg(sequence).arg(report.held.thousandths()).arg(act.asks);
            call.arg(amount.thousandths()).arg(if act.is_reopened { "reopened" } else { "once" });
            call.arg(settled.from.thousandths()).arg(settled.to.thousandths());
            call.arg(resets.accepted).arg(resets.count).arg(resets.sum.thousandths());
            let (healed, accepted, granted, kept, digest, value): Reply = call.query(connection).unwrap();
            // A value that cannot be whole is replaced in Lua before anything else.
            let invalid = stored.as_deref().is_some_and(|state| limit.kind().give_back(state, Cost::ONE).is_none());
            prop_assert_eq!(healed, u64::from(invalid));
            let found = if invalid { Some(&[][..]) } else { stored.as_deref() };
            let expected = act_in_rust(limit, found, report, (act.asks, amount), Timestamp(now));
            prop_assert_eq!((accepted, granted), (expected.0, expected.1), "{:?}", &act);
            let value = value.map(|value| words(&value));
            if invalid && accepted == 0 {
                prop_assert!(false, "nobody has spoken in a healed bucket");
            }
            prop_assert_eq!(&value, &expected.2.or(stored), "{:?}", &act);
            prop_assert_eq!(kept, expected.3);
            // From what a reply has, the same follows.
            if let Some(digest) = digest {
                let from_digest = act_in_rust(limit, Some(&words(&digest)), report, (act.asks, amount), Timestamp(now));
                prop_assert_eq!((from_digest.0, from_digest.1), (accepted, granted), "{:?}", &act);
            }
            let [old, refused, admitted] = counts.get();
            counts.set([old + 1 - accepted, refused + accepted * (act.asks - granted), admitted + granted]);
            stored = value;
        }
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
    let [old, refused, admitted] = counts.get();
    assert!(old > 500 && refused > 500 && admitted > 500, "{old} old, {refused} refused, {admitted} admitted");
    assert!(raised.get() > 300, "{raised:?} raises");
}

/// There are more owners than a bucket has entries.
#[test]
fn a_bucket_full_of_owners_is_the_same_in_rust_and_in_lua() {
    let redis = Redis::start();
    let script = script(slots);
    let (mut connection, mut stored) = (redis.connection(), None::<State>);
    let sha: String = redis.command(&["SCRIPT", "LOAD", &script]);
    let limit = slots(9);
    for owner in 1..=1030u64 {
        let now = Timestamp(START).plus(Micros(if owner < 1028 { owner } else { 7_000_100 }));
        let report = Report {
            owner: Owner(owner),
            sequence: 1,
            held: Cost::default(),
            settled: SettledSums::default(),
            life: LIFE,
        };
        let mut call = redis::cmd("EVALSHA");
        call.arg(&sha).arg(1).arg("bucket").arg(numbers(limit)).arg(now.0);
        call.arg(owner.to_le_bytes().to_vec())
            .arg(1)
            .arg(0)
            .arg(0)
            .arg(1000)
            .arg("once")
            .arg(0)
            .arg(0)
            .arg(0)
            .arg(0)
            .arg(0);
        let (_, accepted, granted, _, digest, value): Reply = call.query(&mut connection).unwrap();
        let expected = act_in_rust(limit, stored.as_deref(), report, (0, Cost::ONE), now);
        assert_eq!((accepted, granted), (expected.0, expected.1), "{owner}");
        assert_eq!(accepted, u64::from(!(1025..1028).contains(&owner)), "{owner}");
        if let Some(digest) = digest {
            assert_eq!(act_in_rust(limit, Some(&words(&digest)), report, (0, Cost::ONE), now).0, accepted, "{owner}");
        }
        let value = value.map(|value| words(&value));
        assert_eq!(value, expected.2.or(stored), "{owner}");
        stored = value;
    }
}
