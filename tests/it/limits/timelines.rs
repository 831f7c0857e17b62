//! Plays every algorithm's timeline on its step and on every store, so that all of them behave in the same way.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use base::time::{Clock, Micros, Timestamp};
use ledger::algorithm::ban::Ban;
use ledger::algorithm::budget::{Budget, SpentLimit};
use ledger::algorithm::fixed_window::{FixedWindow, Window};
use ledger::algorithm::leaky_bucket::{self, LeakyBucket};
use ledger::algorithm::sliding_log::SlidingLog;
use ledger::algorithm::sliding_window::SlidingWindow;
use ledger::algorithm::token_bucket::{Rate, TokenBucket};
use ledger::algorithm::{Algorithm, AlgorithmKind, ChargeResult, RequestNumbers, State};
use ledger::bucket_key::BucketKey;
use ledger::calendar::{Anchor, Calendar, CalendarUnit, TimeOfDay, Zone};
use ledger::cost::{Cost, ExtraDecimals};
use ledger::outcome::{BanNotice, Outcome, Verdict};
use stores::memory::{Memory, Settings};
#[cfg(feature = "test-hooks")]
use stores::remote::fault_injection::{Hooks, Refusals};
#[cfg(feature = "test-hooks")]
use stores::{EventSink, Store, Worker, postgres};

#[cfg(feature = "test-hooks")]
use crate::support::Postgres;
use crate::support::charge::{plan_of, spend};

/// An implementation on which a timeline can be played.
trait Player {
    fn take(&mut self, bucket: BucketKey, algorithm: Algorithm, cost: Cost, now: Timestamp) -> Outcome;
}

/// The step of an algorithm, with a map of states.
#[derive(Default)]
struct Step(HashMap<BucketKey, State>);

impl Player for Step {
    fn take(&mut self, bucket: BucketKey, algorithm: Algorithm, cost: Cost, now: Timestamp) -> Outcome {
        let step = algorithm.step(self.0.get(&bucket).map(|state| &state[..]), cost, now);
        let mut ban = None;
        let (verdict, level, retry_after, delay) = match step.charge {
            ChargeResult::Fits { level, entry, delay } => {
                self.0.insert(bucket, entry.state);
                (Verdict::Allow, level, Micros(0), delay)
            }
            ChargeResult::Banned { wait, step: number, begins } => {
                let is_new = begins.is_some();
                let state = self.0.get(&bucket).map(|state| &state[..]);
                if let Some(entry) = begins.map(|begins| begins.entry).or_else(|| algorithm.correction(state, now)) {
                    self.0.insert(bucket, entry.state);
                }
                ban = Some(BanNotice { step: number, begins: is_new });
                (Verdict::Banned, step.untouched, wait, Micros(0))
            }
            refused => {
                if let Some(entry) = algorithm.correction(self.0.get(&bucket).map(|state| &state[..]), now) {
                    self.0.insert(bucket, entry.state);
                }
                match refused {
                    ChargeResult::Short { wait } => (Verdict::Deny, step.untouched, wait, Micros(0)),
                    _ => (Verdict::Never, step.untouched, Micros(0), Micros(0)),
                }
            }
        };
        Outcome {
            verdict,
            remaining: level.remaining,
            retry_after,
            reset_after: level.reset_after,
            delay,
            held: Cost::default(),
            raised: Cost::default(),
            ban,
            told: Default::default(),
            is_low: false,
            home_heard: Timestamp(0),
        }
    }
}

struct MemoryStore {
    memory: Arc<Memory>,
    clock: Clock,
}

impl MemoryStore {
    fn new() -> MemoryStore {
        let clock = Clock::manual(Timestamp(0));
        MemoryStore {
            memory: Memory::new(&Settings { max_buckets: 1 << 20, ..Settings::default() }, clock.clone()),
            clock,
        }
    }
}

impl Player for MemoryStore {
    fn take(&mut self, bucket: BucketKey, algorithm: Algorithm, cost: Cost, now: Timestamp) -> Outcome {
        self.clock.set(now);
        let taken = self.memory.take(&plan_of(spend(bucket, algorithm, cost)));
        assert_eq!(taken.now, now);
        taken.settlement.enforced[0]
    }
}

/// Decides at the times of the timeline, which are those of its clock.
#[cfg(feature = "test-hooks")]
struct PostgresStore {
    runtime: tokio::runtime::Runtime,
    store: Arc<Store>,
    clock: Clock,
}

