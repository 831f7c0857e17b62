//! Writes whole lines to a stream, or to a file that may be renamed, deleted or full.
//!
//! Several processes may write to the same file, so bytes are only appended. If the disk was full in the middle of a
//! line, the rest of this line is written before anything else.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use config::access_log::Destination;

/// The pause before a write is repeated on a non-blocking stream.
const PAUSE: Duration = Duration::from_millis(10);

#[derive(Debug)]
pub(super) struct Sink {
    to: Destination,
    file: Option<File>,
    torn: Option<TornLine>,
}

/// The rest of a line of which only the beginning was written.
#[derive(Debug)]
struct TornLine {
    rest: Vec<u8>,
    /// The length of the file after the beginning of the line was written.
    length: u64,
}

/// The error of a write, with the number of lines that were not written.
#[derive(Debug)]
pub(super) struct UnwrittenLines {
    pub lines: u64,
    pub error: io::Error,
}

/// Opens a destination to append lines. A file that does not exist is created, and its owner and group can read it.
///
/// # Errors
/// If the destination cannot be opened.
pub(super) fn open(to: &Destination) -> io::Result<File> {
    match to {
        #[expect(clippy::disallowed_methods, reason = "the lines are JSON without hidden characters")]
        Destination::Stdout => io::stdout().as_fd().try_clone_to_owned().map(File::from),
        #[expect(clippy::disallowed_methods, reason = "the lines are JSON without hidden characters")]
        Destination::Stderr => io::stderr().as_fd().try_clone_to_owned().map(File::from),
        Destination::File(path) => {
            // A named pipe is opened for reading too, because opening it only for writing would wait for a reader.
            let pipe = std::fs::metadata(path).is_ok_and(|there| there.file_type().is_fifo());
            OpenOptions::new().append(true).create(true).mode(0o640).read(pipe).open(path)
        }
    }
}

impl Sink {
    pub(super) fn new(to: Destination) -> Sink {
        Sink { to, file: None, torn: None }
    }

    /// Opens the destination again if the file at its path has been replaced.
    ///
    /// # Errors
    /// If the destination cannot be opened.
    pub(super) fn reopen(&mut self) -> io::Result<()> {
        match (&self.to, &self.file) {
            (Destination::File(path), Some(file)) if is_at(file, path) => Ok(()),
            (Destination::Stdout | Destination::Stderr, Some(_)) => Ok(()),
            _ => {
                self.file = None;
                self.file = Some(open(&self.to)?);
                Ok(())
            }
        }
    }

    /// Writes as many of these whole lines as the destination accepts.
    ///
    /// # Errors
    /// If some lines were not written. The error contains their number.
    pub(super) fn write(&mut self, lines: &[u8]) -> Result<(), UnwrittenLines> {
        let lost = |lines: &[u8], error| UnwrittenLines { lines: count(lines), error };
        if lines.is_empty() {
            return Ok(());
        }
        self.reopen().map_err(|error| lost(lines, error))?;
        let Some(file) = &mut self.file else { return Ok(()) };
        let mut left_torn = 0;
        if let Some(mut torn) = self.torn.take() {
            if length(file) == torn.length {
                let (done, written) = append(file, &torn.rest);
                if let Err(error) = written {
                    torn.rest.drain(..done);
                    self.torn = Some(TornLine { length: length(file), ..torn });
                    return Err(lost(lines, error));
                }
            } else {
                // The rest of the line is lost, because the file was replaced, or another process has appended to it.
                left_torn = 1;
            }
        }
        let (done, written) = append(file, lines);
        let Err(error) = written else {
            return match left_torn {
                0 => Ok(()),
                lines => {
                    Err(UnwrittenLines { lines, error: io::Error::other("a line was torn, and its file is gone") })
                }
            };
        };
        let (written, mut behind) = lines.split_at_checked(done).unwrap_or((lines, b""));
        if written.last().is_some_and(|last| *last != b'\n') {
            let end = memchr::memchr(b'\n', behind).map_or(behind.len(), |end| end + 1);
            let (rest, after) = behind.split_at_checked(end).unwrap_or((behind, b""));
            behind = after;
            self.torn = Some(TornLine { rest: rest.to_vec(), length: length(file) });
        }
        Err(UnwrittenLines { lines: count(behind) + left_torn, error })
    }
}

