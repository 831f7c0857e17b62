//! Compares the Redis store with three handwritten token buckets: `cargo bench --bench store`.
//!
//! The redis-server is started for this benchmark. There is one client thread, and all implementations use the same
//! client library. Every round measures everything once. The medians over rounds are printed as Markdown;
//! benches/all.py writes a part of them into benches/results.md.
#![expect(unreachable_pub, reason = "a program exports nothing: what its modules share is pub")]
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a benchmark tells what it has measured")]
#![expect(clippy::indexing_slicing, reason = "a benchmark reads what it has made itself")]

mod bucket;
mod commands;
mod evalsha;
mod load;
mod ours;
mod report;
mod server;
mod subject;
mod watch;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;

use bucket::{NARROW, WIDE};
use load::{Keys, measure};
use report::{Cell, Report};
use server::Server;
use subject::{Implementation, Subject};

type Failure = Box<dyn std::error::Error>;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const CALLERS: [usize; 4] = [1, 16, 64, 256];
const WARMING_UP: Duration = Duration::from_millis(100);

/// For how many seconds, and with how many callers, the benchmark tries to get more than the limit.
const GREED: (u32, usize) = (3, 64);

/// Compares the Redis store with three token buckets as they are written by hand.
#[derive(Debug, Parser)]
struct Arguments {
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// How long each is measured in each round.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// The file to which the medians are written, for benches/picture.py.
    #[arg(long)]
    json: Option<PathBuf>,
    /// The argument that cargo passes to every benchmark.
    #[arg(long, hide = true)]
    bench: bool,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let arguments = Arguments::parse();
    let mut server = Server::start().await?;
    let mut report = Report::new(&server.version()?, arguments.rounds, arguments.seconds);
    let lasting = Duration::try_from_secs_f64(arguments.seconds)?;
    let most = CALLERS.into_iter().max().unwrap_or_default();

    let mut subjects = Vec::new();
    for implementation in Implementation::ALL {
        subjects.push((implementation, Arc::new(Subject::open(implementation, &server, WIDE, most).await?)));
    }
    for round in 1..=arguments.rounds {
        eprintln!("round {round} of {}", arguments.rounds);
        for (keys, callers) in Keys::ALL.into_iter().flat_map(|keys| CALLERS.map(|callers| (keys, callers))) {
            for (implementation, subject) in &subjects {
                server.forget_everything()?;
                measure(subject, &mut server, (keys, callers), WARMING_UP).await?;
                let measured = measure(subject, &mut server, (keys, callers), lasting).await?;
                if measured.refused > 0 {
                    return Err(format!("{implementation} has refused what a wide limit allows").into());
                }
                report.add(Cell { keys, callers, implementation: *implementation }, measured);
            }
        }
    }
    for implementation in Implementation::ALL {
        let (seconds, callers) = GREED;
        let lasting = Duration::from_secs(seconds.into());
        server.forget_everything()?;
        let subject = Arc::new(Subject::open(implementation, &server, NARROW, callers).await?);
        let measured = measure(&subject, &mut server, (Keys::Hot, callers), lasting).await?;
        report.add_over_grant(implementation, measured);
    }
    print!("{report}");
    if let Some(path) = arguments.json {
        std::fs::write(path, serde_json::to_string_pretty(&report.json())?)?;
    }
    Ok(())
}