#[cfg(feature = "test-hooks")]
impl PostgresStore {
    fn new(postgres: &Postgres) -> PostgresStore {
        let clock = Clock::manual(START);
        let hooks = Hooks { refusals: Refusals::ByRedis, ..Hooks::default() };
        let events = EventSink::new(|_| ());
        let store = postgres::Postgres::open(hooks, postgres.settings(), 1, clock.clone(), events);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let store = Arc::new(Store::Postgres(store));
        let driven = Arc::clone(&store);
        runtime.spawn(async move { driven.run(Worker(0)).await });
        runtime.block_on(store.first_attempt());
        PostgresStore { runtime, store, clock }
    }
}

#[cfg(feature = "test-hooks")]
impl Player for PostgresStore {
    fn take(&mut self, bucket: BucketKey, algorithm: Algorithm, cost: Cost, now: Timestamp) -> Outcome {
        self.clock.set(now);
        let plan = plan_of(spend(bucket, algorithm, cost));
        let reply = self.runtime.block_on(self.store.take(Worker(0), &plan, None)).unwrap().unwrap();
        assert_eq!(reply.now, now);
        reply.settlement.enforced[0]
    }
}

#[cfg(feature = "test-hooks")]
struct RedisStore {
    script: crate::support::TakeScript,
}

#[cfg(feature = "test-hooks")]
impl Player for RedisStore {
    fn take(&mut self, bucket: BucketKey, algorithm: Algorithm, cost: Cost, now: Timestamp) -> Outcome {
        let reply = self.script.take(&[plan_of(spend(bucket, algorithm, cost))], now);
        assert_eq!(reply.now, now);
        reply.settlements[0].enforced[0]
    }
}

/// One file for each algorithm whose charges are kept, and one for bans. [`crate::slots::timeline`] plays that of concurrency.
const FILES: [&str; 6] =
    ["token_bucket.txt", "fixed_window.txt", "sliding_log.txt", "sliding_window.txt", "leaky_bucket.txt", "bans.txt"];

/// The time that timelines call 0.
const START: Timestamp = Timestamp(1_700_000_000_000_000);

fn play(file: &str, player: &mut dyn Player) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/timelines").join(file);
    let text = std::fs::read_to_string(&path).unwrap();
    let (mut bucket, mut algorithm, mut played) = (0u8, None, 0);
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.split('#').next().unwrap();
        let words: Vec<_> = line.split_whitespace().collect();
        match words[..] {
            [] => {}
            ["new"] => bucket += 1,
            ["bucket", rate, "burst", burst] => {
                let (amount, period) = rate.split_once('/').unwrap();
                let rate = Rate { amount: cost(amount), period: micros(period) };
                algorithm = Some(Algorithm::TokenBucket(TokenBucket::new(rate, burst.parse().unwrap()).unwrap()));
            }
            ["request", rate, "of", fastest, "burst", burst] => {
                let rates = TokenBucket::with_rates_up_to(cost(fastest), 1).unwrap();
                let numbers = RequestNumbers { rate: Some(cost(rate)), ceiling: Some(cost(burst)) };
                algorithm = Some(Algorithm::TokenBucket(rates.for_request(numbers, Cost::ONE)));
            }
            ["leaky", rate, "queue", queue, "wait", wait, ref first @ ..] => {
                algorithm = Some(leaky(rate, queue, wait, first.last().copied().unwrap_or("0")));
            }
            ["window", length, "limit", limit] => {
                algorithm = Some(window(limit, Window::Epoch(micros(length))));
            }
            ["first", length, "limit", limit] => {
                algorithm = Some(window(limit, Window::FirstRequest(micros(length))));
            }
            ["calendar", unit, zone, "limit", limit] => {
                let anchor = Anchor::default_of(CalendarUnit::parse(unit).unwrap());
                let calendar = Calendar::new(anchor, TimeOfDay::default(), Zone::parse(zone).unwrap());
                algorithm = Some(window(limit, Window::Calendar(calendar)));
            }
            ["log", length, "limit", limit] => {
                let log = SlidingLog::new(limit.parse().unwrap(), micros(length)).unwrap();
                algorithm = Some(Algorithm::SlidingLog(log));
            }
            ["sliding", length, "steps", steps, "limit", limit] => {
                let (limit, steps) = (limit.parse().unwrap(), steps.parse().unwrap());
                algorithm = Some(Algorithm::SlidingWindow(SlidingWindow::new(limit, micros(length), steps).unwrap()));
            }
            ["ban", ref durations @ .., "forget", forget_after] => {
                let durations: Vec<_> = durations.iter().map(|duration| micros(duration)).collect();
                let ban = Ban::new(&durations, micros(forget_after)).unwrap();
                algorithm = Some(Algorithm::Budget(match algorithm.unwrap() {
                    Algorithm::TokenBucket(bucket) => Budget::banning(SpentLimit::TokenBucket(bucket), ban),
                    Algorithm::FixedWindow(window) => Budget::banning(SpentLimit::FixedWindow(window), ban),
                    other => panic!("{other:?} has no bans"),
                }));
            }
            [at, "take", amount, ref within @ .., "->", _, _, _, _, _]
            | [at, "take", amount, ref within @ .., "->", _, _, _]
            | [at, "take", amount, ref within @ .., "->", _] => {
                let expected = &words[4 + within.len()..];
                let now = START.plus(micros(at));
                let algorithm = match within {
                    ["within", most] => algorithm.unwrap().within(micros(most)),
                    _ => algorithm.unwrap(),
                };
                let outcome = player.take(BucketKey([bucket; 16]), algorithm, cost(amount), now);
                let reported = describe(&outcome, expected);
                assert_eq!(reported, expected.join(" "), "{file}:{number}: {line}");
                played += 1;
            }
            _ => panic!("{file}:{number}: {line}"),
        }
    }
    assert!(played > 10, "{file}: {played} lines played");
}

