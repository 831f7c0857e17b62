//! Detects that a file has changed by its metadata, without reading the file.
//!
//! Files are polled, so that writes, renames, changed links and changes on network file systems are all detected.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

/// The interval at which watched files are checked.
pub(crate) const INTERVAL: Duration = Duration::from_millis(500);

/// The reason for a check of files: the interval has passed, or an operator has sent a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trigger {
    Interval,
    /// An operator has asked for a reload. The operator has finished writing the files, and expects an answer.
    Operator,
}

/// The metadata of a file, by which a change is detected without reading the file: device and inode of the target, size,
/// modification and change times. If the metadata cannot be read, the fingerprint is the kind of error.
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
