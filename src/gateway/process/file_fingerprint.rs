//! Detects a changed file by its metadata, without reading it.
//!
//! Files are polled, so that a write, a rename, a swapped link and a change on a network file system are detected
//! alike.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

/// The interval at which files are checked. A changed file comes into force after twice this time and the time for reading it.
pub(crate) const INTERVAL: Duration = Duration::from_millis(500);

/// The reason for a check of files: the interval, or a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trigger {
    Interval,
    /// An operator has finished writing, asked for a reload, and expects an answer.
    Operator,
}

/// The metadata by which a changed file is detected without reading it: device and inode of the target, size, modification and
/// change times; or the error of reading them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileFingerprint(Result<[i128; 7], io::ErrorKind>);

impl FileFingerprint {
    pub(crate) fn of(path: &Path) -> FileFingerprint {
        FileFingerprint(match std::fs::metadata(path) {
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
}
