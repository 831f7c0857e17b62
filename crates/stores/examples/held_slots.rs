//! Measures what it costs a Redis server to keep slots that streams hold, while no request asks for a slot: CPU time,
//! calls, and the size of a bucket.
//!
//! `redis-server --port 6400 --save '' & cargo run --package tollgate-stores --example held_slots 6400`
#![allow(clippy::print_stdout, reason = "an example shows its result")]

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use ledger::algorithm::Algorithm;
use ledger::algorithm::concurrency::Concurrency;
use ledger::bucket_key::BucketKey;
use ledger::charge::{Charge, Plan};
use ledger::cost::Cost;
use stores::{Clock, EventSink, Micros, Settings, Store, Worker, breaker, redis};

/// The number of slots that are held at the same time.
const SLOTS: usize = 10_000;
/// How long the server is watched.
const WATCHED: Duration = Duration::from_secs(20);
/// The number of gateways, with one worker each.
const GATEWAYS: usize = 2;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let port: u16 = std::env::args().nth(1).ok_or("the port of a Redis is missing")?.parse()?;
    let mut server = ::redis::Client::open(format!("redis://127.0.0.1:{port}/"))?.get_connection()?;
    for buckets in [1, 100, SLOTS] {
        ::redis::cmd("FLUSHALL").exec(&mut server)?;
        let mut stores = Vec::new();
        for _ in 0..GATEWAYS {
            let store = Arc::new(Store::open(&in_redis(port), 1, Clock::system(), EventSink::new(|_| {})));
            let driven = Arc::clone(&store);
            let connection = tokio::spawn(async move { driven.run(Worker(0)).await });
            store.first_attempt().await;
            stores.push((store, connection));
        }
        let mut held = Vec::with_capacity(SLOTS);
        for slot in 0..SLOTS {
            let plan = plan(slot % buckets)?;
            let (store, _) = stores.get(slot % GATEWAYS).ok_or("no gateway")?;
            let taken = store.take(Worker(0), &plan, None).await.map_err(|failure| format!("{:?}", failure.error))?;
            held.extend(taken.map(|reply| reply.reservation));
        }
        let before = Usage::of(&mut server)?;
        tokio::time::sleep(WATCHED).await;
        let after = Usage::of(&mut server)?;
        let name = [b"slots:".as_slice(), &key(0).0].concat();
        let bytes: u64 = ::redis::cmd("MEMORY").arg("USAGE").arg(name).query(&mut server)?;
        let seconds = WATCHED.as_secs_f64();
        println!(
            "{} slots in {buckets} buckets, {GATEWAYS} gateways: {:.2} % of a core, {:.1} calls and {:.0} writes a second, {bytes} bytes a bucket",
            held.len(),
            100.0 * (after.cpu - before.cpu) / seconds,
            (after.calls - before.calls) / seconds,
            (after.writes - before.writes) / seconds,
        );
        drop(held);
        for (store, connection) in stores {
            store.all_reported().await;
            connection.abort();
        }
    }
    Ok(())
}

/// What the server has used since its start.
struct Usage {
    /// The CPU time in seconds.
    cpu: f64,
    calls: f64,
    writes: f64,
}

impl Usage {
    fn of(server: &mut ::redis::Connection) -> Result<Usage, Box<dyn Error>> {
        let info: String = ::redis::cmd("INFO").arg("all").query(server)?;
        let after = |name: &str| {
            let rest = info.lines().find_map(|line| line.strip_prefix(name));
            rest.and_then(|rest| rest.split(',').next()?.trim().parse::<f64>().ok()).unwrap_or_default()
        };
        let cpu = after("used_cpu_user:") + after("used_cpu_sys:");
        Ok(Usage { cpu, calls: after("cmdstat_evalsha:calls="), writes: after("cmdstat_set:calls=") })
    }
}

fn in_redis(port: u16) -> Settings {
    Settings::Redis(redis::Settings {
        target: redis::Target::at("127.0.0.1", port),
        login: redis::Login::default(),
        timeout: Micros(1_000_000),
        prefix: "slots".to_owned(),
        breaker: breaker::Settings::default(),
        gateways: 1,
    })
}

fn key(bucket: usize) -> BucketKey {
    BucketKey((bucket as u128).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835).to_le_bytes())
}

fn plan(bucket: usize) -> Result<Plan, Box<dyn Error>> {
    let algorithm = Algorithm::Concurrency(Concurrency::new(SLOTS as u64).ok_or("no slots")?);
    let mut plan = Plan::default();
    plan.enforce(Charge::new(key(bucket), algorithm, Cost::ONE));
    Ok(plan)
}