/// Whether the path still leads to this file. `true` if this cannot be determined.
fn is_at(file: &File, path: &Path) -> bool {
    match (file.metadata(), std::fs::metadata(path)) {
        (Ok(ours), Ok(there)) => (ours.dev(), ours.ino()) == (there.dev(), there.ino()),
        (_, Err(error)) => error.kind() != io::ErrorKind::NotFound,
        _ => true,
    }
}

/// The length of a file; 0 for a stream, which has none.
fn length(file: &File) -> u64 {
    file.metadata().map_or(0, |metadata| metadata.len())
}

fn count(lines: &[u8]) -> u64 {
    memchr::memchr_iter(b'\n', lines).map(|_| 1).sum()
}

/// Appends bytes. Returns the number of written bytes, and the error if not all were written.
fn append(file: &mut File, bytes: &[u8]) -> (usize, io::Result<()>) {
    let mut done = 0;
    while let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) {
        match file.write(rest) {
            Ok(0) => return (done, Err(io::ErrorKind::WriteZero.into())),
            Ok(length) => done += length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::thread::sleep(PAUSE),
            Err(error) => return (done, Err(error)),
        }
    }
    (done, Ok(()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_appended_to_and_created_for_owner_and_group() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("access.jsonl");
        let mut sink = Sink::new(Destination::File(path.clone()));
        sink.write(b"a\n").unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o027, 0);
        std::fs::write(&path, "").unwrap();
        sink.write(b"b\n").unwrap();
        Sink::new(Destination::File(path.clone())).write(b"c\n").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "b\nc\n");
    }

    #[test]
    fn a_file_that_was_renamed_or_deleted_is_created_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("access.jsonl");
        let mut sink = Sink::new(Destination::File(path.clone()));
        sink.write(b"a\n").unwrap();
        std::fs::rename(&path, folder.path().join("old")).unwrap();
        sink.write(b"b\n").unwrap();
        assert_eq!(std::fs::read_to_string(folder.path().join("old")).unwrap(), "a\n");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "b\n");
        std::fs::remove_file(&path).unwrap();
        sink.write(b"c\n").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "c\n");
        std::fs::remove_dir_all(folder.path()).unwrap();
        assert_eq!(sink.write(b"d\ne\n").unwrap_err().lines, 2);
        std::fs::create_dir(folder.path()).unwrap();
        sink.write(b"f\n").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "f\n");
    }

    #[test]
    fn lines_that_do_not_fit_on_a_full_disk_are_counted() {
        let mut sink = Sink::new(Destination::File("/dev/full".into()));
        let unwritten = sink.write(b"a\nb\nc\n").unwrap_err();
        assert_eq!((unwritten.lines, unwritten.error.kind()), (3, io::ErrorKind::StorageFull));
    }

    #[test]
    fn a_torn_line_is_completed_in_its_own_file_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("access.jsonl");
        let torn = |length| Some(TornLine { rest: b"n\n".to_vec(), length });
        std::fs::write(&path, "to").unwrap();
        let mut sink = Sink::new(Destination::File(path.clone()));
        sink.torn = torn(2);
        sink.write(b"whole\n").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "ton\nwhole\n");
        std::fs::write(&path, "").unwrap();
        sink.torn = torn(2);
        assert_eq!(sink.write(b"whole\n").unwrap_err().lines, 1);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "whole\n");
    }

    #[test]
    fn a_pipe_without_a_reader_does_not_block() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        Sink::new(Destination::File(path)).write(b"a\n").unwrap();
    }
}
