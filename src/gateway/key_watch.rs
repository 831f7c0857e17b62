//! Watches the file of API keys, and takes up a changed one.
//!
//! The file is looked at, not listened to: a write, a rename, a swapped link and a network's file system are all alike
//! then. A change counts once the file has looked the same twice, because whoever writes it may be half way. A file that
//! is wrong changes nothing: the keys that were known stay known, and the log says once what is wrong with it.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest, Sha256};
use tokio::time::MissedTickBehavior;

use super::shared::Gateway;
use crate::auth::api_keys::ApiKeys;
use crate::auth::key_file::{self, Fault};
use crate::config;

/// Twice this, and the time to read it, is how long a changed file is not in force.
const PACE: Duration = Duration::from_millis(500);
/// The most faults that one line of the log names.
const NAMED: usize = 10;

/// Goes on for as long as the process does, if there are keys at all.
pub async fn watch(gateway: &Gateway) {
    let Some(api_keys) = gateway.snapshot.load().config.api_keys.clone() else { return };
    let mut watched = Watched::new(api_keys);
    let mut pace = tokio::time::interval(PACE);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let why = tokio::select! {
            _ = pace.tick() => Why::Time,
            () = gateway.hangup.notified() => Why::Asked,
        };
        // A large file takes its time to read, and one on a network as long as it likes.
        let look = tokio::task::spawn_blocking(move || {
            let found = watched.look(why);
            (watched, found)
        });
        let Ok((back, found)) = look.await else { return };
        watched = back;
        let file = watched.api_keys.file.display();
        match found {
            None => {}
            Some(Ok(keys)) => {
                gateway.metrics.reloads.increment(1);
                gateway.metrics.last_reload.set(1.0);
                log::info!(file:%, keys; "API keys taken up");
            }
            Some(Err(Unfit { problems, detail })) => {
                gateway.metrics.failed_reloads.increment(1);
                gateway.metrics.last_reload.set(0.0);
                log::warn!(file:%, problems, detail; "API keys not taken up, those before stay in force");
            }
        }
    }
}

/// Why the file is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    Time,
    /// By an operator, who wants an answer, and has finished writing.
    Asked,
}

/// Why a file is not taken up.
#[derive(Debug, PartialEq, Eq)]
struct Unfit {
    problems: usize,
    detail: String,
}

#[derive(Debug)]
struct Watched {
    api_keys: Arc<ApiKeys>,
    /// How the file looked last.
    looked: Option<Stamp>,
    /// How it looked when it was last read.
    read: Option<Stamp>,
    /// Of what was then in it; none if it could not be read. A file that was only touched is no news.
    hash: Option<[u8; 32]>,
}

impl Watched {
    /// It was read before it is watched: whatever came in between is found at the first look.
    fn new(api_keys: Arc<ApiKeys>) -> Watched {
        let hash = Some(api_keys.keys().source());
        Watched { api_keys, looked: None, read: None, hash }
    }

    /// How many keys were taken up, or why none were; none when there is nothing new.
    fn look(&mut self, why: Why) -> Option<Result<usize, Unfit>> {
        let path = &self.api_keys.file;
        let stamp = Stamp::of(path);
        let settled = self.looked.replace(stamp) == Some(stamp);
        if why == Why::Time && (!settled || self.read == Some(stamp)) {
            return None;
        }
        let bytes = stamp.0.map_err(io::Error::from).and_then(|_| config::read_file(path));
        if Stamp::of(path) != stamp {
            // It changed while it was read.
            self.looked = None;
            return None;
        }
        self.read = Some(stamp);
        let hash = bytes.as_ref().ok().map(|bytes| Sha256::digest(bytes).into());
        let news = std::mem::replace(&mut self.hash, hash) != hash;
        (news || why == Why::Asked).then(|| self.take_up(bytes))
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

/// What tells a file from a changed one, short of reading it: the device and number of what the path leads to, its size,
/// and when it and its entry were last changed; or why that cannot be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp(Result<[i128; 7], io::ErrorKind>);

impl Stamp {
    fn of(path: &Path) -> Stamp {
        Stamp(match std::fs::metadata(path) {
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::api_keys::OnInvalid;
    use crate::limit::attribute::Attribute;

    const HASH: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    /// A file with one key, watched since it was read.
    fn watched(folder: &Path) -> Watched {
        let file = folder.join("api-keys.txt");
        let text = format!("{HASH} acme gold\n");
        std::fs::write(&file, &text).unwrap();
        let keys = key_file::parse(text.as_bytes()).unwrap();
        let from = Attribute::parse("header:x-api-key").unwrap();
        Watched::new(Arc::new(ApiKeys::new(from, OnInvalid::Reject, file, keys)))
    }

    #[test]
    fn a_change_counts_once_the_file_has_looked_the_same_twice() {
        let folder = tempfile::tempdir().unwrap();
        let mut watched = watched(folder.path());
        let file = watched.api_keys.file.clone();
        for _ in 0..3 {
            assert_eq!(watched.look(Why::Time), None);
        }
        std::fs::write(&file, "").unwrap();
        assert_eq!(watched.look(Why::Time), None);
        std::fs::write(&file, format!("# whole\n{HASH} acme silver\n")).unwrap();
        assert_eq!(watched.look(Why::Time), None);
        assert_eq!(watched.look(Why::Time), Some(Ok(1)));
        assert_eq!(watched.look(Why::Time), None);
        assert_eq!(watched.look(Why::Asked), Some(Ok(1)));
    }

    #[test]
    fn a_file_that_was_only_touched_is_no_news() {
        let folder = tempfile::tempdir().unwrap();
        let mut watched = watched(folder.path());
        let file = watched.api_keys.file.clone();
        std::fs::copy(&file, folder.path().join("copy")).unwrap();
        std::fs::rename(folder.path().join("copy"), &file).unwrap();
        for _ in 0..3 {
            assert_eq!(watched.look(Why::Time), None);
        }
    }

    #[test]
    fn what_is_wrong_is_said_once_and_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let mut watched = watched(folder.path());
        let file = watched.api_keys.file.clone();
        let before = watched.api_keys.keys().source();
        let mut said = |wrong: &str| {
            let found: Vec<_> = (0..4).filter_map(|_| watched.look(Why::Time)).collect();
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
        assert_eq!((0..4).find_map(|_| watched.look(Why::Time)), None);
        std::fs::remove_dir(&file).unwrap();
        std::fs::write(&file, format!("{HASH} acme gold\n")).unwrap();
        assert_eq!((0..4).find_map(|_| watched.look(Why::Time)), Some(Ok(1)));
    }
}
