//! Watches the file of API keys, and applies a changed file.
//!
//! A write may be incomplete. So a changed file is read when two checks in a row have found it the same. An invalid
//! file changes nothing.

use std::io;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::file_fingerprint::{FileFingerprint, Trigger};
use identity::api_key_file;
use identity::api_key_file::Fault;
use identity::api_keys::ApiKeys;

/// The maximum number of faults that one log line names.
const NAMED: usize = 10;

/// The reason why a changed file of API keys was rejected.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct InvalidKeyFile {
    pub problems: usize,
    pub detail: String,
}

#[derive(Debug)]
pub(crate) struct ApiKeyWatch {
    pub api_keys: Arc<ApiKeys>,
    /// The columns that rules read.
    columns: Vec<String>,
    /// The fingerprint at the last check.
    last_seen: Option<FileFingerprint>,
    /// The fingerprint when the file was last read.
    last_read: Option<FileFingerprint>,
    /// The hash of the content that was read last; `None` if the file could not be read. If the hash is unchanged,
    /// nothing is reported.
    hash: Option<[u8; 32]>,
}

impl ApiKeyWatch {
    /// Makes a watch of the file of `api_keys`. The first check also finds a change since the file was read. `columns` are the
    /// columns that rules read.
    pub(crate) fn new(api_keys: Arc<ApiKeys>, columns: Vec<String>) -> ApiKeyWatch {
        let hash = Some(api_keys.keys().source());
        ApiKeyWatch { api_keys, columns, last_seen: None, last_read: None, hash }
    }

    /// Checks the file, and puts changed keys in force. Returns the number of keys that have come into force, or `None` if
    /// there is nothing new.
    ///
    /// # Errors
    /// When the file cannot be read, has an invalid line, lacks a column that a rule reads, or has lost too many keys at once.
    pub(crate) fn check(&mut self, trigger: Trigger) -> Option<Result<usize, InvalidKeyFile>> {
        let path = &self.api_keys.file;
        let fingerprint = FileFingerprint::of(path);
        let settled = self.last_seen.replace(fingerprint) == Some(fingerprint);
        if trigger == Trigger::Interval && (!settled || self.last_read == Some(fingerprint)) {
            return None;
        }
        let bytes = config::read_file(path);
        if FileFingerprint::of(path) != fingerprint {
            // The file changed while it was read, so it is read again.
            self.last_seen = None;
            return None;
        }
        // The file may change again at once. So a read is final only if two checks in a row have found the same file.
        self.last_read = settled.then_some(fingerprint);
        let hash = bytes.as_ref().ok().map(|bytes| Sha256::digest(bytes).into());
        let is_new = std::mem::replace(&mut self.hash, hash) != hash;
        (is_new || trigger == Trigger::Operator).then(|| self.put_in_force(bytes))
    }

