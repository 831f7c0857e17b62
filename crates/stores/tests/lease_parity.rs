//! The Rust steps of purses and homes, the memory store, and the script on a real Redis have equal results, bit for bit: on words that are
//! lost, late and doubled, with clocks that are set back, raises, reloads and invalid states.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "a test")]
#![allow(clippy::disallowed_methods, reason = "a test measures real time")]

mod random_acts;

use std::collections::HashMap;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fastrand::Rng;
use ledger::algorithm::raise::{Raise, RaiseId};
use ledger::algorithm::{Algorithm, State};
use ledger::bucket_key::{BucketKey, LimitTag};
use ledger::cost::Cost;
use ledger::{Micros, Timestamp};
use random_acts::{BUCKETS, Said, act, limit, note};
use stores::memory::{Memory, Settings};
use stores::redis::codec::LeaseCall;
use stores::redis::script;
use stores::{ActResult, BucketAct, Clock};
use tempfile::TempDir;

const START: u64 = 1_763_672_400_123_456;
const SECOND: u64 = 1_000_000;

/// Lua text that takes the moment from the last argument, and notes for how long each value is to be kept. Keys do not
/// expire, because Redis would use its own clock.
const CHOSEN_MOMENT: &str = "
local redis = (function(server, chosen)
  local function call(command, key, value)
    if command == 'TIME' then return {0, chosen} end
    return server.call(command, key, value)
  end
  local function pcall(command, key, value, unit, left)
    if command ~= 'SET' then return server.pcall(command, key) end
    server.call('SET', 'left' .. key, left)
    return server.pcall(command, key, value)
  end
  return {call = call, pcall = pcall}
end)(redis, table.remove(ARGV))
";

/// A redis-server, which is killed at the end of its test.
struct Server {
    child: Child,
    connection: ::redis::Connection,
    sha: String,
    _directory: TempDir,
}

