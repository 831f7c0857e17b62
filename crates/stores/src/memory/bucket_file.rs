//! Keeps the buckets of the memory store in a file, which only one process at a time may use.
//!
//! The lock is on a second file, `FILE.lock`, because each write replaces `FILE`.

use std::ffi::OsString;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use super::Memory;
use super::bucket_stream::InvalidBuckets;
use base::time::Micros;

/// The settings of the file that keeps buckets over a restart: `store.memory.file` and `save_every`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketFileSettings {
    pub path: PathBuf,
    pub save_every: Micros,
}

/// A locked file in which a memory store keeps its buckets.
#[derive(Debug)]
pub struct BucketFile {
    path: PathBuf,
    lock: File,
}

/// The reason why the file of the buckets cannot be locked.
#[derive(Debug)]
pub enum LockError {
    /// Another process uses the file.
    InUse,
    Open(io::Error),
}

impl fmt::Display for LockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LockError::InUse => f.write_str("another gateway uses this file; each must have its own"),
            LockError::Open(error) => write!(f, "its lock file cannot be opened: {error}"),
        }
    }
}

impl std::error::Error for LockError {}

impl BucketFile {
    /// Locks the file for this process, until the returned value is dropped. The file need not exist yet.
    ///
    /// # Errors
    /// If another process uses the file, or `FILE.lock` cannot be opened.
    pub fn lock(path: &Path) -> Result<BucketFile, LockError> {
        let mut options = OpenOptions::new();
        let lock =
            options.create(true).append(true).mode(0o600).open(beside(path, ".lock")).map_err(LockError::Open)?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(BucketFile { path: path.to_owned(), lock }),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(LockError::InUse),
            Err(error) => Err(LockError::Open(error.into())),
        }
    }

    /// Reads the buckets in the file into `memory`, as [`Memory::read_buckets`] does. Returns the number of buckets
    /// kept, or `None` if there is no file.
    ///
    /// # Errors
    /// If the file cannot be read or has no valid buckets. Then no bucket is kept.
    pub fn load(&self, memory: &Memory) -> Result<Option<usize>, InvalidBuckets> {
        match File::open(&self.path) {
            Ok(file) => memory.read_buckets(file).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(InvalidBuckets::Read(error)),
        }
    }

    /// Writes the buckets of `memory` to a new file, which replaces the old file in one step. Returns the number of
    /// buckets in the file.
    ///
    /// # Errors
    /// If the new file cannot be written. Then the old file is unchanged.
    pub fn save(&self, memory: &Memory) -> io::Result<u64> {
        let new = beside(&self.path, ".new");
        let written = write(&new, memory).and_then(|count| {
            std::fs::rename(&new, &self.path)?;
            Ok(count)
        });
        match written {
            Ok(count) => {
                // With a synced folder, the renamed file survives a crash. Some file systems cannot sync a folder.
                if let Ok(folder) = File::open(folder_of(&self.path)) {
                    let _ = folder.sync_all();
                }
                Ok(count)
            }
            Err(error) => {
                // The file may not exist.
                let _ = std::fs::remove_file(&new);
                Err(error)
            }
        }
    }
}

impl Drop for BucketFile {
    /// Releases the lock explicitly. A process that is being started may have a duplicate of the file handle, which
    /// would keep the lock.
    fn drop(&mut self) {
        let _ = flock(&self.lock, FlockOperation::Unlock);
    }
}

fn write(path: &Path, memory: &Memory) -> io::Result<u64> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    // `create_new` does not follow a symbolic link that somebody has put there.
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    let count = memory.write_buckets(&file)?;
    file.sync_all()?;
    Ok(count)
}

/// The path with `suffix` appended to the file name.
fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
}

/// The folder that holds the file `path`.
fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::sync::Arc;

    use super::super::Settings;
    use super::*;
    use base::time::{Clock, Timestamp};

    fn memory() -> Arc<Memory> {
        Memory::new(&Settings::default(), Clock::manual(Timestamp(1)))
    }

    #[test]
    fn one_process_at_a_time_uses_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("buckets.tgb");
        let first = BucketFile::lock(&path).unwrap();
        assert!(matches!(BucketFile::lock(&path), Err(LockError::InUse)));
        assert!(BucketFile::lock(&folder.path().join("other.tgb")).is_ok());
        drop(first);
        assert!(BucketFile::lock(&path).is_ok());
        let nowhere = BucketFile::lock(&folder.path().join("nowhere/buckets.tgb"));
        assert!(matches!(nowhere, Err(LockError::Open(_))));
    }

    #[test]
    fn only_the_owner_can_read_what_is_saved_and_nothing_else_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("buckets.tgb");
        let file = BucketFile::lock(&path).unwrap();
        assert!(matches!(file.load(&memory()), Ok(None)));
        // A crash could leave a symbolic link to another file.
        std::fs::write(folder.path().join("precious"), "precious").unwrap();
        std::os::unix::fs::symlink(folder.path().join("precious"), folder.path().join("buckets.tgb.new")).unwrap();
        for _ in 0..2 {
            assert_eq!(file.save(&memory()).unwrap(), 0);
        }
        assert!(matches!(file.load(&memory()), Ok(Some(0))));
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_to_string(folder.path().join("precious")).unwrap(), "precious");
        let names = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        assert_eq!(names, ["buckets.tgb", "buckets.tgb.lock", "precious"]);
    }

    #[test]
    fn a_file_that_cannot_be_replaced_stays_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("buckets.tgb");
        std::fs::create_dir(&path).unwrap();
        let file = BucketFile::lock(&path).unwrap();
        assert!(file.save(&memory()).is_err());
        assert!(matches!(file.load(&memory()), Err(InvalidBuckets::Read(_))));
        assert!(!folder.path().join("buckets.tgb.new").exists());
    }
}
