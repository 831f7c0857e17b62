//! Keeps lines until they are on the disk, in bounded memory.

use std::io;

use crate::gateway::telemetry::line_sink::{LineSink, UnwrittenLines};

/// The most bytes of lines that are kept.
const MOST: usize = 64 << 20;
/// The largest buffer that is kept after it was written, in bytes.
const MOST_IDLE: usize = 1 << 20;

/// The lines that are not on the disk yet.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    bytes: Vec<u8>,
    lines: u64,
}

impl Backlog {
    /// Adds a line, with its end. Returns `false` if there is no room for the line.
    pub(super) fn add(&mut self, line: &[u8]) -> bool {
        let fits = self.bytes.len() + line.len() <= MOST;
        if fits {
            self.bytes.extend_from_slice(line);
            self.lines += 1;
        }
        fits
    }

    pub(super) fn lines(&self) -> u64 {
        self.lines
    }

    /// Writes as many lines as the destination accepts, and waits until they are on the disk. Returns the number of lines that were
    /// written. A line is forgotten only when it is on the disk. So it can be written twice, and then both have the same id.
    ///
    /// # Errors
    /// If not all lines were written.
    pub(super) fn write(&mut self, sink: &mut LineSink) -> (u64, io::Result<()>) {
        let (accepted, left, written) = match sink.write(&self.bytes) {
            Ok(()) => (self.bytes.len(), 0, Ok(())),
            Err(UnwrittenLines { lines, accepted, error }) => (accepted, lines, Err(error)),
        };
        if let Err(error) = sink.sync() {
            return (0, written.and(Err(error)));
        }
        let done = self.lines.saturating_sub(left);
        self.bytes.drain(..accepted.min(self.bytes.len()));
        self.bytes.shrink_to(MOST_IDLE);
        self.lines = left;
        (done, written)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::access_log::Destination;

    #[test]
    fn lines_are_kept_until_the_disk_has_room() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("records.jsonl");
        let mut backlog = Backlog::default();
        assert!(backlog.add(b"one\n") && backlog.add(b"two\n"));
        let (written, error) = backlog.write(&mut LineSink::new(Destination::File("/dev/full".into())));
        assert_eq!((written, error.unwrap_err().kind(), backlog.lines()), (0, io::ErrorKind::StorageFull, 2));
        let (written, done) = backlog.write(&mut LineSink::new(Destination::File(path.clone())));
        assert_eq!((written, done.is_ok(), backlog.lines()), (2, true, 0));
        assert_eq!(std::fs::read_to_string(path).unwrap(), "one\ntwo\n");
    }

    #[test]
    fn a_backlog_is_bounded() {
        let mut backlog = Backlog::default();
        let line = vec![b'x'; 1 << 20];
        assert_eq!((0..100).filter(|_| backlog.add(&line)).count(), MOST / line.len());
        assert_eq!(backlog.lines(), 64);
    }
}