impl Server {
    /// Starts a server that has loaded this script.
    fn start(script: &str) -> Server {
        // Another program could take the free port in this moment.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let directory = TempDir::new().unwrap();
        let mut server = Command::new("redis-server");
        server.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--dir"]).arg(directory.path());
        let child = server.stdout(Stdio::null()).spawn().unwrap();
        let client = ::redis::Client::open(format!("redis://127.0.0.1:{port}/")).unwrap();
        let begin = Instant::now();
        let mut connection = loop {
            match client.get_connection_with_timeout(Duration::from_secs(1)) {
                Ok(connection) => break connection,
                Err(error) => assert!(begin.elapsed() < Duration::from_secs(10), "{error}"),
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        let text = CHOSEN_MOMENT.to_owned() + script;
        let sha = ::redis::cmd("SCRIPT").arg("LOAD").arg(text).query(&mut connection).unwrap();
        Server { child, connection, sha, _directory: directory }
    }

    fn set(&mut self, key: &BucketKey, value: &[u8]) {
        ::redis::cmd("SET").arg(name(key)).arg(value).exec(&mut self.connection).unwrap();
    }

    fn get(&mut self, key: &BucketKey) -> Option<Vec<u8>> {
        ::redis::cmd("GET").arg(name(key)).query(&mut self.connection).unwrap()
    }

    /// Returns for how many milliseconds the last value of a bucket is to be kept.
    fn left(&mut self, key: &BucketKey) -> u64 {
        let key = [b"left", &name(key)[..]].concat();
        ::redis::cmd("GET").arg(key).query(&mut self.connection).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn name(key: &BucketKey) -> Vec<u8> {
    stores::redis::codec::key_name("t", key)
}

fn bytes(state: &[u64]) -> Vec<u8> {
    state.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Returns whether the numbers in a call that was made at about the time `near` do not hold at `now`.
fn is_outside(limit: &Algorithm, near: Timestamp, now: Timestamp) -> bool {
    match (limit, &limit.twin(near).1[..]) {
        (Algorithm::Home(_), &[_, 2, first, end, ..])
        | (Algorithm::Purse(_), &[_, _, _, _, 0 | 2, _, 2, first, end, ..])
            if limit.zone().is_some() =>
        {
            !(first..end).contains(&now.0)
        }
        _ => false,
    }
}

/// Returns a difference between results as an error of the function.
macro_rules! agree {
    ($found:expr, $expected:expr, $($of:tt)*) => {{
        let (found, expected) = (&$found, &$expected);
        if found != expected {
            return Err(format!("{found:?} is not {expected:?}: {}", format!($($of)*)));
        }
    }};
}

/// Plays random acts on the Rust step, in memory, and on the script that the server has loaded. Returns the first difference.
fn play(server: &mut Server, seed: u64, kinds: &mut HashMap<&str, usize>) -> Result<(), String> {
    let rng = &mut Rng::with_seed(seed);
    ::redis::cmd("FLUSHALL").exec(&mut server.connection).unwrap();
    let clock = Clock::manual(Timestamp(START));
    let memory: Arc<Memory> = Memory::new(&Settings::default(), clock.clone());
    let (mut model, mut now): (HashMap<BucketKey, State>, u64) = (HashMap::new(), START);
    let (mut said, mut bucket) = (Said::default(), 0);
    for _ in 0..100 {
        now = now.saturating_add_signed(match rng.u8(0..12) {
            0 => -rng.i64(0..15_000_000),
            1 => rng.i64(0..90_000_000),
            2 => 86_400_000_000 * rng.i64(0..20),
            3..6 => 0,
            6..9 => rng.i64(0..600_000),
            _ => rng.i64(0..6_000_000),
        });
        // The machine's clock decides about calendars in memory, so it is the same.
        clock.set(Timestamp(now));
        let time = Timestamp(now);
        tamper(rng, server, &memory, &mut model, time);
        let is_reloaded = rng.u8(0..6) == 0;
        let one = |_| {
            // Often the same bucket again, so that words about it are answered.
            bucket = if rng.bool() { bucket } else { rng.u8(0..BUCKETS) };
            let (key, limit) = (BucketKey([1 + bucket; 16]), limit(bucket, is_reloaded, SECOND));
            BucketAct { key, limit, tag: LimitTag::default(), act: act(rng, bucket, &said, time, SECOND) }
        };
        let acts: Vec<BucketAct> = (0..4).map(one).collect();
        let acts = &acts[..1 + rng.usize(0..4)];
        let near = Timestamp(if rng.u8(0..8) == 0 { now - 40 * 86_400_000_000 } else { now });
        let call = LeaseCall::new(acts);
        let mut command = call.command(&server.sha, "t", near, None);
        command.arg(now);
        let reply = command.query::<::redis::Value>(&mut server.connection).map_err(|error| error.to_string())?;
        let results = call.results(&reply).map_err(|error| format!("{error:?}: {reply:?}"))?;
        let healed = acts.iter().filter(|one| has_invalid(&model, one, time) && !is_outside(&one.limit, near, time));
        // Of several acts on one bucket, the first heals it.
        let healed = healed.map(|one| one.key).collect::<std::collections::HashSet<_>>().len();
        agree!((results.now, results.healed), (time, healed as u64), "seed {seed}: {acts:?}");
        for (one, result) in acts.iter().zip(&results.results) {
            if is_outside(&one.limit, near, time) {
                agree!(*result, ActResult::OutsidePeriod, "seed {seed}: {one:?} at {now}");
                *kinds.entry("outside").or_default() += 1;
                continue;
            }
            let state = model.get(&one.key).map(|state| &state[..]);
            let (entry, reply) = one.act.apply(&one.limit, state, time).unwrap();
            agree!(*result, ActResult::Done(reply), "seed {seed}: {one:?} of {state:?} at {now}");
            let in_memory = memory.act(std::slice::from_ref(one));
            agree!(in_memory.results, [ActResult::Done(reply)], "seed {seed}: in memory {one:?} of {state:?}");
            note(kinds, &mut said, one, reply, Timestamp(START), SECOND);
            if let Some(entry) = entry {
                if acts.iter().filter(|other| other.key == one.key).count() == 1 {
                    let left = entry.kept_until.since(time).0.div_ceil(1000) + 1;
                    agree!(server.left(&one.key), left, "seed {seed}: kept after {one:?} of {state:?} at {now}");
                }
                model.insert(one.key, entry.state);
            }
        }
        for one in acts {
            let expected = model.get(&one.key).map(|state| bytes(state));
            agree!(server.get(&one.key), expected, "seed {seed}: stored after {one:?} at {now}");
        }
    }
    Ok(())
}

const SEEDS: std::ops::Range<u64> = 0..120;

#[test]
fn purses_and_homes_have_the_same_results_in_rust_in_memory_and_in_the_script() {
    let mut server = Server::start(&script::leases());
    let mut kinds = HashMap::new();
    for seed in SEEDS {
        play(&mut server, seed, &mut kinds).unwrap_or_else(|difference| panic!("{difference}"));
    }
    for kind in
        ["sent", "credited", "nothing", "given", "given in part", "refused", "again", "older", "returned", "outside"]
    {
        assert!(kinds.get(kind).is_some_and(|count| *count >= 30), "{kind}: {kinds:?}");
    }
}

#[test]
fn a_mistake_in_the_script_is_found() {
    // Each replaces a part of the twins.
    let mistakes = [
        // A word with another tag is answered.
        ("if number == last.number and tag == last.tag then", "if number == last.number then"),
        // The answer says what remained at the first time.
        ("max(ends - now, 0)", "max(ends - entry.short_until, 0)"),
        ("portion - portion % 1000", "portion"),
        ("bucket.spent[1] = plus(bucket.spent[1], price(limit, ended))", ""),
        ("price(limit, max(held - left, 0))", "0"),
        ("if is_known and period == bucket.spent[2] then", "if period == bucket.spent[2] then"),
        ("again = PAUSE\n", "again = 0\n"),
        // A mark from the future is believed.
        ("marked = min(marked, now)", ""),
        ("if purse.period ~= period then purse.left, purse.undone_since = 0, max(now, purse.touched) end", ""),
        ("now + limit.return_after)\n", "EXACT)\n"),
        ("if bucket.ends <= now then bucket.left = 0 end", ""),
        // What is returned stays in the purse.
        ("  purse.left = left\n  return new_word", "  return new_word"),
        // A purse gives back what is in use.
        ("now - purse.touched < idle", "now - purse.touched < 0"),
        ("kept_until = max(kept_until, bucket.mark + max(limit.return_after, limit.timeout) * WAITS_FOR_ANSWER)", ""),
        ("or cost - purse.left > purse.left_at_home", "or true"),
        ("max(limit.largest, cost) - purse.left", "limit.largest - purse.left"),
        // A lease is not counted, nor what is given back.
        ("plus(share[1], price(limit, counted))", "share[1]"),
        ("counted = min(counted, floor(max(limit.share.capacity - share[1], 0) / unit))", "counted = counted"),
        ("if not (limit.is_unspent and bucket.debt == 0) then", "do"),
        // The last of several raises ends them.
        ("plus(sum, amount), min(first, ends)", "plus(sum, amount), ends"),
        // A raise ends by the time of the answer.
        ("plus(marked, raised_for) or 0", "plus(now, raised_for) or 0"),
        ("max(bucket.ends, bucket.short_until, bucket.raised_until)", "max(bucket.ends, bucket.short_until)"),
    ];
    let script = script::leases();
    for (right, wrong) in mistakes {
        assert!(script.contains(right), "{right}");
        let mut server = Server::start(&script.replace(right, wrong));
        let is_found = SEEDS.into_iter().any(|seed| play(&mut server, seed, &mut HashMap::new()).is_err());
        assert!(is_found, "`{wrong}` in place of `{right}`");
    }
}

/// Returns whether the stored state of an act's bucket is invalid, before the acts of this call.
fn has_invalid(model: &HashMap<BucketKey, State>, one: &BucketAct, now: Timestamp) -> bool {
    let Some(state) = model.get(&one.key) else { return false };
    match &one.limit {
        // A home is also corrected when the clock was set back.
        Algorithm::Home(_) => state.len() < 3,
        limit => limit.correction(Some(state), now).is_some(),
    }
}

/// Sometimes raises a home, or replaces a state by an invalid one, everywhere.
fn tamper(rng: &mut Rng, server: &mut Server, memory: &Memory, model: &mut HashMap<BucketKey, State>, now: Timestamp) {
    let bucket = rng.u8(0..BUCKETS);
    let (key, limit) = (BucketKey([1 + bucket; 16]), limit(bucket, false, SECOND));
    let before = model.get(&key).map(|state| &state[..]);
    let state = match rng.u8(0..30) {
        0..2 if bucket < 5 => {
            let amount = Cost::from_tokens(rng.u64(1..20));
            let raise = Raise { id: RaiseId(rng.u64(0..9)), amount, end: now.plus(Micros(rng.u64(1..60_000_000))) };
            let Ok(Some(entry)) = limit.set_raise(before, raise, now) else { return };
            entry.state
        }
        2 => State::from_slice(&[7, 7]),
        _ => return,
    };
    let entry = ledger::algorithm::Entry { state: state.clone(), kept_until: now.plus(Micros(3600 * SECOND)) };
    memory.change(&key, LimitTag::default(), |_, _| Some(entry));
    server.set(&key, &bytes(&state));
    model.insert(key, state);
}
