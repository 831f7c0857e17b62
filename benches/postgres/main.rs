//! Compares the PostgreSQL store with a published function in PL/pgSQL, which is called once for each decision: `cargo
//! bench --bench postgres`.
//!
//! The PostgreSQL server is started for this benchmark, with the settings of its distribution. There is one client
//! thread, and both use the same client library. The function has a connection for each caller. The store has the
//! connections of a gateway with one thread, of one with more threads, and of sixteen gateways. Every round measures
//! everything once, and the medians over rounds are printed.
#![expect(unreachable_pub, reason = "a program exports nothing: what its modules share is pub")]
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a benchmark tells what it has measured")]
#![expect(clippy::indexing_slicing, reason = "a benchmark reads what it has made itself")]
#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "what is printed has few digits"
)]

mod load;
mod server;

use std::time::Duration;

use clap::Parser;
use stores::postgres::Durability;

use load::{Keys, Measurement, measure_function, measure_store};
use server::Server;

type Failure = Box<dyn std::error::Error>;

/// Gateways, and how many connections each has.
#[derive(Clone, Copy, Debug)]
pub struct Fleet {
    pub gateways: usize,
    pub connections: usize,
}

const FLEETS: [Fleet; 3] = [
    Fleet { gateways: 1, connections: 1 },
    Fleet { gateways: 1, connections: 2 },
    Fleet { gateways: 16, connections: 2 },
];

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Compares the PostgreSQL store with a function that is called once for each decision.
#[derive(Debug, Parser)]
struct Arguments {
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// How long each is measured in each round.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    #[arg(long, default_value_t = 64)]
    callers: usize,
    /// The argument that cargo passes to every benchmark.
    #[arg(long, hide = true)]
    bench: bool,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let Arguments { rounds, seconds, callers, .. } = Arguments::parse();
    let lasting = Duration::try_from_secs_f64(seconds)?;
    let server = Server::start().await?;
    let (mut lines, mut budgets) = (Vec::new(), Vec::new());
    for durability in [Durability::Sync, Durability::Async] {
        for keys in [Keys::Hot, Keys::Many] {
            let (mut ours, mut theirs) = (FLEETS.map(|_| Vec::new()), Vec::new());
            for round in 1..=rounds {
                eprintln!("{} {keys:?}: round {round} of {rounds}", durability.name());
                server.initialize(durability).await?;
                theirs.push(measure_function(&server, durability, keys, callers, lasting).await?);
                for (fleet, ours) in FLEETS.into_iter().zip(&mut ours) {
                    server.initialize(durability).await?;
                    ours.push(measure_store(&server, durability, keys, (callers, fleet), lasting).await?);
                }
            }
            let theirs = Measurement::median(theirs);
            for (Fleet { gateways, connections }, ours) in FLEETS.into_iter().zip(ours) {
                let ours = Measurement::median(ours);
                let (speed, p99) =
                    (ours.per_second as f64 / theirs.per_second as f64, ours.p99 as f64 / theirs.p99 as f64);
                if gateways * connections == 1 {
                    budgets.extend(budget_rows(durability, keys, speed, p99));
                }
                lines.push(format!(
                    "| {} | {} | {} | {} | {} | {:.1}× | {} | {} | {:.2}× | {:.4} |",
                    durability.name(),
                    keys.name(),
                    gateways * connections,
                    ours.per_second,
                    theirs.per_second,
                    speed,
                    milliseconds(ours.p99),
                    milliseconds(theirs.p99),
                    p99,
                    ours.calls as f64 / ours.decisions as f64,
                ));
            }
        }
    }
    println!("{}; {callers} callers, medians of {rounds} rounds of {seconds} s:\n", server.version().await?);
    println!(
        "| durability | keys | connections of the store | decisions/s: store | function | store ÷ function | p99: store | function | store ÷ function | transactions per decision |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    lines.iter().for_each(|line| println!("{line}"));
    println!("\n| store ÷ function, one connection | measured | budget |\n|---|---|---|");
    budgets.iter().for_each(|row| println!("{row}"));
    Ok(())
}

/// Returns the table rows of the numbers that have a budget.
fn budget_rows(durability: Durability, keys: Keys, speed: f64, p99: f64) -> Vec<String> {
    let what = |number: &str| format!("PostgreSQL, {}, keys: {}, {number}", durability.name(), keys.name());
    let at_least = |least: u32| format!("| {} | {speed:.1} × | ≥ {least} × |", what("decisions/s"));
    match (keys, durability) {
        (Keys::Hot, _) => vec![at_least(10), format!("| {} | {p99:.2} × | ≤ 0.2 × |", what("p99"))],
        (Keys::Many, Durability::Sync) => vec![at_least(3)],
        (Keys::Many, _) => Vec::new(),
    }
}

fn milliseconds(micros: u64) -> String {
    format!("{:.1} ms", micros as f64 / 1000.0)
}
