//! Stores on servers have the same results as the Rust steps of purses and homes, and store the same states.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use fastrand::Rng;
use ledger::algorithm::lease::{HomeAnswer, LeaseAct, LeaseReply, RegionId, Word, WordId, WordKind};
use ledger::algorithm::raise::{Raise, RaiseId};
use ledger::algorithm::{Entry, State};
use ledger::bucket_key::{BucketKey, LimitTag};
use ledger::cost::Cost;
use stores::postgres::Durability;
use stores::{ActResult, BucketAct, Clock, EventSink, Inspector, LeaseStore, Micros, Settings};

use crate::random_acts::{BUCKETS, Said, act, limit, note};
use crate::support::postgres::Postgres;
use crate::support::redis::Redis;
use crate::support::redis_cluster::RedisCluster;
use base::time::Timestamp;

const SECOND: u64 = 1_000_000;
/// Far in the future, because a database removes old rows by its own clock.
const START: u64 = 4_072_626_000_123_456;

/// The unit of the times of a test that cannot set the clock: seven of them are the shortest period of a limit.
const SHORT_UNIT: u64 = 150_000;

/// How late a Redis removes a state, and the time of its clock that it uses for a call.
const LATE: Micros = Micros(5_000);

/// How time passes between two calls.
#[derive(Clone, Debug)]
enum Time {
    /// The store uses this clock, which a test sets.
    Chosen(Clock),
    /// The store uses its own clock, which the reply shows.
    Real,
}

/// The acts that one call may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Calls {
    OfAnyBuckets,
    /// The reply shows the time of one server only.
    OfOneBucket,
}

/// A stored state, and until when the store keeps it.
#[derive(Clone, Debug)]
struct Stored {
    state: State,
    kept_until: Timestamp,
}

struct Play {
    store: LeaseStore,
    inspector: Inspector,
    time: Time,
    calls: Calls,
    kinds: HashMap<&'static str, usize>,
    healed: u64,
}

impl Play {
    async fn new(settings: Settings, time: Time, calls: Calls) -> Play {
        let clock = match &time {
            Time::Chosen(clock) => clock.clone(),
            Time::Real => Clock::system(),
        };
        let store = LeaseStore::open(&settings, clock, EventSink::new(|_| {}));
        let driven = store.clone();
        tokio::spawn(async move { driven.run().await });
        store.first_attempt().await;
        let inspector = settings.inspect().await.unwrap();
        Play { store, inspector, time, calls, kinds: HashMap::new(), healed: 0 }
    }

    /// Makes calls of random acts. Buckets of other seeds are not used.
    async fn play(&mut self, seed: u64, steps: usize) {
        let rng = &mut Rng::with_seed(seed);
        let unit = if matches!(self.time, Time::Chosen(_)) { SECOND } else { SHORT_UNIT };
        let key = |bucket: u8| BucketKey([u8::try_from(seed).unwrap() * BUCKETS + bucket; 16]);
        let (mut model, mut now): (HashMap<BucketKey, Stored>, u64) = (HashMap::new(), START);
        let mut said = Said::default();
        let mut seen = Timestamp(START);
        for step in 0..steps {
            match &self.time {
                Time::Chosen(clock) => {
                    now = now.saturating_add_signed(passed(rng));
                    clock.set(Timestamp(now));
                    seen = Timestamp(now);
                }
                Time::Real => tokio::time::sleep(Duration::from_millis(rng.u64(0..40))).await,
            }
            if rng.u8(0..10) == 0 {
                let bucket = rng.u8(0..BUCKETS);
                self.tamper(rng, key(bucket), bucket, unit, &mut model).await;
            }
            let is_reloaded = rng.u8(0..6) == 0;
            let only = rng.u8(0..BUCKETS);
            let one = |_| {
                let bucket = if self.calls == Calls::OfOneBucket { only } else { rng.u8(0..BUCKETS) };
                let act = act(rng, bucket, &said, seen, unit);
                BucketAct { key: key(bucket), limit: limit(bucket, is_reloaded, unit), tag: LimitTag::default(), act }
            };
            let acts: Vec<BucketAct> = (0..4).map(one).collect();
            let acts = &acts[..1 + rng.usize(0..4)];
            let done = self.store.act(acts, Micros(10 * SECOND)).await.unwrap();
            assert_eq!(done.results.len(), acts.len());
            seen = done.now;
            self.healed += done.healed;
            if let Time::Chosen(_) = self.time {
                assert_eq!(done.now, Timestamp(now));
            }
            // The buckets of which the server may have removed the state, or not yet.
            let mut unsure = Vec::new();
            for (one, result) in acts.iter().zip(&done.results) {
                let ActResult::Done(reply) = result else { panic!("seed {seed}, step {step}: {result:?}") };
                let kept_until = model.get(&one.key).map_or(Timestamp(u64::MAX), |stored| stored.kept_until);
                let is_over = matches!(self.time, Time::Real) && kept_until <= done.now;
                if is_over && done.now.since(kept_until) > LATE {
                    model.remove(&one.key);
                } else if is_over {
                    unsure.push(one.key);
                }
                let of = |model: &HashMap<BucketKey, Stored>| {
                    one.act.apply(&one.limit, model.get(&one.key).map(|stored| &stored.state[..]), done.now).unwrap()
                };
                let (mut entry, mut expected) = of(&model);
                if expected != *reply && unsure.contains(&one.key) {
                    model.remove(&one.key);
                    (entry, expected) = of(&model);
                }
                assert_eq!(*reply, expected, "seed {seed}, step {step}: {one:?} of {:?}", model.get(&one.key));
                note(&mut self.kinds, &mut said, one, *reply, done.now, unit);
                if let Some(Entry { state, kept_until }) = entry {
                    // Every store keeps a state for a moment at least, and so for the next act of the call.
                    let kept_until = kept_until.max(done.now);
                    model.insert(one.key, Stored { state, kept_until });
                }
            }
            self.compare(acts, &unsure, &mut model).await;
        }
    }

