//! Holds slots of a limit of two, gives one back, and takes it again. The argument is the port of a Redis on this
//! machine.
//!
//! `cargo run --package tollgate-stores --example slots 6379`
#![allow(clippy::print_stdout, reason = "an example shows its result")]

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use ledger::algorithm::Algorithm;
use ledger::algorithm::concurrency::Concurrency;
use ledger::bucket_key::BucketKey;
use ledger::charge::{Charge, Plan};
use ledger::cost::Cost;
use stores::{Clock, EventSink, Micros, Reservation, Settings, Store, Worker, breaker, memory, redis};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let redis = std::env::args().nth(1).map(|port| port.parse()).transpose()?.map(in_redis);
    for settings in [Some(Settings::Memory(memory::Settings::default())), redis].into_iter().flatten() {
        println!(
            "{}: {:?}",
            Store::open(&settings, 1, Clock::system(), EventSink::new(|_| {})).name(),
            slots(settings).await?
        );
    }
    Ok(())
}

fn in_redis(port: u16) -> Settings {
    Settings::Redis(redis::Settings {
        target: redis::Target::at("127.0.0.1", port),
        login: redis::Login::default(),
        timeout: Micros(1_000_000),
        prefix: "example".to_owned(),
        breaker: breaker::Settings::default(),
        gateways: 1,
    })
}

/// Asks for a slot three times, then gives one back and asks again. Returns which requests were granted.
async fn slots(settings: Settings) -> Result<Vec<bool>, Box<dyn Error>> {
    let store = Arc::new(Store::open(&settings, 1, Clock::system(), EventSink::new(|_| {})));
    let connection = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.run(Worker(0)).await }
    });
    store.first_attempt().await;
    let plan = plan()?;
    let (mut granted, mut held) = (Vec::new(), Vec::new());
    for request in 0..4 {
        if request == 3 {
            // The request is over: its slot is given back without waiting for the store.
            let ended: Option<Reservation> = held.pop();
            drop(ended);
        }
        let taken = store.take(Worker(0), &plan, None).await.map_err(|failure| format!("{:?}", failure.error))?;
        let Some(reply) = taken else { continue };
        granted.push(reply.settlement.is_granted());
        if reply.settlement.is_granted() {
            held.push(reply.reservation);
        }
    }
    held.clear();
    // Leaves time to send the last reports.
    tokio::time::sleep(Duration::from_millis(20)).await;
    connection.abort();
    Ok(granted)
}

/// Returns a plan that asks for one of two slots.
fn plan() -> Result<Plan, Box<dyn Error>> {
    let key = BucketKey(u128::from(std::process::id()).to_be_bytes());
    let algorithm = Algorithm::Concurrency(Concurrency::new(2).ok_or("no slots")?);
    let mut plan = Plan::default();
    plan.enforce(Charge::new(key, algorithm, Cost::ONE));
    Ok(plan)
}
