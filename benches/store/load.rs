//! Drives one implementation with callers that ask again as soon as they get an answer, and measures time and work.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use base::time::{Clock, Micros};
use tokio::task::JoinSet;

use super::Failure;
use super::bucket::Answer;
use super::server::{Server, processor_time};
use super::subject::{BUCKETS, Subject};

/// Which buckets are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keys {
    /// All callers use one bucket.
    Hot,
    /// Each caller uses its own bucket.
    Own,
    /// Each request uses one of [`BUCKETS`] buckets, at random.
    Random,
}

impl Keys {
    pub const ALL: [Keys; 3] = [Keys::Hot, Keys::Own, Keys::Random];

    fn bucket(self, caller: usize) -> usize {
        match self {
            Keys::Hot => 0,
            Keys::Own => caller,
            Keys::Random => fastrand::usize(..BUCKETS),
        }
    }
}

impl fmt::Display for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Keys::Hot => "one hot key",
            Keys::Own => "a key for each caller",
            Keys::Random => "10 000 keys",
        })
    }
}

/// What callers were answered, and what it took.
#[derive(Clone, Copy, Debug, Default)]
pub struct Measurement {
    pub granted: u64,
    pub refused: u64,
    pub failed: u64,
    pub took: Micros,
    pub calls: u64,
    pub client: Duration,
    pub redis: Duration,
}

pub async fn measure(
    subject: &Arc<Subject>,
    server: &mut Server,
    (keys, callers): (Keys, usize),
    lasting: Duration,
) -> Result<Measurement, Failure> {
    let commands = subject.implementation().commands();
    let before = (server.calls(commands)?, server.processor_time()?, processor_time("self")?);
    let clock = Clock::system();
    let start = clock.now();
    let mut tasks = JoinSet::new();
    for caller in 0..callers {
        let (subject, clock) = (Arc::clone(subject), clock.clone());
        tasks.spawn(async move {
            let (end, mut seen) = (start.plus(lasting.into()), Measurement::default());
            while clock.now() < end {
                match subject.take(caller, keys.bucket(caller)).await {
                    Answer::Granted => {
                        seen.granted += 1;
                        continue;
                    }
                    Answer::Refused => seen.refused += 1,
                    Answer::Failed => seen.failed += 1,
                }
                // A refusal without a call needs no wait. Without this, the caller would ask again at once, and no
                // other task on this thread would run.
                tokio::task::yield_now().await;
            }
            seen
        });
    }
    let mut all = Measurement::default();
    while let Some(seen) = tasks.join_next().await {
        let seen = seen?;
        all.granted += seen.granted;
        all.refused += seen.refused;
        all.failed += seen.failed;
    }
    all.took = clock.now().since(start);
    all.client = processor_time("self")?.saturating_sub(before.2);
    all.redis = server.processor_time()?.saturating_sub(before.1);
    all.calls = server.calls(commands)? - before.0;
    Ok(all)
}
