//! Runs callers that ask again as soon as they get an answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::time::{Clock, Micros};
use ledger::algorithm::Algorithm;
use ledger::algorithm::token_bucket::{Rate, TokenBucket};
use ledger::bucket_key::{BucketKey, LimitTag};
use ledger::charge::{Charge, ChargePurpose, LimitId, Plan};
use ledger::cost::Cost;
use smallvec::smallvec;
use stores::postgres::Durability;
use stores::{Event, EventSink, Settings, Store, Worker};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::server::Server;
use super::{Failure, Fleet};

const MANY: u64 = 10_000;
const WARMING_UP: Duration = Duration::from_millis(500);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keys {
    Hot,
    Many,
}

impl Keys {
    pub fn name(self) -> &'static str {
        match self {
            Keys::Hot => "one",
            Keys::Many => "10 000",
        }
    }

    fn next(self) -> u64 {
        match self {
            Keys::Hot => 0,
            Keys::Many => fastrand::u64(0..MANY),
        }
    }
}

/// What callers got, and in how many transactions.
#[derive(Clone, Copy, Debug, Default)]
pub struct Measurement {
    pub per_second: u64,
    /// In microseconds.
    pub p99: u64,
    pub decisions: u64,
    /// Transactions, while these were made.
    pub calls: u64,
}

impl Measurement {
    fn of(mut latencies: Vec<u64>, took: Duration, calls: u64) -> Measurement {
        latencies.sort_unstable();
        let decisions = latencies.len() as u64;
        let p99 = latencies.get(latencies.len() * 99 / 100).copied().unwrap_or_default();
        let per_second = decisions * 1_000_000 / u64::try_from(took.as_micros()).unwrap_or(u64::MAX).max(1);
        Measurement { per_second, p99, decisions, calls }
    }

    /// Of each number by itself.
    pub fn median(mut rounds: Vec<Measurement>) -> Measurement {
        let middle = rounds.len() / 2;
        rounds.sort_unstable_by_key(|round| round.p99);
        let p99 = rounds[middle].p99;
        rounds.sort_unstable_by_key(|round| round.per_second);
        Measurement { p99, ..rounds[middle] }
    }
}

/// Asks repeatedly, and returns the latencies in microseconds of the requests after the warm-up.
async fn ask<F: Future<Output = Result<(), Failure>>>(
    lasting: Duration,
    ask_once: impl Fn() -> F,
) -> Result<Vec<u64>, String> {
    let begin = Instant::now() + WARMING_UP;
    let end = begin + lasting;
    let mut latencies = Vec::new();
    loop {
        let sent = Instant::now();
        if sent >= end {
            return Ok(latencies);
        }
        ask_once().await.map_err(|error| error.to_string())?;
        if sent >= begin {
            latencies.push(u64::try_from(sent.elapsed().as_micros()).unwrap_or(u64::MAX));
        }
    }
}

/// One call of the function for each decision, on a connection for each caller.
pub async fn measure_function(
    server: &Server,
    durability: Durability,
    keys: Keys,
    callers: usize,
    lasting: Duration,
) -> Result<Measurement, Failure> {
    let commit = if durability == Durability::Sync { "on" } else { "off" };
    let mut tasks = Vec::new();
    // The function's first call for a key fails if two callers make it at once, so all keys are used here first.
    let admin = server.connect().await?;
    let first =
        "SELECT rate_limiting_token_bucket_request('user' || n, 1000000, 60) FROM generate_series(0, 9999) AS n";
    admin.query(first, &[]).await?;
    for _ in 0..callers {
        let client = Arc::new(server.connect().await?);
        client.batch_execute(&format!("SET synchronous_commit = {commit}")).await?;
        let statement = client.prepare("SELECT rate_limiting_token_bucket_request($1, 1000000, 60)").await?;
        tasks.push(tokio::spawn(async move {
            ask(lasting, || async {
                let row = client.query_one(&statement, &[&format!("user{}", keys.next())]).await?;
                let left: i32 = row.try_get(0)?;
                if left < 0 { Err("the function has refused what a wide limit allows".into()) } else { Ok(()) }
            })
            .await
        }));
    }
    let mut latencies = Vec::new();
    for task in tasks {
        latencies.extend(task.await??);
    }
    let calls = latencies.len() as u64;
    Ok(Measurement::of(latencies, lasting, calls))
}

/// The stores of some gateways; here one thread drives all of their connections.
pub async fn measure_store(
    server: &Server,
    durability: Durability,
    keys: Keys,
    (callers, Fleet { gateways, connections }): (usize, Fleet),
    lasting: Duration,
) -> Result<Measurement, Failure> {
    let calls = Arc::new(AtomicU64::new(0));
    let settings = Settings::Postgres(server.settings(durability));
    let (mut stores, mut drivers) = (Vec::new(), JoinSet::new());
    for _ in 0..gateways {
        let counted = Arc::clone(&calls);
        let events = EventSink::new(move |event| {
            if let Event::CallEnded(_) = event {
                counted.fetch_add(1, Ordering::Relaxed);
            }
        });
        let store = Arc::new(Store::open(&settings, connections, Clock::system(), events));
        for worker in 0..connections {
            let driven = Arc::clone(&store);
            drivers.spawn(async move { driven.run(Worker(worker)).await });
        }
        store.first_attempt().await;
        stores.push(store);
    }
    let rate = Rate { amount: Cost::from_tokens(1_000_000), period: Micros(1_000_000) };
    let bucket = TokenBucket::new(rate, 60_000_000).map_err(|_| "impossible numbers")?;
    let mut tasks = Vec::new();
    for caller in 0..callers {
        let (store, worker) = (Arc::clone(&stores[caller % gateways]), Worker(caller / gateways % connections));
        tasks.push(tokio::spawn(async move {
            ask(lasting, || async {
                let mut key = [0; 16];
                // Spread like the bytes of a hash.
                key[..8].copy_from_slice(&(keys.next() + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
                let charge = Charge {
                    key: BucketKey(key),
                    algorithm: Algorithm::TokenBucket(bucket),
                    cost: Cost::ONE,
                    limit: LimitId(0),
                    variant: 0,
                    tag: LimitTag::default(),
                    purpose: ChargePurpose::Spend,
                };
                let plan = Plan { enforced: smallvec![charge], shadow: smallvec![] };
                match store.take(worker, &plan, None).await {
                    Ok(Some(reply)) if reply.settlement.is_granted() => Ok(()),
                    other => Err(format!("not granted: {other:?}").into()),
                }
            })
            .await
        }));
    }
    let before = calls.load(Ordering::Relaxed);
    let mut latencies = Vec::new();
    for task in tasks {
        latencies.extend(task.await??);
    }
    drivers.shutdown().await;
    // The calls of the warm-up are included, so only their share is counted.
    let calls = calls.load(Ordering::Relaxed) - before;
    let share = lasting.as_secs_f64() / (lasting + WARMING_UP).as_secs_f64();
    Ok(Measurement::of(latencies, lasting, (calls as f64 * share) as u64))
}
