//! Takes three requests from a token bucket of two tokens: in the memory store, and in a Redis if its port is given.
//!
//! `cargo run --package tollgate-stores --example three_takes 6379`
#![allow(clippy::print_stdout, reason = "an example shows its result")]

use std::error::Error;
use std::sync::Arc;

use ledger::algorithm::Algorithm;
use ledger::algorithm::token_bucket::{Rate, TokenBucket};
use ledger::bucket_key::{Descriptor, KeySeed, LimitIdentity};
use ledger::charge::{Charge, Plan};
use ledger::cost::Cost;
use ledger::outcome::Outcome;
use stores::{Clock, EventSink, Micros, Settings, Store, Worker, breaker, memory, redis};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let redis = std::env::args().nth(1).map(|port| port.parse()).transpose()?.map(in_redis);
    for settings in [Some(in_memory()), redis].into_iter().flatten() {
        for outcome in three_takes(settings).await? {
            println!("{:?}: {} left, wait {} s", outcome.verdict, outcome.remaining, outcome.retry_after.seconds());
        }
    }
    Ok(())
}

pub fn in_memory() -> Settings {
    Settings::Memory(memory::Settings::default())
}

pub fn in_redis(port: u16) -> Settings {
    Settings::Redis(redis::Settings {
        target: redis::Target::at("127.0.0.1", port),
        login: redis::Login::default(),
        timeout: Micros(1_000_000),
        prefix: "example".to_owned(),
        breaker: breaker::Settings::default(),
        gateways: 1,
    })
}

/// Takes from a bucket three times for one client: two requests are granted, and the third is refused.
pub async fn three_takes(settings: Settings) -> Result<Vec<Outcome>, Box<dyn Error>> {
    let store = Arc::new(Store::open(&settings, 1, Clock::system(), EventSink::new(|_| {})));
    // A task must drive the connection of a remote store.
    let connection = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.run(Worker(0)).await }
    });
    store.first_attempt().await;
    let plan = plan()?;
    let mut outcomes = Vec::new();
    for _ in 0..3 {
        let reply = store.take(Worker(0), &plan, None).await.map_err(|failure| format!("{:?}", failure.error))?;
        outcomes.extend(reply.into_iter().flat_map(|reply| reply.settlement.enforced));
    }
    connection.abort();
    Ok(outcomes)
}

/// Returns a plan that takes one token. The bucket has a capacity of two tokens and gains one token each minute.
fn plan() -> Result<Plan, Box<dyn Error>> {
    let rate = Rate { amount: Cost::ONE, period: Micros(60_000_000) };
    let bucket = TokenBucket::new(rate, 2).map_err(|invalid| format!("{invalid:?}"))?;
    let algorithm = Algorithm::TokenBucket(bucket);
    let limit = KeySeed::new(&LimitIdentity {
        policy: "example",
        rule: "client",
        limit: "",
        mode: "enforce",
        algorithm: algorithm.kind(),
        keys: &["process".to_owned()],
    });
    let mut client = Descriptor::default();
    client.push(0, &std::process::id().to_be_bytes());
    let mut plan = Plan::default();
    plan.enforce(Charge::new(limit.key(&client), algorithm, Cost::ONE));
    Ok(plan)
}
