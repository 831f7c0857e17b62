//! The slots of a concurrency limit are counted equally in Rust and in Lua: reports, asks, stored values, and the reply's
//! digests.

use std::fmt::Write;

use base::time::{Micros, Timestamp};
use ledger::algorithm::concurrency::{Concurrency, TWIN, give_back};
use ledger::algorithm::{ChargeResult, State};
use ledger::cost::Cost;
use ledger::holds::{Owner, Report};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use crate::support::{Redis, short_or_long};

const START: u64 = 1_763_672_400_123_456;

/// Calls the twin as `take.lua` does, with one report before the asks. ARGV: the numbers of the limit, the time, the owner, its
/// sequence, what it holds, how many slots it asks for, and whether the bucket is closed and opened between the report and the
/// asks, as for a second limit.
const FRAME: &str = "
local now = tonumber(ARGV[2])
local limit = twin.new(ARGV[1], 1, now)
local bucket = twin.open(limit, redis.call('GET', KEYS[1]), now)
local healed = bucket.invalid and 1 or 0
if bucket.invalid then
  bucket.found, bucket.changed = twin.close(limit, bucket), true
end
local first, accepted, granted = bucket, 0, 0
if twin.accept(limit, bucket, ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])) then accepted = 1 end
if ARGV[7] == 'reopened' and bucket.changed then bucket = twin.open(limit, (twin.close(limit, bucket)), now) end
if accepted == 1 then
  granted = math.max(math.min(tonumber(ARGV[6]), twin.most(limit, bucket, 1000)), 0)
  if granted > 0 then twin.charge(limit, bucket, granted * 1000) end
end
local kept = 0
if first.changed then
  local value, kept_until = twin.close(limit, bucket)
  redis.call('SET', KEYS[1], value)
  kept = kept_until - now
end
local digest = first.found and twin.digest(limit, first, first.found) or false
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
    is_reopened: bool,
}

