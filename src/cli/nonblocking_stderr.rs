//! Writes diagnostics on a separate thread, so that no request waits for standard error.
//!
//! If standard error is full, lines are dropped. A later line says how many.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::time::Duration;

/// The maximum number of queued lines.
const MAX_LINES: usize = 1024;
/// How long the exit waits for the last lines: the number of steps, and the length of a step.
const LAST: (u32, Duration) = (100, Duration::from_millis(2));

#[derive(Clone, Debug)]
pub(super) struct NonblockingStderr {
    waiting: SyncSender<Vec<u8>>,
    unwritten: Arc<AtomicUsize>,
    dropped: Arc<AtomicU64>,
}

impl NonblockingStderr {
    /// Starts a thread that writes lines to `target`. The returned writer never waits for it.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub(super) fn to(mut target: impl Write + Send + 'static) -> io::Result<NonblockingStderr> {
        let (waiting, lines) = sync_channel::<Vec<u8>>(MAX_LINES);
        let new = NonblockingStderr { waiting, unwritten: Arc::default(), dropped: Arc::default() };
        let (unwritten, dropped) = (Arc::clone(&new.unwritten), Arc::clone(&new.dropped));
        std::thread::Builder::new().name("log".to_owned()).spawn(move || {
            for line in lines {
                // An error in writing cannot be reported anywhere.
                let taken = target.write_all(&line).is_ok();
                unwritten.fetch_sub(1, Ordering::Release);
                let lines = if taken { dropped.swap(0, Ordering::Relaxed) } else { 0 };
                if lines > 0 {
                    log::warn!(lines; "lines of the log were dropped");
                }
            }
        })?;
        Ok(new)
    }

    /// Waits a short time until the queued lines are written.
    pub(super) fn finish(&self) {
        let (steps, step) = LAST;
        for _ in 0..steps {
            if self.unwritten.load(Ordering::Acquire) == 0 {
                return;
            }
            std::thread::sleep(step);
        }
    }
}

impl Write for NonblockingStderr {
    /// Queues `line`, which must be one whole line. If the queue is full, the line is dropped.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.unwritten.fetch_add(1, Ordering::Relaxed);
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) = self.waiting.try_send(line.to_vec()) {
            self.unwritten.fetch_sub(1, Ordering::Relaxed);
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, channel};

    /// A writer that accepts a line only when the test allows it.
    struct Slow(Receiver<()>);

    impl Write for Slow {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            self.0.recv().map(|()| line.len()).map_err(io::Error::other)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_writer_never_waits_and_lines_that_do_not_fit_are_counted() {
        let (go, slow) = channel();
        let mut lines = NonblockingStderr::to(Slow(slow)).unwrap();
        for _ in 0..MAX_LINES + 100 {
            lines.write_all(b"a line\n").unwrap();
        }
        let dropped = lines.dropped.load(Ordering::Relaxed);
        // The queue has one place more if the thread has already taken a line.
        assert!((99..=100).contains(&dropped), "{dropped}");
        for _ in 0..=MAX_LINES {
            go.send(()).unwrap();
        }
        lines.finish();
        assert_eq!(lines.unwritten.load(Ordering::Relaxed), 0);
        assert_eq!(lines.dropped.load(Ordering::Relaxed), 0);
    }
}
