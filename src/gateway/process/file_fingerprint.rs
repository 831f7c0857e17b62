//! Tells a changed file by looking at it, without reading it.
//!
//! Files are looked at, not listened to: a write, a rename, a swapped link and a network's file system are all alike then.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

/// How often files are looked at. Twice this, and the time to read it, is how long a changed one is not in force.
pub const PACE: Duration = Duration::from_millis(500);

/// Why a file is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trigger {
    Time,
    /// By an operator, who wants an answer, and has finished writing.
    Asked,
}

/// What tells a file from a changed one, short of reading it: the device and number of what the path leads to, its size,
/// and when it and its entry were last changed; or why that cannot be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileFingerprint(Result<[i128; 7], io::ErrorKind>);

impl FileFingerprint {
    pub fn of(path: &Path) -> FileFingerprint {
        FileFingerprint(match std::fs::metadata(path) {
            // A pipe would keep whoever opens it.
            Ok(file) if !file.is_file() => Err(io::ErrorKind::InvalidInput),
            Ok(file) => Ok([
                file.dev().into(),
                file.ino().into(),
                file.size().into(),
                file.mtime().into(),
                file.mtime_nsec().into(),
                file.ctime().into(),
                file.ctime_nsec().into(),
            ]),
            Err(error) => Err(error.kind()),
        })
    }

    /// Why there is nothing to read, if there is not.
    pub fn unreadable(&self) -> Option<io::Error> {
        self.0.err().map(io::Error::from)
    }
}
