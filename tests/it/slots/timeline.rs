//! Plays the timeline of concurrency on its step and on every store.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::time::{Clock, Micros, Timestamp};
use ledger::algorithm::concurrency::Concurrency;
use ledger::algorithm::{Algorithm, State};
use ledger::bucket_key::BucketKey;
use ledger::charge::settle;
use ledger::cost::Cost;
use ledger::holds::{LIFE, Owner, Report, SettledSums, SlotId, SlotTerms, Slots};
use ledger::outcome::{Outcome, Verdict};
use stores::memory::{self, Memory};
use stores::{EventSink, Reservation, Store, Worker};

use crate::support::charge::{plan_of, spend};
use crate::support::now;

/// What a played request holds. Dropping it ends the request.
enum Holding {
    Reservation(Reservation),
    /// A slot of the step.
    Slot(SlotId),
}

/// An implementation on which the timeline can be played.
trait Player {
    /// Waits until this time since the beginning of the timeline.
    fn wait_until(&mut self, at: Micros);

    fn take(&mut self, bucket: BucketKey, algorithm: Algorithm, cost: Cost) -> (Outcome, Option<Holding>);

    fn end(&mut self, holding: Holding);
}

/// The step, with what one owner holds.
#[derive(Default)]
struct Step {
    now: Timestamp,
    slots: Slots,
    held: HashMap<BucketKey, Cost>,
    states: HashMap<BucketKey, State>,
    sequence: u64,
}

impl Step {
    fn lower(&mut self, ended: Option<(BucketKey, Cost)>) {
        if let Some((bucket, amount)) = ended {
            let held = self.held.entry(bucket).or_default();
            *held = held.less(amount);
        }
    }
}

impl Player for Step {
    fn wait_until(&mut self, at: Micros) {
        self.now = Timestamp(1 << 50).plus(at);
        while let Some(ended) = self.slots.end_overdue(self.now) {
            self.lower(Some(ended));
        }
    }

    fn take(&mut self, bucket: BucketKey, algorithm: Algorithm, cost: Cost) -> (Outcome, Option<Holding>) {
        self.sequence += 1;
        let held = self.held.get(&bucket).copied().unwrap_or_default();
        let report =
            Report { owner: Owner(7), sequence: self.sequence, held, settled: SettledSums::default(), life: LIFE };
        let state = self.states.get(&bucket).map(|state| &state[..]);
        let state = algorithm.accept(state, report, self.now).unwrap().state;
        let (settlement, entries) = settle(&plan_of(spend(bucket, algorithm, cost)), &[Some(state.clone())], self.now);
        let entry = entries.into_iter().next().flatten();
        self.states.insert(bucket, entry.map_or(state, |entry| entry.state));
        let outcome = settlement.enforced[0];
        let granted = (outcome.verdict == Verdict::Allow).then(|| {
            self.held.insert(bucket, held.plus(cost));
            Holding::Slot(self.slots.add(bucket, SlotTerms { amount: cost, algorithm }, self.now))
        });
        (outcome, granted)
    }

    fn end(&mut self, holding: Holding) {
        let Holding::Slot(slot) = holding else { panic!("a reservation") };
        let ended = self.slots.end(slot);
        self.lower(ended);
    }
}

/// A store in this process, whose clock the timeline sets.
struct InMemory {
    memory: Arc<Memory>,
    clock: Clock,
}

impl Player for InMemory {
    fn wait_until(&mut self, at: Micros) {
        self.clock.set(Timestamp(1 << 50).plus(at));
    }

    fn take(&mut self, bucket: BucketKey, algorithm: Algorithm, cost: Cost) -> (Outcome, Option<Holding>) {
        let taken = self.memory.take(&plan_of(spend(bucket, algorithm, cost)));
        (taken.settlement.enforced[0], Some(Holding::Reservation(taken.reservation)))
    }

    fn end(&mut self, holding: Holding) {
        let Holding::Reservation(reservation) = holding else { panic!("a slot") };
        reservation.release();
    }
}

/// A store on a server, at real times.
struct Remote {
    runtime: tokio::runtime::Runtime,
    store: Arc<Store>,
    start: Instant,
}

impl Remote {
    fn new(settings: &stores::Settings) -> Remote {
        let store = Arc::new(Store::open(settings, 1, Clock::system(), EventSink::new(|_| {})));
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let driven = Arc::clone(&store);
        runtime.spawn(async move { driven.run(Worker(0)).await });
        runtime.block_on(store.first_attempt());
        Remote { runtime, store, start: now() }
    }
}

