//! Writes the access log: one thread for each place that lines go to, and a queue before it that no request waits for.
//!
//! A line that does not fit into the queue, or that its place does not take, is dropped and counted. A configuration
//! holds the writer of its place, and hands it on to the next one if that names the same; without any the writer ends.

mod drops;
mod queue;
pub mod request_end;
mod sink;

use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use metrics::Counter;
use parking_lot::Mutex;

use super::events::Events;
use crate::access_log_line::Line;
use crate::config::access_log::Destination;
use drops::DropCounter;
use queue::Queue;
use sink::Sink;

/// About what a line takes.
const LINE: usize = 512;
/// How much room is kept that a burst of lines has taken, in bytes.
const KEPT: usize = 1 << 20;
/// How long lines are waited for that have not been written when the process leaves.
const PATIENCE: Duration = Duration::from_millis(500);

/// Those of a process.
#[derive(Debug)]
pub struct AccessLogs {
    dropped: Arc<DropCounter>,
    /// Of the writers that have not ended.
    queues: Mutex<Vec<Weak<Queue>>>,
}

impl AccessLogs {
    /// `dropped` counts lines.
    pub fn new(dropped: Counter, events: Arc<Events>) -> AccessLogs {
        AccessLogs { dropped: Arc::new(DropCounter::new(dropped, events)), queues: Mutex::default() }
    }

    /// Whether lines can go to this place.
    pub fn probe(to: &Destination) -> io::Result<()> {
        sink::open(to).map(drop)
    }

    /// A writer to this place. What is wrong with it is told, and tried again with every line.
    pub fn start(&self, to: &Destination) -> Writer {
        let queue = Arc::new(Queue::default());
        let (lines, dropped) = (Arc::clone(&queue), Arc::clone(&self.dropped));
        let mut outlet = Sink::new(to.clone());
        let thread = std::thread::Builder::new().name("access log".to_owned());
        match thread.spawn(move || work(&lines, &mut outlet, &dropped)) {
            Ok(_) => {}
            Err(error) => self.dropped.add(0, &error),
        }
        let mut queues = self.queues.lock();
        queues.retain(|queue| queue.strong_count() > 0);
        queues.push(Arc::downgrade(&queue));
        Writer { queue, dropped: Arc::clone(&self.dropped) }
    }

    /// Opens files anew, wherever they are now.
    pub fn reopen(&self) {
        self.living().iter().for_each(|queue| queue.reopen());
    }

    /// Waits until all lines are written, or for as long as the process can wait.
    pub fn finish(&self) {
        self.living().iter().for_each(|queue| queue.finish(PATIENCE));
    }

    /// Says what was dropped, if anything was, without making the caller wait. To be called every second or so.
    pub fn tell(&self) {
        if self.dropped.begins_to_tell() {
            // Diagnostics may go where these lines go, and wait there.
            let dropped = Arc::clone(&self.dropped);
            tokio::task::spawn_blocking(move || dropped.tell());
        }
    }

    fn living(&self) -> Vec<Arc<Queue>> {
        self.queues.lock().iter().filter_map(Weak::upgrade).collect()
    }
}

fn work(queue: &Queue, outlet: &mut Sink, dropped: &DropCounter) {
    if let Err(error) = outlet.reopen() {
        dropped.add(0, &error);
    }
    let mut lines = Vec::new();
    while let Some(reopen) = queue.next(&mut lines) {
        if reopen && let Err(error) = outlet.reopen() {
            dropped.add(0, &error);
        }
        if let Err(unwritten) = outlet.write(&lines) {
            dropped.add(unwritten.lines, &unwritten.error);
        }
        lines.clear();
        lines.shrink_to(KEPT);
    }
}

/// What requests write to.
#[derive(Debug)]
pub struct Writer {
    queue: Arc<Queue>,
    dropped: Arc<DropCounter>,
}

impl Writer {
    pub fn write(&self, line: &Line<'_>) {
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
