//! Reads a file that the configuration names, again whenever its content is needed.

use std::borrow::Cow;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// In bytes: far more than any bundle of certificates has.
const MAX_BYTES: usize = 16 << 20;

/// A file that the configuration names, with what it contained when that was loaded.
#[derive(Clone, PartialEq, Eq)]
pub struct NamedFile {
    path: PathBuf,
    loaded: Vec<u8>,
    kind: FileKind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum FileKind {
    Regular,
    /// Such as a pipe, which can be read only once.
    Other,
}

impl NamedFile {
    /// `path` must be one that can be opened, `loaded` what was just read from it.
    pub fn new(path: PathBuf, loaded: Vec<u8>) -> NamedFile {
        let regular = std::fs::metadata(&path).is_ok_and(|found| found.is_file());
        NamedFile { path, loaded, kind: if regular { FileKind::Regular } else { FileKind::Other } }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What it contained when the configuration was loaded.
    pub fn loaded(&self) -> &[u8] {
        &self.loaded
    }

    /// What it contains now. A pipe is not read again. May block.
    ///
    /// # Errors
    ///
    /// If it cannot be opened or read, is no regular file any more, or is larger than 16 MiB.
    pub fn read(&self) -> io::Result<Cow<'_, [u8]>> {
        if self.kind == FileKind::Other {
            return Ok(Cow::Borrowed(&self.loaded));
        }
        // To open a pipe that has replaced it would wait for a writer.
        if !std::fs::metadata(&self.path)?.is_file() {
            return Err(io::Error::other("not a regular file"));
        }
        let mut bytes = Vec::new();
        File::open(&self.path)?.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes)?;
        if bytes.len() > MAX_BYTES {
            return Err(io::Error::other(format!("larger than {MAX_BYTES} bytes")));
        }
        Ok(Cow::Owned(bytes))
    }
}

impl fmt::Debug for NamedFile {
    /// Without the content, which may be a secret.
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
        assert_eq!(file.read().unwrap_err().to_string(), "not a regular file");
        assert!(!format!("{file:?}").contains("one"));
    }

    #[test]
    fn other_than_regular_files_are_not_read_again() {
        let file = NamedFile::new(PathBuf::from("/dev/null"), b"from a pipe".to_vec());
        assert_eq!(&*file.read().unwrap(), b"from a pipe");
    }
}