impl Player for Remote {
    fn wait_until(&mut self, at: Micros) {
        if at == Micros(0) {
            self.start = now();
        }
        std::thread::sleep(Duration::from(at).saturating_sub(self.start.elapsed()));
    }

    fn take(&mut self, bucket: BucketKey, algorithm: Algorithm, cost: Cost) -> (Outcome, Option<Holding>) {
        let plan = plan_of(spend(bucket, algorithm, cost));
        let taken = self.runtime.block_on(self.store.take(Worker(0), &plan, None)).unwrap().unwrap();
        (taken.settlement.enforced[0], Some(Holding::Reservation(taken.reservation)))
    }

    fn end(&mut self, holding: Holding) {
        let Holding::Reservation(reservation) = holding else { panic!("a slot") };
        reservation.release();
    }
}

fn play(player: &mut dyn Player) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/timelines/concurrency.txt");
    let text = std::fs::read_to_string(path).unwrap();
    // A new connection to Redis tries its commands on the bucket with the number 0.
    let (mut bucket, mut algorithm, mut played) = (1u8, None, 0);
    let (mut named, mut endless) = (HashMap::new(), Vec::new());
    for (number, line) in (1..).zip(text.lines()) {
        let words: Vec<_> = line.split('#').next().unwrap().split_whitespace().collect();
        match words[..] {
            [] => {}
            ["new"] => bucket += 1,
            ["slots", limit, ref hold @ ..] => {
                let limit = Concurrency::new(limit.parse().unwrap()).unwrap();
                algorithm = Some(Algorithm::Concurrency(limit.with_max_hold(hold.last().map(|hold| micros(hold)))));
            }
            [at, "end", name] => {
                player.wait_until(micros(at));
                player.end(named.remove(name).unwrap());
            }
            [at, "take", cost, ref name @ .., "->", _]
            | [at, "take", cost, ref name @ .., "->", _, _, _]
            | [at, "take", cost, ref name @ .., "->", _, _, _, _, _] => {
                player.wait_until(micros(at));
                let cost = Cost::from_tokens(cost.parse().unwrap());
                let (outcome, holding) = player.take(BucketKey([bucket; 16]), algorithm.unwrap(), cost);
                assert_eq!(describe(&outcome), words[4 + name.len()..].join(" "), "{number}: {line}");
                match (name.last(), holding) {
                    (Some(name), Some(holding)) => drop(named.insert(*name, holding)),
                    (_, holding) => endless.extend(holding),
                }
                played += 1;
            }
            _ => panic!("{number}: {line}"),
        }
    }
    assert!(played > 20, "{played} lines played");
}

fn micros(text: &str) -> Micros {
    let number = |unit: &str| text.strip_suffix(unit)?.parse::<u64>().ok();
    Micros(number("ms").map(|millis| millis * 1000).or(number("s").map(|seconds| seconds * 1_000_000)).unwrap())
}

fn describe(outcome: &Outcome) -> String {
    match outcome.verdict {
        Verdict::Allow => format!("allow left {}", outcome.remaining),
        Verdict::Deny => format!("deny wait {}s left {}", outcome.retry_after.0 / 1_000_000, outcome.remaining),
        Verdict::Never => "never".to_owned(),
        Verdict::Held => "held".to_owned(),
        Verdict::Banned => "banned".to_owned(),
        Verdict::Unasked => "unasked".to_owned(),
    }
}

#[test]
fn the_step_keeps_the_timeline_of_slots() {
    play(&mut Step::default());
}

#[test]
fn the_memory_store_keeps_the_timeline_of_slots() {
    let clock = Clock::manual(Timestamp(1 << 50));
    play(&mut InMemory { memory: Memory::new(&memory::Settings::default(), clock.clone()), clock });
}

#[test]
fn redis_keeps_the_timeline_of_slots() {
    let redis = crate::support::Redis::start();
    play(&mut Remote::new(&stores::Settings::Redis(redis.settings())));
}

#[test]
fn postgresql_keeps_the_timeline_of_slots() {
    let postgres = crate::support::Postgres::start();
    play(&mut Remote::new(&stores::Settings::Postgres(postgres.settings())));
}
