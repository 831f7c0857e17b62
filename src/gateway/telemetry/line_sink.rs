//! Writes whole lines to a stream, or to a file that may be renamed, deleted or full.
//!
//! Several processes may write to the same file, so bytes are only appended. If the disk was full in the middle of a
//! line, the rest of this line is written before anything else. If that is no longer possible, the whole line is written again.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use config::access_log::Destination;

/// The pause before a write is repeated on a non-blocking stream.
const PAUSE: Duration = Duration::from_millis(10);

#[derive(Debug)]
pub(super) struct LineSink {
    to: Destination,
    file: Option<File>,
    torn: Option<TornLine>,
}

/// A line of which only the beginning was written.
#[derive(Debug)]
struct TornLine {
    line: Vec<u8>,
    /// The length of its beginning that was written.
    done: usize,
    /// The length of the file after the beginning of the line was written.
    length: u64,
}

/// The error of a write, with the number of lines that were not written.
#[derive(Debug)]
pub(super) struct UnwrittenLines {
    pub lines: u64,
    /// The number of bytes of the other lines. The last of them may be a torn line, which the next write completes.
    pub accepted: usize,
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

/// Whether a process that wrote this file ended in the middle of a line. A pipe is not opened: that would wait for its writer.
fn ends_inside_of_a_line(path: &Path) -> bool {
    let last = || {
        let mut last = [b'\n'];
        let there = std::fs::metadata(path)?;
        if there.is_file() && there.len() > 0 {
            let mut file = File::open(path)?;
            file.seek(SeekFrom::End(-1))?;
            file.read_exact(&mut last)?;
        }
        Ok::<[u8; 1], io::Error>(last)
    };
    // A file that cannot be read is not known to be torn.
    last().is_ok_and(|last| last != [b'\n'])
}

impl LineSink {
    pub(super) fn new(to: Destination) -> LineSink {
        LineSink { to, file: None, torn: None }
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
                let is_torn = matches!(&self.to, Destination::File(path) if ends_inside_of_a_line(path));
                let mut file = open(&self.to)?;
                // Our own line is completed by the next write, if nobody has written to the file since.
                let is_ours = self.torn.as_ref().is_some_and(|torn| torn.length == length(&file));
                if is_torn && !is_ours {
                    file.write_all(b"\n")?;
                }
                self.file = Some(file);
                Ok(())
            }
        }
    }

    /// Writes as many of these whole lines as the destination accepts.
    ///
    /// # Errors
    /// If some lines were not written. The error contains their number.
    pub(super) fn write(&mut self, lines: &[u8]) -> Result<(), UnwrittenLines> {
        let unwritten = |accepted: usize, error| {
            let lines = count(lines.get(accepted..).unwrap_or_default());
            UnwrittenLines { lines, accepted, error }
        };
        if lines.is_empty() && self.torn.is_none() {
            return Ok(());
        }
        self.reopen().map_err(|error| unwritten(0, error))?;
        let Some(file) = &mut self.file else { return Ok(()) };
        if let Some(mut torn) = self.torn.take() {
            if length(file) != torn.length {
                // The file was replaced, or another process has appended to it. So the whole line is written again.
                torn.done = 0;
            }
            let (done, written) = append(file, torn.line.get(torn.done..).unwrap_or_default());
            if let Err(error) = written {
                self.torn = Some(TornLine { done: torn.done + done, length: length(file), ..torn });
                return Err(unwritten(0, error));
            }
        }
        let (done, written) = append(file, lines);
        let Err(error) = written else { return Ok(()) };
        let (written, behind) = lines.split_at_checked(done).unwrap_or((lines, b""));
        if written.last().is_none_or(|last| *last == b'\n') {
            return Err(unwritten(done, error));
        }
        let begin = memchr::memrchr(b'\n', written).map_or(0, |end| end + 1);
        let end = done + memchr::memchr(b'\n', behind).map_or(behind.len(), |end| end + 1);
        let line = lines.get(begin..end).unwrap_or_default().to_vec();
        self.torn = Some(TornLine { line, done: done - begin, length: length(file) });
        Err(unwritten(end, error))
    }

    /// Waits until what was written is on the disk. Does nothing for a stream, which has no disk.
    ///
    /// # Errors
    /// If the disk did not accept what was written.
    pub(super) fn sync(&self) -> io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        match file.sync_data() {
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
            synced => synced,
        }
    }

    /// Whether a line is torn, so that the next write must complete it.
    pub(super) fn has_torn_line(&self) -> bool {
        self.torn.is_some()
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
        let mut sink = LineSink::new(Destination::File(path.clone()));
        sink.write(b"a\n").unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o027, 0);
        std::fs::write(&path, "").unwrap();
        sink.write(b"b\n").unwrap();
        LineSink::new(Destination::File(path.clone())).write(b"c\n").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "b\nc\n");
    }

    #[test]
    fn a_line_that_another_process_has_begun_is_ended_before_the_first_own_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("access.jsonl");
        std::fs::write(&path, "a\n{\"tor").unwrap();
        LineSink::new(Destination::File(path.clone())).write(b"b\n").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "a\n{\"tor\nb\n");
    }

    #[test]
    fn a_file_that_was_renamed_or_deleted_is_created_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("access.jsonl");
        let mut sink = LineSink::new(Destination::File(path.clone()));
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
        let mut sink = LineSink::new(Destination::File("/dev/full".into()));
        let unwritten = sink.write(b"a\nb\nc\n").unwrap_err();
        assert_eq!((unwritten.lines, unwritten.error.kind()), (3, io::ErrorKind::StorageFull));
    }

    #[test]
    fn a_torn_line_is_completed_in_its_own_file_and_written_again_in_another() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("access.jsonl");
        let torn = |length| Some(TornLine { line: b"torn\n".to_vec(), done: 2, length });
        std::fs::write(&path, "to").unwrap();
        let mut sink = LineSink::new(Destination::File(path.clone()));
        sink.torn = torn(2);
        sink.write(b"whole\n").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "torn\nwhole\n");
        std::fs::write(&path, "").unwrap();
        sink.torn = torn(2);
        sink.write(b"").unwrap();
        assert!(!sink.has_torn_line());
        sink.write(b"whole\n").unwrap();
        sink.sync().unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "torn\nwhole\n");
    }

    #[test]
    fn a_pipe_without_a_reader_does_not_block() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        LineSink::new(Destination::File(path)).write(b"a\n").unwrap();
    }
}
