//! Counts the allocations of a decision, for the Redis store and for the token buckets with which it is compared:
//! `cargo bench --bench allocations`.
//!
//! This is a separate program, because a program has one allocator. Its allocator counts, on the only client thread,
//! and would slow down the benchmark of speed. The count includes the whole client: the callers' tasks, the redis
//! crate, and the store.
#![expect(unreachable_pub, reason = "a program exports nothing: what its modules share is pub")]
#![expect(clippy::print_stdout, reason = "a benchmark prints what it has measured")]
#![expect(clippy::indexing_slicing, reason = "a benchmark reads what it has made itself")]
#![expect(dead_code, reason = "the modules are shared with the benchmark of speed, which measures more")]

mod bucket;
mod commands;
mod evalsha;
mod load;
mod ours;
mod server;
mod subject;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use bucket::WIDE;
use load::{Keys, Measurement, measure};
use server::Server;
use subject::{Implementation, Subject};

type Failure = Box<dyn std::error::Error>;

const CALLERS: [usize; 3] = [1, 64, 256];
const WARM_UP: Duration = Duration::from_millis(100);
const MEASURED: Duration = Duration::from_millis(500);

fn main() -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut server = runtime.block_on(Server::start())?;
    println!("Redis {}, one client thread\n", server.version()?);
    println!("| allocations per decision | callers | one hot key | 10 000 keys |\n|---|---|---|---|");
    for callers in CALLERS {
        for implementation in Implementation::ALL {
            let subject = Arc::new(runtime.block_on(Subject::open(implementation, &server, WIDE, callers))?);
            print!("| {implementation} | {callers} |");
            for keys in [Keys::Hot, Keys::Random] {
                server.forget_everything()?;
                runtime.block_on(measure(&subject, &mut server, (keys, callers), WARM_UP))?;
                let mut measured = Ok(Measurement::default());
                let allocations = allocation_counter::measure(|| {
                    measured = runtime.block_on(measure(&subject, &mut server, (keys, callers), MEASURED));
                });
                print!(" {:.2} |", per_decision(allocations.count_total, &measured?));
            }
            println!();
        }
    }
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "counts of half a second are far below 2^53")]
fn per_decision(allocations: u64, measured: &Measurement) -> f64 {
    allocations as f64 / (measured.granted + measured.refused) as f64
}
