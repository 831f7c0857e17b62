//! Holds lines until they are written, in bounded memory: adding a line never blocks.

use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// The maximum number of bytes in the queue. Bytes that are being written do not count.
const MAX_BYTES: usize = 4 << 20;
/// When this many bytes are waiting, they are written at once.
const BATCH: usize = 128 << 10;
/// How long the first line waits for more lines.
const BATCH_DELAY: Duration = Duration::from_millis(200);

#[derive(Debug, Default)]
pub(super) struct Queue {
    waiting: Mutex<QueueState>,
    /// Wakes the writer.
    work: Condvar,
    /// Wakes the callers of `finish`, which wait until everything is written.
    written: Condvar,
}

#[derive(Debug, Default)]
struct QueueState {
    lines: Vec<u8>,
    /// Whether lines were taken from the queue and are perhaps not written yet.
    writing: bool,
    reopen: bool,
    /// Whether a caller of `finish` is waiting.
    finishing: bool,
    closed: bool,
}

impl Queue {
    /// Adds one line, with its line end. Returns `false` if the queue has no room for the line.
    pub(super) fn add(&self, line: &[u8]) -> bool {
        let mut waiting = self.waiting.lock();
        let before = waiting.lines.len();
        if before + line.len() > MAX_BYTES {
            return false;
        }
        waiting.lines.extend_from_slice(line);
        let after = waiting.lines.len();
        drop(waiting);
        if before == 0 || (before < BATCH && after >= BATCH) {
            self.work.notify_one();
        }
        true
    }

    /// Waits until there are enough lines to write, and moves all of them into `lines`, which must be empty. Returns
    /// whether the log file must be reopened before the write. `None` if no more lines will follow.
    pub(super) fn next(&self, lines: &mut Vec<u8>) -> Option<bool> {
        let mut waiting = self.waiting.lock();
        waiting.writing = false;
        self.written.notify_all();
        self.work.wait_while(&mut waiting, |waiting| waiting.lines.is_empty() && !waiting.reopen && !waiting.closed);
        if waiting.lines.is_empty() && !waiting.reopen {
            return None;
        }
        let few = |waiting: &mut QueueState| waiting.lines.len() < BATCH;
        self.work.wait_while_for(
            &mut waiting,
            |waiting| few(waiting) && !waiting.reopen && !waiting.finishing && !waiting.closed,
            BATCH_DELAY,
        );
        std::mem::swap(&mut waiting.lines, lines);
        waiting.writing = true;
        Some(std::mem::take(&mut waiting.reopen))
    }

    /// Makes the writing thread reopen the log file before it writes the next line.
    pub(super) fn reopen(&self) {
        self.waiting.lock().reopen = true;
        self.work.notify_one();
    }

    /// Waits until all lines are written, but not longer than `timeout`.
    pub(super) fn finish(&self, timeout: Duration) {
        let mut waiting = self.waiting.lock();
        waiting.finishing = true;
        self.work.notify_one();
        let unfinished = |waiting: &mut QueueState| waiting.writing || !waiting.lines.is_empty();
        self.written.wait_while_for(&mut waiting, unfinished, timeout);
        waiting.finishing = false;
    }

    /// Closes the queue: the writing thread writes the remaining lines, and then ends.
    pub(super) fn close(&self) {
        self.waiting.lock().closed = true;
        self.work.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_keep_their_order_and_those_that_do_not_fit_are_rejected() {
        let queue = Queue::default();
        assert!(queue.add(b"a\n") && queue.add(b"b\n"));
        let mut lines = Vec::new();
        assert_eq!(queue.next(&mut lines), Some(false));
        assert_eq!(lines, b"a\nb\n");
        lines.clear();
        let line = [b'x'; 1 << 10];
        let fits = (0..).take_while(|_| queue.add(&line)).count();
        assert_eq!(fits, MAX_BYTES / line.len());
        assert!(!queue.add(&line));
        queue.reopen();
        assert_eq!(queue.next(&mut lines), Some(true));
        assert_eq!(lines.len(), MAX_BYTES);
        lines.clear();
        assert!(queue.add(b"c\n"));
        queue.close();
        assert_eq!(queue.next(&mut lines), Some(false));
        lines.clear();
        assert_eq!(queue.next(&mut lines), None);
    }

    #[test]
    fn finish_waits_until_everything_is_written_or_the_timeout() {
        let queue = Queue::default();
        queue.finish(Duration::from_secs(60));
        queue.add(b"a\n");
        queue.finish(Duration::from_millis(1));
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut lines = Vec::new();
                while queue.next(&mut lines).is_some() {
                    lines.clear();
                }
            });
            queue.finish(Duration::from_secs(60));
            assert!(queue.waiting.lock().lines.is_empty());
            queue.close();
            writer.join().unwrap();
        });
    }
}