    fn put_in_force(&self, bytes: io::Result<Vec<u8>>) -> Result<usize, InvalidKeyFile> {
        // The message about an unreadable file is the same as at the start of the process.
        let unreadable = |error| {
            let file = self.api_keys.file.display();
            let detail = format!("api_keys.file: must be a readable file ({error}), is `{file}`");
            InvalidKeyFile { problems: 1, detail }
        };
        let bytes = bytes.map_err(unreadable)?;
        match api_key_file::parse(&bytes) {
            Ok(keys) => {
                let known = keys.columns();
                let lost: Vec<String> =
                    self.columns.iter().filter(|name| !known.contains(name)).map(|name| format!("`{name}`")).collect();
                if !lost.is_empty() {
                    let detail = format!("1:1: must name every column that a rule reads, lacks {}", lost.join(", "));
                    return Err(InvalidKeyFile { problems: 1, detail });
                }
                let (before, count, max_shrink) = (self.api_keys.keys().len(), keys.len(), self.api_keys.max_shrink);
                if config::has_shrunk(before, count, max_shrink) {
                    let detail = format!(
                        "the file has {count} of {before} keys left, and may lose {max_shrink}% at once; raise \
                         `max_shrink`, or restart, if this is meant"
                    );
                    return Err(InvalidKeyFile { problems: 1, detail });
                }
                self.api_keys.replace(keys);
                Ok(count)
            }
            Err(faults) => {
                let named: Vec<String> = faults.iter().take(NAMED).map(Fault::to_string).collect();
                let rest = if faults.len() > NAMED { "; …" } else { "" };
                Err(InvalidKeyFile { problems: faults.len(), detail: named.join("; ") + rest })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use identity::api_keys::OnInvalid;
    use request::attribute::Attribute;
    use request::key_places::{KeyPlace, KeyPlaces};

    const HASH: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    /// Makes a file with one key, and a watch of it.
    fn watched(folder: &Path) -> ApiKeyWatch {
        let file = folder.join("api-keys.txt");
        let text = format!("{HASH} acme gold\n");
        std::fs::write(&file, &text).unwrap();
        let keys = api_key_file::parse(text.as_bytes()).unwrap();
        let from = KeyPlace::Attribute(Attribute::parse("header:x-api-key").unwrap());
        let api_keys = ApiKeys::new(KeyPlaces::new(vec![from], &[]), OnInvalid::Reject, file, keys).losing_at_most(100);
        ApiKeyWatch::new(Arc::new(api_keys), Vec::new())
    }

    #[test]
    fn a_change_counts_once_the_file_has_looked_the_same_twice() {
        let folder = tempfile::tempdir().unwrap();
        let mut watched = watched(folder.path());
        let file = watched.api_keys.file.clone();
        for _ in 0..3 {
            assert_eq!(watched.check(Trigger::Interval), None);
        }
        std::fs::write(&file, "").unwrap();
        assert_eq!(watched.check(Trigger::Interval), None);
        std::fs::write(&file, format!("# whole\n{HASH} acme silver\n")).unwrap();
        assert_eq!(watched.check(Trigger::Interval), None);
        assert_eq!(watched.check(Trigger::Interval), Some(Ok(1)));
        assert_eq!(watched.check(Trigger::Interval), None);
        assert_eq!(watched.check(Trigger::Operator), Some(Ok(1)));
    }

    #[test]
    fn a_touched_file_is_not_reported() {
        let folder = tempfile::tempdir().unwrap();
        let mut watched = watched(folder.path());
        let file = watched.api_keys.file.clone();
        std::fs::copy(&file, folder.path().join("copy")).unwrap();
        std::fs::rename(folder.path().join("copy"), &file).unwrap();
        for _ in 0..3 {
            assert_eq!(watched.check(Trigger::Interval), None);
        }
    }

    #[test]
    fn a_file_that_has_lost_a_column_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let mut watched = ApiKeyWatch { columns: vec!["rps".to_owned()], ..watched(folder.path()) };
        let file = watched.api_keys.file.clone();
        let mut write = |text: &str| {
            std::fs::write(&file, text).unwrap();
            (0..4).find_map(|_| watched.check(Trigger::Interval))
        };
        assert_eq!(write(&format!("#columns id plan rps\n{HASH} acme gold 5\n")), Some(Ok(1)));
        let Some(Err(invalid)) = write(&format!("#columns id plan burst\n{HASH} acme gold 5\n")) else { panic!() };
        assert_eq!(invalid.detail, "1:1: must name every column that a rule reads, lacks `rps`");
        assert_eq!(write(&format!("#columns id plan burst rps\n{HASH} acme gold 5 6\n")), Some(Ok(1)));
    }

    #[test]
    fn an_invalid_file_is_reported_once_and_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let mut watched = watched(folder.path());
        let file = watched.api_keys.file.clone();
        let before = watched.api_keys.keys().source();
        let mut reported = |wrong: &str| {
            let found: Vec<_> = (0..4).filter_map(|_| watched.check(Trigger::Interval)).collect();
            let [Err(invalid)] = &found[..] else { panic!("{found:?}") };
            assert!(invalid.detail.contains(wrong), "{invalid:?}");
            assert!(watched.api_keys.keys().source() == before);
            invalid.problems
        };
        std::fs::write(&file, "a-real-key acme gold\n".repeat(12)).unwrap();
        assert_eq!(reported("10:1: hash: must be"), 12);
        std::fs::remove_file(&file).unwrap();
        assert_eq!(reported("must be a readable file ("), 1);
        std::fs::create_dir(&file).unwrap();
        // The file is still not readable, for another reason. This is not reported again.
        assert_eq!((0..4).find_map(|_| watched.check(Trigger::Interval)), None);
        std::fs::remove_dir(&file).unwrap();
        std::fs::write(&file, format!("{HASH} acme gold\n")).unwrap();
        assert_eq!((0..4).find_map(|_| watched.check(Trigger::Interval)), Some(Ok(1)));
    }
}
