//! Counts the log lines that were not written, and reports them together in one line.

use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use metrics::Counter;
use parking_lot::Mutex;

use crate::gateway::telemetry::events::{EventKind, Events};

pub(super) struct DropCounter {
    counter: Counter,
    events: Arc<Events>,
    unreported: Mutex<Option<DropReport>>,
    /// Whether a thread is writing a report.
    reporting: AtomicBool,
}

#[derive(Debug)]
struct DropReport {
    lines: u64,
    /// The reason why the first of the unreported lines was dropped.
    error: String,
}

impl std::fmt::Debug for DropCounter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DropCounter").field("unreported", &self.unreported).finish_non_exhaustive()
    }
}

impl DropCounter {
    pub(super) fn new(counter: Counter, events: Arc<Events>) -> DropCounter {
        DropCounter { counter, events, unreported: Mutex::default(), reporting: AtomicBool::new(false) }
    }

    /// Counts log lines that were dropped because of `error`. `lines` is 0 if the log failed before there was a line to write.
    pub(super) fn add(&self, lines: u64, error: &dyn Display) {
        self.counter.increment(lines);
        let mut unreported = self.unreported.lock();
        unreported.get_or_insert_with(|| DropReport { lines: 0, error: error.to_string() }).lines += lines;
    }

    /// Returns whether the caller must call `report` now.
    pub(super) fn begin_report(&self) -> bool {
        self.unreported.lock().is_some() && !self.reporting.swap(true, Ordering::AcqRel)
    }

    pub(super) fn report(&self) {
        let unreported = self.unreported.lock().take();
        if let Some(DropReport { lines, error }) = unreported {
            self.events.note(EventKind::LogLinesDropped, &error);
            log::warn!(dropped = lines, error; "access log not written");
        }
        self.reporting.store(false, Ordering::Release);
    }
}
