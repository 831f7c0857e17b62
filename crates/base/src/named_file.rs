//! Reads a file that the configuration names: when the configuration is loaded, and again when the present content is
//! needed.

use std::borrow::Cow;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

/// The size of the largest accepted file, in bytes. No bundle of certificates is nearly as large.
const MAX_BYTES: usize = 16 << 20;

/// A file that the configuration names, together with its content at the time when the configuration was loaded.
#[derive(Clone, PartialEq, Eq)]
pub struct NamedFile {
    path: PathBuf,
    loaded: Vec<u8>,
}

impl NamedFile {
    /// Makes a named file. `path` is where the file can be opened, and `loaded` is the content that was just read from it.
    pub fn new(path: PathBuf, loaded: Vec<u8>) -> NamedFile {
        NamedFile { path, loaded }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the content that the file had when the configuration was loaded.
    pub fn loaded(&self) -> &[u8] {
        &self.loaded
    }

    /// Reads the present content of the file. May block.
    ///
    /// # Errors
    ///
    /// If the file cannot be opened or read, is not a regular file, or is larger than 16 MiB.
    pub fn read(&self) -> io::Result<Cow<'_, [u8]>> {
        let bytes = read_regular(&self.path, MAX_BYTES)?;
        if bytes.len() > MAX_BYTES {
            return Err(io::Error::other(format!("larger than {MAX_BYTES} bytes")));
        }
        Ok(Cow::Owned(bytes))
    }
}

/// Reads a regular file, but at most `most` + 1 bytes of it. The extra byte lets the caller reject a file that is too large.
/// May block as long as the file system does.
///
/// A named pipe, a terminal or another device is an error. The function never waits for a process that writes to a pipe.
///
/// # Errors
///
/// If the file cannot be opened or read, or is not a regular file.
pub fn read_regular(path: &Path, most: usize) -> io::Result<Vec<u8>> {
    #[cfg(feature = "test-hooks")]
    hang(path);
    // With `NONBLOCK`, opening a pipe that has no writer does not block. The flag has no effect on a regular file.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let found = file.metadata()?;
    // A folder passes this check. Reading the folder then fails with the kernel's error, which says that it is a
    // folder.
    if !found.is_file() && !found.is_dir() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(most as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// For a test, blocks while the file named by `TOLLGATE_TEST_HANG` lists this path.
#[cfg(feature = "test-hooks")]
fn hang(path: &Path) {
    let Some(names) = std::env::var_os("TOLLGATE_TEST_HANG") else { return };
    let is_named = || {
        let named = std::fs::read_to_string(&names).unwrap_or_default();
        path.file_name().and_then(|name| name.to_str()).is_some_and(|name| named.lines().any(|line| line == name))
    };
    while is_named() {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

impl fmt::Debug for NamedFile {
    /// Leaves out the content, which may be a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NamedFile({})", self.path.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_again_each_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        std::fs::write(&path, "one").unwrap();
        let file = NamedFile::new(path.clone(), b"one".to_vec());
        std::fs::write(folder.path().join("new"), "two").unwrap();
        std::fs::rename(folder.path().join("new"), &path).unwrap();
        assert_eq!((&*file.read().unwrap(), file.loaded()), (&b"two"[..], &b"one"[..]));
        std::fs::remove_file(&path).unwrap();
        assert_eq!(file.read().unwrap_err().kind(), io::ErrorKind::NotFound);
        std::fs::create_dir(&path).unwrap();
        assert_eq!(file.read().unwrap_err().kind(), io::ErrorKind::IsADirectory);
        assert!(!format!("{file:?}").contains("one"));
    }

    #[test]
    fn a_named_pipe_or_a_device_is_not_read_and_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        for path in [&*path, Path::new("/dev/zero")] {
            assert_eq!(read_regular(path, 10).unwrap_err().to_string(), "not a regular file");
        }
        assert_eq!(read_regular(folder.path(), 10).unwrap_err().kind(), io::ErrorKind::IsADirectory);
        std::fs::remove_file(&path).unwrap();
        std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert!(read_regular(&path, 10).is_err());
    }
}