fn act() -> impl Strategy<Value = Act> {
    let step = prop_oneof![
        3 => Just(0), 4 => 0i64..3_000_000, 2 => 6_999_998i64..7_000_003, 1 => 590_000_000i64..610_000_000,
        2 => -12_000_000i64..0, 1 => -4_000_000_000i64..0,
    ];
    let number = prop_oneof![0u64..4, 256u64..260, START..START + 9_000_000, 0u64..1 << 53];
    let tampered = prop::option::weighted(0.03, prop::collection::vec(number, 0..9));
    let owner = prop_oneof![1u64..5, Just(0x0101_0101_0101_0101), Just(u64::MAX)];
    let held = prop_oneof![4 => 0u64..4, 1 => Just(1 << 40)];
    (step, tampered, 1u64..12, owner, -1i64..3, held, 0u64..4, any::<bool>()).prop_map(
        |(step, tampered, limit, owner, sequence, held, asks, is_reopened)| Act {
            step,
            tampered,
            limit,
            owner,
            sequence,
            held,
            asks,
            is_reopened,
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
    limit: Concurrency,
    found: Option<&[u64]>,
    report: Report,
    asks: u64,
    now: Timestamp,
) -> (u64, u64, Option<State>, u64) {
    let Some(entry) = limit.accept(found, report, now) else {
        let corrected = limit.correction(found, now);
        let kept = corrected.as_ref().map_or(0, |entry| entry.kept_until.since(now).0);
        return (0, 0, corrected.map(|entry| entry.state), kept);
    };
    let (mut state, mut granted) = (entry.state, 0);
    while granted < asks
        && let ChargeResult::Fits { entry, .. } = limit.step(Some(&state), Cost::ONE, now).charge
    {
        state = entry.state;
        granted += 1;
    }
    (1, granted, Some(state), entry.kept_until.since(now).0)
}

#[test]
fn words_and_asks_have_the_same_results_in_rust_and_in_lua() {
    let redis = Redis::start();
    let mut script = String::new();
    write!(script, "local twin = (function()\n{TWIN}\nend)()\n{FRAME}").unwrap();
    let sha: String = redis.command(&["SCRIPT", "LOAD", &script]);
    let connection = std::cell::RefCell::new(redis.connection());
    let counts = std::cell::Cell::new([0u64; 3]);
    let mut runner = TestRunner::new(ProptestConfig {
        cases: short_or_long(400, 20_000),
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let result = runner.run(&prop::collection::vec(act(), 1..40), |acts| {
        let connection = &mut *connection.borrow_mut();
        redis::cmd("FLUSHALL").exec(connection).unwrap();
        let (mut now, mut stored, mut sequences) = (START, None::<State>, std::collections::HashMap::new());
        for act in acts {
            now = now.saturating_add_signed(act.step);
            if let Some(value) = &act.tampered {
                redis::cmd("SET").arg("bucket").arg(bytes(value)).exec(connection).unwrap();
                stored = Some(State::from_slice(value));
            }
            let limit = Concurrency::new(act.limit).unwrap();
            let last = sequences.entry(act.owner).or_insert(5u64);
            let sequence = last.saturating_add_signed(act.sequence);
            *last = sequence.max(*last);
            let report = Report { owner: Owner(act.owner), sequence, held: Cost::from_tokens(act.held) };
            let mut call = redis::cmd("EVALSHA");
            call.arg(&sha).arg(1).arg("bucket").arg(limit.numbers()[0].to_le_bytes().to_vec()).arg(now);
            call.arg(act.owner.to_le_bytes().to_vec()).arg(sequence).arg(report.held.thousandths()).arg(act.asks);
            call.arg(if act.is_reopened { "reopened" } else { "once" });
            let (healed, accepted, granted, kept, digest, value): Reply = call.query(connection).unwrap();
            // A value that cannot be whole is replaced in Lua before anything else.
            let invalid = stored.as_deref().is_some_and(|state| give_back(state, Cost::ONE).is_none());
            prop_assert_eq!(healed, u64::from(invalid));
            let found = if invalid { Some(&[][..]) } else { stored.as_deref() };
            let expected = act_in_rust(limit, found, report, act.asks, Timestamp(now));
            prop_assert_eq!((accepted, granted), (expected.0, expected.1), "{:?}", &act);
            let value = value.map(|value| words(&value));
            if invalid && accepted == 0 {
                prop_assert!(false, "nobody has spoken in a healed bucket");
            }
            prop_assert_eq!(&value, &expected.2.or(stored), "{:?}", &act);
            prop_assert_eq!(kept, expected.3);
            // From what a reply has, the same follows.
            if let Some(digest) = digest {
                let from_digest = act_in_rust(limit, Some(&words(&digest)), report, act.asks, Timestamp(now));
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
}

/// There are more owners than a bucket has entries.
#[test]
fn a_bucket_full_of_owners_is_the_same_in_rust_and_in_lua() {
    let redis = Redis::start();
    let script = format!("local twin = (function()\n{TWIN}\nend)()\n{FRAME}");
    let (mut connection, mut stored) = (redis.connection(), None::<State>);
    let sha: String = redis.command(&["SCRIPT", "LOAD", &script]);
    let limit = Concurrency::new(9).unwrap();
    for owner in 1..=1030u64 {
        let now = Timestamp(START).plus(Micros(if owner < 1028 { owner } else { 7_000_100 }));
        let report = Report { owner: Owner(owner), sequence: 1, held: Cost::default() };
        let mut call = redis::cmd("EVALSHA");
        call.arg(&sha).arg(1).arg("bucket").arg(limit.numbers()[0].to_le_bytes().to_vec()).arg(now.0);
        call.arg(owner.to_le_bytes().to_vec()).arg(1).arg(0).arg(0).arg("once");
        let (_, accepted, granted, _, digest, value): Reply = call.query(&mut connection).unwrap();
        let expected = act_in_rust(limit, stored.as_deref(), report, 0, now);
        assert_eq!((accepted, granted), (expected.0, expected.1), "{owner}");
        assert_eq!(accepted, u64::from(!(1025..1028).contains(&owner)), "{owner}");
        if let Some(digest) = digest {
            assert_eq!(act_in_rust(limit, Some(&words(&digest)), report, 0, now).0, accepted, "{owner}");
        }
        let value = value.map(|value| words(&value));
        assert_eq!(value, expected.2.or(stored), "{owner}");
        stored = value;
    }
}
