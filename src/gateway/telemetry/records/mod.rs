//! Writes records for billing: what each subject has used of a meter, in lines that one thread for each destination writes.
//!
//! Requests add to a table of their worker, which only the writer's thread locks too, for a moment at the end of an interval. The
//! thread then makes the lines. It keeps them in memory until they are on the disk, so that a full disk stops no request.

mod backlog;
mod held_subject;
mod interval_sums;
mod left_holds;
mod limits;
mod notice_queue;
mod notices;
mod settled_thresholds;
mod subject_index;
mod table;
mod writer;

use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use metrics::{Counter, Gauge};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};

use super::events::Events;
use super::line_sink;
use super::metrics::registry::Registry;
use base::host_name::host_name;
use base::time::Clock;
use config::Records;
use config::access_log::Destination;
pub(crate) use held_subject::{HeldAttribute, HeldSubject};
pub(crate) use left_holds::LeftReserve;
pub(crate) use limits::{RecordedLimits, Subject};
pub(crate) use notices::{BegunBan, ReachedThresholds};
pub(crate) use settled_thresholds::{SettledThresholds, ThresholdQuestion};
pub(crate) use subject_index::{IndexedCharge, IndexedSubject, SubjectIndex};
pub(crate) use table::{RecordKey, Use};
pub(crate) use writer::RecordWriter;
use writer::WriterState;

/// How long an exiting process waits for unwritten records. A disk may take long to confirm that it has them.
const FINISH_TIMEOUT: Duration = Duration::from_secs(2);

/// The records of a process: one writer and one thread for each destination.
#[derive(Debug)]
pub(crate) struct RecordWriters {
    /// The subjects of the buckets that requests have charged lately.
    pub subjects: SubjectIndex,
    pub settled_thresholds: Arc<SettledThresholds>,
    shared: Arc<Shared>,
    /// The writers whose threads have not ended.
    writers: Mutex<Vec<Weak<WriterState>>>,
}

/// What all writers of the process use.
#[derive(Debug)]
struct Shared {
    workers: usize,
    clock: Clock,
    metrics: RecordMetrics,
    events: Arc<Events>,
    /// A random number that distinguishes this process from all others.
    run: [u8; 16],
    /// The `source` of lines.
    source: String,
}

/// The metrics of records. All count lines.
#[derive(Clone)]
struct RecordMetrics {
    written: Counter,
    kept: Gauge,
    lost: Counter,
}

impl std::fmt::Debug for RecordMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RecordMetrics")
    }
}

impl RecordWriters {
    /// Makes the records of a process with this number of workers, without a writer.
    pub(crate) fn new(workers: usize, clock: Clock, registry: &Registry, events: Arc<Events>) -> RecordWriters {
        let metrics = RecordMetrics {
            written: registry.counter("rate_limiter_records_written_total", &[]),
            kept: registry.gauge("rate_limiter_records_kept", &[]),
            lost: registry.counter("rate_limiter_records_lost_total", &[]),
        };
        let mut run = Sha256::new();
        run.update(fastrand::u128(..).to_le_bytes());
        run.update(std::process::id().to_le_bytes());
        run.update(clock.wall().0.to_le_bytes());
        let run = first_half(&run.finalize());
        let source = format!("tollgate/{}", host_name());
        let shared = Shared { workers, clock, metrics, events, run, source };
        RecordWriters {
            subjects: SubjectIndex::new(workers),
            settled_thresholds: Arc::default(),
            shared: Arc::new(shared),
            writers: Mutex::default(),
        }
    }

    /// Opens a destination for a moment, to check that records can be written to it.
    ///
    /// # Errors
    /// If the destination cannot be opened.
    pub(crate) fn probe(to: &Destination) -> io::Result<()> {
        line_sink::open(to).map(drop)
    }

    /// Starts the thread that writes records, and returns its writer. If the destination cannot be opened, this is reported, and
    /// it is opened again and again.
    fn start(&self, settings: &Records) -> RecordWriter {
        let state = WriterState::start(&self.shared, settings);
        let mut writers = self.writers.lock();
        writers.retain(|writer| writer.strong_count() > 0);
        writers.push(Arc::downgrade(&state));
        RecordWriter::new(state)
    }

    /// Opens the files of records again at their paths. To be called after a rotation of the files.
    pub(crate) fn reopen(&self) {
        self.living().iter().for_each(|writer| writer.reopen());
    }

    /// Ends the interval, and waits until its records are on the disk, but not longer than [`FINISH_TIMEOUT`]. To be called at the
    /// end of the process, when all costs are settled.
    pub(crate) fn finish(&self) {
        let living = self.living();
        let asked: Vec<u64> = living.iter().map(|writer| writer.ask_to_finish()).collect();
        living.iter().zip(asked).for_each(|(writer, asked)| writer.wait_until_finished(asked, FINISH_TIMEOUT));
    }

    fn living(&self) -> Vec<Arc<WriterState>> {
        self.writers.lock().iter().filter_map(Weak::upgrade).collect()
    }
}

/// Returns the first 16 bytes of a hash.
fn first_half(hash: &[u8]) -> [u8; 16] {
    let mut half = [0; 16];
    half.iter_mut().zip(hash).for_each(|(to, from)| *to = *from);
    half
}