/// Formats an outcome in the words of a timeline, with as many of them as the line has.
fn describe(outcome: &Outcome, expected: &[&str]) -> String {
    let left = format!("left {}", outcome.remaining);
    // In the unit of the line, if it is that long.
    let duration = |word: &str, duration: Micros| {
        let written = expected.iter().position(|other| *other == word).map(|at| expected[at + 1]);
        let reported = written.filter(|written| micros(written) == duration);
        reported.map_or_else(|| format!("{}us", duration.0), str::to_owned)
    };
    match outcome.verdict {
        Verdict::Allow if expected.contains(&"after") => {
            format!("allow {left} after {}", duration("after", outcome.delay))
        }
        Verdict::Allow => format!("allow {left}"),
        Verdict::Never => "never".to_owned(),
        Verdict::Held => "held".to_owned(),
        Verdict::Banned => {
            let ban = outcome.ban.unwrap();
            let beginning = if ban.begins { "begins" } else { "runs" };
            format!("banned {} {beginning} wait {}", ban.step, duration("wait", outcome.retry_after))
        }
        Verdict::Unasked => "unasked".to_owned(),
        Verdict::Deny => {
            let wait = duration("wait", outcome.retry_after);
            let left = if expected.contains(&"left") { format!(" {left}") } else { String::new() };
            format!("deny wait {wait}{left}")
        }
    }
}

fn leaky(rate: &str, queue: &str, wait: &str, first: &str) -> Algorithm {
    let (amount, period) = rate.split_once('/').unwrap();
    let settings = leaky_bucket::Settings {
        rate: Rate { amount: cost(amount), period: micros(period) },
        queue: queue.parse().unwrap(),
        max_wait: micros(wait),
        delay_after: first.parse().unwrap(),
    };
    Algorithm::LeakyBucket(LeakyBucket::new(settings).unwrap())
}

fn window(limit: &str, window: Window) -> Algorithm {
    Algorithm::FixedWindow(FixedWindow::new(limit.parse().unwrap(), window).unwrap())
}

fn cost(text: &str) -> Cost {
    Cost::parse(text.as_bytes(), ExtraDecimals::Refuse).unwrap()
}

fn micros(text: &str) -> Micros {
    let at = text.find(|character: char| !character.is_ascii_digit()).unwrap();
    let scale = match &text[at..] {
        "us" => 1,
        "ms" => 1_000,
        "s" => 1_000_000,
        "m" => 60_000_000,
        "h" => 3_600_000_000,
        "d" => 86_400_000_000,
        unit => panic!("{unit}"),
    };
    Micros(text[..at].parse::<u64>().unwrap() * scale)
}

#[test]
fn every_step_keeps_its_timeline() {
    for file in FILES {
        play(file, &mut Step::default());
    }
}

#[test]
fn the_memory_store_keeps_every_timeline() {
    for file in FILES {
        play(file, &mut MemoryStore::new());
    }
}

#[cfg(feature = "test-hooks")]
#[test]
fn redis_keeps_every_timeline() {
    let redis = crate::support::Redis::start();
    for file in FILES {
        redis.command::<()>(&["FLUSHALL"]);
        play(file, &mut RedisStore { script: crate::support::TakeScript::new(&redis) });
    }
}

#[cfg(feature = "test-hooks")]
#[test]
fn postgresql_keeps_every_timeline() {
    let postgres = Postgres::start();
    let mut player = PostgresStore::new(&postgres);
    for file in FILES {
        postgres.sql("DELETE FROM tollgate_bucket");
        play(file, &mut player);
    }
}

#[test]
fn every_algorithm_has_a_timeline() {
    let names = AlgorithmKind::ALL.map(|kind| format!("{}.txt", kind.name()));
    assert_eq!([&FILES[..5], &["concurrency.txt"]].concat(), names);
}