    /// Compares the stored states of the acts' buckets with those of the model.
    async fn compare(&mut self, acts: &[BucketAct], unsure: &[BucketKey], model: &mut HashMap<BucketKey, Stored>) {
        let keys: Vec<BucketKey> = acts.iter().map(|one| one.key).collect();
        let (now, states) = self.inspector.states(&keys).await.unwrap();
        for (key, state) in keys.iter().zip(states) {
            let stored = model.get_mut(key);
            let is_over =
                matches!(self.time, Time::Real) && stored.as_ref().is_some_and(|stored| stored.kept_until <= now);
            match (state, stored) {
                (None, _) if is_over => {}
                (Some(state), Some(stored)) if unsure.contains(key) => stored.state = state,
                (state, stored) => assert_eq!(state, stored.map(|stored| stored.state.clone()), "{key:?}"),
            }
        }
    }

    /// Raises a home, or replaces a state by an invalid one.
    async fn tamper(
        &mut self,
        rng: &mut Rng,
        key: BucketKey,
        bucket: u8,
        unit: u64,
        model: &mut HashMap<BucketKey, Stored>,
    ) {
        let limit = limit(bucket, false, unit);
        let (id, tokens, span) = (RaiseId(rng.u64(0..9)), rng.u64(1..20), rng.u64(1..60 * unit));
        let is_raise = bucket < 5 && rng.bool();
        let chosen = match &self.time {
            Time::Chosen(clock) => Some(clock.now()),
            Time::Real => None,
        };
        let written = Mutex::new(None);
        let change = |_: &BucketKey, state: Option<&[u64]>, now: Timestamp| {
            let now = chosen.unwrap_or(now);
            let raise = Raise { id, amount: Cost::from_tokens(tokens), end: now.plus(Micros(span)) };
            let invalid = || Entry { state: State::from_slice(&[7, 7]), kept_until: now.plus(Micros(3600 * SECOND)) };
            let entry = if is_raise { limit.set_raise(state, raise, now).ok().flatten() } else { Some(invalid()) };
            written.lock().unwrap().clone_from(&entry);
            entry
        };
        self.inspector.change(&[key], &change).await.unwrap();
        if let Some(Entry { state, kept_until }) = written.into_inner().unwrap() {
            model.insert(key, Stored { state, kept_until });
        }
    }

    fn check_kinds(&self, least: usize) {
        for kind in ["sent", "credited", "nothing", "given", "refused", "again", "older", "returned"] {
            assert!(self.kinds.get(kind).is_some_and(|count| *count >= least), "{kind}: {:?}", self.kinds);
        }
        assert!(self.healed > 0);
    }
}

