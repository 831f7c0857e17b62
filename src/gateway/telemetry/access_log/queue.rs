//! Holds lines until they are written, as many as fit: who adds one never waits.

use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// The most bytes that wait, beside those that are being written.
const MOST: usize = 4 << 20;
/// With so many bytes a write is worth its call.
const BATCH: usize = 128 << 10;
/// How long a first line waits for others.
const GATHER: Duration = Duration::from_millis(200);

#[derive(Debug, Default)]
pub struct Queue {
    waiting: Mutex<Waiting>,
    /// For whoever writes.
    work: Condvar,
    /// For whoever waits until all is written.
    rest: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    lines: Vec<u8>,
    /// Whether lines that were taken may not be written yet.
    writing: bool,
    reopen: bool,
    /// Whether somebody waits for the end of it.
    hurry: bool,
    closed: bool,
}

impl Queue {
    /// Adds one line, with its end; whether there was room for it.
    pub fn add(&self, line: &[u8]) -> bool {
        let mut waiting = self.waiting.lock();
        let before = waiting.lines.len();
        if before + line.len() > MOST {
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

    /// Takes all lines into `lines`, which is empty, when there are some worth writing; and whether files are to be opened
    /// anew first. None when no more will come. What was taken before counts as written.
    pub fn next(&self, lines: &mut Vec<u8>) -> Option<bool> {
        let mut waiting = self.waiting.lock();
        waiting.writing = false;
        self.rest.notify_all();
        self.work.wait_while(&mut waiting, |waiting| waiting.lines.is_empty() && !waiting.reopen && !waiting.closed);
        if waiting.lines.is_empty() && !waiting.reopen {
            return None;
        }
        let few = |waiting: &mut Waiting| waiting.lines.len() < BATCH;
        self.work.wait_while_for(
            &mut waiting,
            |waiting| few(waiting) && !waiting.reopen && !waiting.hurry && !waiting.closed,
            GATHER,
        );
        std::mem::swap(&mut waiting.lines, lines);
        waiting.writing = true;
        Some(std::mem::take(&mut waiting.reopen))
    }

    /// Has files opened anew before the next line is written.
    pub fn reopen(&self) {
        self.waiting.lock().reopen = true;
        self.work.notify_one();
    }

    /// Waits until all is written, at most for so long.
    pub fn finish(&self, patience: Duration) {
        let mut waiting = self.waiting.lock();
        waiting.hurry = true;
        self.work.notify_one();
        let unfinished = |waiting: &mut Waiting| waiting.writing || !waiting.lines.is_empty();
        self.rest.wait_while_for(&mut waiting, unfinished, patience);
        waiting.hurry = false;
    }

    /// Nothing more will come.
    pub fn close(&self) {
        self.waiting.lock().closed = true;
        self.work.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_out_as_they_went_in_and_what_does_not_fit_is_refused() {
        let queue = Queue::default();
        assert!(queue.add(b"a\n") && queue.add(b"b\n"));
        let mut lines = Vec::new();
        assert_eq!(queue.next(&mut lines), Some(false));
        assert_eq!(lines, b"a\nb\n");
        lines.clear();
        let line = [b'x'; 1 << 10];
        let fits = (0..).take_while(|_| queue.add(&line)).count();
        assert_eq!(fits, MOST / line.len());
        assert!(!queue.add(&line));
        queue.reopen();
        assert_eq!(queue.next(&mut lines), Some(true));
        assert_eq!(lines.len(), MOST);
        lines.clear();
        assert!(queue.add(b"c\n"));
        queue.close();
        assert_eq!(queue.next(&mut lines), Some(false));
        lines.clear();
        assert_eq!(queue.next(&mut lines), None);
    }

    #[test]
    fn who_waits_for_the_end_waits_until_all_is_written_or_is_tired_of_it() {
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
