//! Writes the access log. Each destination has one thread and a queue; requests never wait for the queue.
//!
//! A line that does not fit into the queue, or that the destination does not accept, is dropped and counted.

mod drops;
mod queue;
pub(crate) mod request_end;

use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use metrics::Counter;
use parking_lot::Mutex;

use super::events::Events;
use super::line_sink::{self, LineSink};
use config::access_log::Destination;
use decision::access_log_line::Line;
use drops::DropCounter;
use queue::Queue;

/// The approximate length of a line, in bytes.
const LINE: usize = 512;
/// The largest buffer that is kept after a burst of lines, in bytes.
const MAX_IDLE_BUFFER: usize = 1 << 20;
/// How long an exiting process waits for unwritten lines.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(500);

/// The access logs of a process: one writer and one thread for each destination.
#[derive(Debug)]
pub(crate) struct AccessLogs {
    dropped: Arc<DropCounter>,
    /// The queues of writers that have not ended.
    queues: Mutex<Vec<Weak<Queue>>>,
}

impl AccessLogs {
    /// Makes the access logs without a writer. `dropped` counts the lines that could not be written.
    pub(crate) fn new(dropped: Counter, events: Arc<Events>) -> AccessLogs {
        AccessLogs { dropped: Arc::new(DropCounter::new(dropped, events)), queues: Mutex::default() }
    }

    /// Opens a destination for a moment, to check that log lines can be written to it.
    ///
    /// # Errors
    /// If the destination cannot be opened.
    pub(crate) fn probe(to: &Destination) -> io::Result<()> {
        line_sink::open(to).map(drop)
    }

    /// Starts the thread that writes to a destination, and returns its writer. If the destination cannot be opened, this is
    /// reported, and every write tries to open it again.
    pub(crate) fn start(&self, to: &Destination) -> Writer {
        let queue = Arc::new(Queue::default());
        let (lines, dropped) = (Arc::clone(&queue), Arc::clone(&self.dropped));
        let mut sink = LineSink::new(to.clone());
        let thread = std::thread::Builder::new().name("access log".to_owned());
        match thread.spawn(move || work(&lines, &mut sink, &dropped)) {
            Ok(_) => {}
            Err(error) => self.dropped.add(0, &error),
        }
        let mut queues = self.queues.lock();
        queues.retain(|queue| queue.strong_count() > 0);
        queues.push(Arc::downgrade(&queue));
        Writer { queue, dropped: Arc::clone(&self.dropped) }
    }

    /// Reopens the log files at their paths. To be called after a rotation of the files.
    pub(crate) fn reopen(&self) {
        self.living().iter().for_each(|queue| queue.reopen());
    }

    /// Waits until all log lines are written, but not longer than `FLUSH_TIMEOUT`.
    pub(crate) fn finish(&self) {
        self.living().iter().for_each(|queue| queue.finish(FLUSH_TIMEOUT));
    }

    /// Reports the lines that were dropped since the last report. Does not block. To be called about once per second.
    pub(crate) fn report_drops(&self) {
        if self.dropped.begin_report() {
            // The report is written in another thread, because the write may block.
            let dropped = Arc::clone(&self.dropped);
            tokio::task::spawn_blocking(move || dropped.report());
        }
    }

    fn living(&self) -> Vec<Arc<Queue>> {
        self.queues.lock().iter().filter_map(Weak::upgrade).collect()
    }
}

fn work(queue: &Queue, sink: &mut LineSink, dropped: &DropCounter) {
    if let Err(error) = sink.reopen() {
        dropped.add(0, &error);
    }
    let mut lines = Vec::new();
    while let Some(reopen) = queue.next(&mut lines) {
        if reopen && let Err(error) = sink.reopen() {
            dropped.add(0, &error);
        }
        if let Err(unwritten) = sink.write(&lines) {
            dropped.add(unwritten.lines, &unwritten.error);
        }
        lines.clear();
        lines.shrink_to(MAX_IDLE_BUFFER);
    }
}

/// The handle with which requests add lines to an access log.
#[derive(Debug)]
pub(crate) struct Writer {
    queue: Arc<Queue>,
    dropped: Arc<DropCounter>,
}

impl Writer {
    pub(crate) fn write(&self, line: &Line<'_>) {
        let mut text = Vec::with_capacity(LINE);
        line.write(&mut text);
        if !self.queue.add(&text) {
            self.dropped.add(1, &"the queue is full");
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.queue.close();
    }
}
