//! Watches the file of API keys, and takes up a changed one.
//!
//! A change counts once the file has looked the same twice, because whoever writes it may be half way. A file that is
//! wrong changes nothing: the keys that were known stay known, and the log says once what is wrong with it.

use std::io;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::file_fingerprint::{FileFingerprint, Trigger};
use crate::auth::api_keys::ApiKeys;
use crate::auth::key_file;
use crate::auth::key_file::Fault;
use crate::config;

/// The most faults that one line of the log names.
const NAMED: usize = 10;

/// Why a file is not accepted.
#[derive(Debug, PartialEq, Eq)]
pub struct Unfit {
    pub problems: usize,
    pub detail: String,
}

#[derive(Debug)]
pub struct ApiKeyWatch {
    pub api_keys: Arc<ApiKeys>,
    /// How the file looked last.
    looked: Option<FileFingerprint>,
    /// How it looked when it was last read.
    read: Option<FileFingerprint>,
    /// Of what was then in it; none if it could not be read. A file that was only touched is no news.
    hash: Option<[u8; 32]>,
}

impl ApiKeyWatch {
    /// It was read before it is watched: whatever came in between is found at the first look.
    pub fn new(api_keys: Arc<ApiKeys>) -> ApiKeyWatch {
        let hash = Some(api_keys.keys().source());
        ApiKeyWatch { api_keys, looked: None, read: None, hash }
    }

    /// How many keys were taken up, or why none were; none when there is nothing new.
    pub fn look(&mut self, why: Trigger) -> Option<Result<usize, Unfit>> {
        let path = &self.api_keys.file;
        let stamp = FileFingerprint::of(path);
        let settled = self.looked.replace(stamp) == Some(stamp);
        if why == Trigger::Time && (!settled || self.read == Some(stamp)) {
            return None;
        }
        let bytes = stamp.unreadable().map_or_else(|| config::read_file(path), Err);
        if FileFingerprint::of(path) != stamp {
            // It changed while it was read.
            self.looked = None;
            return None;
        }
        // Read before it has settled, it may be written once more within what a file's times can tell apart.
        self.read = settled.then_some(stamp);
        let hash = bytes.as_ref().ok().map(|bytes| Sha256::digest(bytes).into());
        let news = std::mem::replace(&mut self.hash, hash) != hash;
        (news || why == Trigger::Asked).then(|| self.take_up(bytes))
    }

    fn take_up(&self, bytes: io::Result<Vec<u8>>) -> Result<usize, Unfit> {
        let bytes =
            bytes.map_err(|error| Unfit { problems: 1, detail: format!("must be a readable file: {error}") })?;
        match key_file::parse(&bytes) {
            Ok(keys) => {
                let count = keys.len();
                self.api_keys.replace(keys);
                Ok(count)
            }
            Err(faults) => {
                let named: Vec<String> = faults.iter().take(NAMED).map(Fault::to_string).collect();
                let rest = if faults.len() > NAMED { "; …" } else { "" };
                Err(Unfit { problems: faults.len(), detail: named.join("; ") + rest })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::auth::api_keys::OnInvalid;
    use crate::limit::attribute::Attribute;

    const HASH: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    /// A file with one key, watched since it was read.
    fn watched(folder: &Path) -> ApiKeyWatch {
        let file = folder.join("api-keys.txt");
        let text = format!("{HASH} acme gold\n");
        std::fs::write(&file, &text).unwrap();
        let keys = key_file::parse(text.as_bytes()).unwrap();
        let from = Attribute::parse("header:x-api-key").unwrap();
        ApiKeyWatch::new(Arc::new(ApiKeys::new(from, OnInvalid::Reject, file, keys)))
    }

    #[test]
    fn a_change_counts_once_the_file_has_looked_the_same_twice() {
        let folder = tempfile::tempdir().unwrap();
        let mut watched = watched(folder.path());
        let file = watched.api_keys.file.clone();
        for _ in 0..3 {
            assert_eq!(watched.look(Trigger::Time), None);
        }
        std::fs::write(&file, "").unwrap();
        assert_eq!(watched.look(Trigger::Time), None);
        std::fs::write(&file, format!("# whole\n{HASH} acme silver\n")).unwrap();
        assert_eq!(watched.look(Trigger::Time), None);
        assert_eq!(watched.look(Trigger::Time), Some(Ok(1)));
        assert_eq!(watched.look(Trigger::Time), None);
        assert_eq!(watched.look(Trigger::Asked), Some(Ok(1)));
    }

    #[test]
    fn a_file_that_was_only_touched_is_no_news() {
        let folder = tempfile::tempdir().unwrap();
        let mut watched = watched(folder.path());
        let file = watched.api_keys.file.clone();
        std::fs::copy(&file, folder.path().join("copy")).unwrap();
        std::fs::rename(folder.path().join("copy"), &file).unwrap();
        for _ in 0..3 {
            assert_eq!(watched.look(Trigger::Time), None);
        }
    }

    #[test]
    fn what_is_wrong_is_said_once_and_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let mut watched = watched(folder.path());
        let file = watched.api_keys.file.clone();
        let before = watched.api_keys.keys().source();
        let mut said = |wrong: &str| {
            let found: Vec<_> = (0..4).filter_map(|_| watched.look(Trigger::Time)).collect();
            let [Err(unfit)] = &found[..] else { panic!("{found:?}") };
            assert!(unfit.detail.contains(wrong), "{unfit:?}");
            assert!(watched.api_keys.keys().source() == before);
            unfit.problems
        };
        std::fs::write(&file, "a-real-key acme gold\n".repeat(12)).unwrap();
        assert_eq!(said("10:1: hash: must be"), 12);
        std::fs::remove_file(&file).unwrap();
        assert_eq!(said("must be a readable file: "), 1);
        std::fs::create_dir(&file).unwrap();
        // Still not readable, for another reason: nothing that was not said.
        assert_eq!((0..4).find_map(|_| watched.look(Trigger::Time)), None);
        std::fs::remove_dir(&file).unwrap();
        std::fs::write(&file, format!("{HASH} acme gold\n")).unwrap();
        assert_eq!((0..4).find_map(|_| watched.look(Trigger::Time)), Some(Ok(1)));
    }
}
