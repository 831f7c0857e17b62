//! Counts the lines that were not written, and says so in the diagnostics: one line for all since the last.

use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use metrics::Counter;
use parking_lot::Mutex;

use crate::gateway::telemetry::events::{Events, Happened};

pub struct DropCounter {
    counter: Counter,
    events: Arc<Events>,
    untold: Mutex<Option<Untold>>,
    /// Whether somebody is at it: who writes diagnostics may be kept by whoever reads them.
    telling: AtomicBool,
}

#[derive(Debug)]
struct Untold {
    lines: u64,
    /// Of the first of them.
    error: String,
}

impl std::fmt::Debug for DropCounter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DropCounter").field("untold", &self.untold).finish_non_exhaustive()
    }
}

impl DropCounter {
    pub fn new(counter: Counter, events: Arc<Events>) -> DropCounter {
        DropCounter { counter, events, untold: Mutex::default(), telling: AtomicBool::new(false) }
    }

    /// So many lines, and why; none where nothing was to be written yet.
    pub fn add(&self, lines: u64, error: &dyn Display) {
        self.counter.increment(lines);
        let mut untold = self.untold.lock();
        untold.get_or_insert_with(|| Untold { lines: 0, error: error.to_string() }).lines += lines;
    }

    /// Whether there is something to tell, and nobody is telling. Who is told so has to tell it.
    pub fn begins_to_tell(&self) -> bool {
        self.untold.lock().is_some() && !self.telling.swap(true, Ordering::AcqRel)
    }

    pub fn tell(&self) {
        let untold = self.untold.lock().take();
        if let Some(Untold { lines, error }) = untold {
            self.events.note(Happened::LogLinesDropped, &error);
            log::warn!(dropped = lines, error; "access log not written");
        }
        self.telling.store(false, Ordering::Release);
    }
}