/// Returns how far a clock moves, in microseconds. Sometimes it is set back.
fn passed(rng: &mut Rng) -> i64 {
    match rng.u8(0..12) {
        0 => -rng.i64(0..15_000_000),
        1 => rng.i64(0..90_000_000),
        2 => 86_400_000_000 * rng.i64(0..20),
        3..6 => 0,
        6..9 => rng.i64(0..600_000),
        _ => rng.i64(0..6_000_000),
    }
}

#[tokio::test]
async fn postgres_has_the_results_of_the_steps_whatever_its_clock_does() {
    let postgres = Postgres::start();
    let settings = Settings::Postgres(postgres.settings(Durability::Async));
    let clock = Clock::manual(Timestamp(START));
    let mut play = Play::new(settings, Time::Chosen(clock), Calls::OfAnyBuckets).await;
    for seed in 0..12 {
        play.play(seed, 100).await;
    }
    play.check_kinds(9);
}

#[tokio::test]
async fn a_redis_has_the_results_of_the_steps() {
    let redis = Redis::start(&[]);
    let mut play = Play::new(Settings::Redis(redis.settings()), Time::Real, Calls::OfAnyBuckets).await;
    for seed in 0..4 {
        play.play(seed, 100).await;
    }
    play.check_kinds(3);
}

#[tokio::test]
async fn the_nodes_of_a_cluster_have_the_results_of_the_steps() {
    let cluster = RedisCluster::start();
    for (hash_tags, calls) in [(1, Calls::OfAnyBuckets), (16, Calls::OfOneBucket)] {
        let mut play = Play::new(Settings::Redis(cluster.settings(hash_tags)), Time::Real, calls).await;
        for seed in 0..4 {
            play.play(seed, 100).await;
        }
        play.check_kinds(3);
    }
    let keys: Vec<usize> = cluster.masters.iter().map(|master| master.command(&["DBSIZE"])).collect();
    assert!(keys.iter().all(|keys| *keys > 0), "{keys:?}");
}

#[tokio::test]
async fn a_home_of_more_purses_than_it_remembers_has_the_results_of_the_steps() {
    let redis = Redis::start(&[]);
    let mut play = Play::new(Settings::Redis(redis.settings()), Time::Real, Calls::OfAnyBuckets).await;
    let rng = &mut Rng::with_seed(7);
    let (mut older, mut given) = (0, 0);
    for bucket in 0..5 {
        let key = BucketKey([bucket; 16]);
        // The periods are longer than the test, so that no entry ends.
        let limit = limit(bucket, false, 50 * SECOND);
        let mut model: Option<State> = None;
        for step in 0..300 {
            let [amount, left] = [1, 1].map(|most| Cost::from_thousandths(rng.u64(0..=most)));
            let kind = if rng.u8(0..4) == 0 { WordKind::Return } else { WordKind::Lease };
            let id = WordId { number: step / 4 + rng.u64(1..9), tag: rng.u64(1..3) };
            let word = Word { id, kind, amount, least: amount, left, period: Timestamp(0) };
            let act = LeaseAct::Word(RegionId(rng.u64(1..90)), word);
            let one = BucketAct { key, limit, tag: LimitTag::default(), act };
            let two = [one, BucketAct { act: LeaseAct::Word(RegionId(rng.u64(1..90)), word), ..one }];
            let done = play.store.act(&two, Micros(10 * SECOND)).await.unwrap();
            for (one, result) in two.iter().zip(&done.results) {
                let (entry, reply) = one.act.apply(&limit, model.as_deref(), done.now).unwrap();
                assert_eq!(*result, ActResult::Done(reply), "bucket {bucket}, step {step}: {one:?} of {model:?}");
                match reply {
                    LeaseReply::Home(HomeAnswer::Older { .. }) => older += 1,
                    _ => given += 1,
                }
                model = entry.map(|entry| entry.state).or(model);
            }
        }
        assert!(model.as_ref().unwrap().len() >= 3 + 8 * 64, "{model:?}");
        assert_eq!(play.inspector.states(&[key]).await.unwrap().1, [model]);
    }
    assert!(older > 100 && given > 100, "{older} {given}");
}
