//! Watches gateway.yaml and the files that it names, and reads them when one has changed.
//!
//! A change counts once all of them have looked the same twice, because whoever writes one may be half way. What is in
//! them decides whether there is news: a file that was only touched is none, and neither is a wrong one that is still wrong
//! in the same way.

use super::file_fingerprint::{FileFingerprint, Trigger};
use crate::config::problem::Problems;
use crate::config::{Config, LoadedConfig, Source};

/// What a look has found.
#[derive(Debug)]
pub enum Found {
    Changed(Box<Config>),
    /// After others that were wrong, or because an operator asked.
    InForce,
    Wrong(Problems),
}

#[derive(Debug)]
pub struct ConfigWatch {
    /// What the configuration in force was read from.
    in_force: Vec<Source>,
    /// What was read last.
    sources: Vec<Source>,
    /// How these looked last.
    looked: Option<Vec<FileFingerprint>>,
    /// How they looked when they were read.
    read: Option<Vec<FileFingerprint>>,
}

impl ConfigWatch {
    /// They were read before they are watched: whatever came in between is found at the first looks. What is no file,
    /// such as a pipe, can be read once only: then nothing is watched.
    pub fn new(sources: Vec<Source>) -> Option<ConfigWatch> {
        let is_file = |source: &Source| source.path.metadata().is_ok_and(|found| found.is_file());
        sources.iter().all(is_file).then(|| ConfigWatch {
            in_force: sources.clone(),
            sources,
            looked: None,
            read: None,
        })
    }

    pub fn look(&mut self, why: Trigger) -> Option<Found> {
        let stamps = self.stamps();
        let settled = self.looked.as_ref() == Some(&stamps);
        self.looked = Some(stamps.clone());
        if why == Trigger::Time && (!settled || self.read.as_ref() == Some(&stamps)) {
            return None;
        }
        let path = &self.sources.first()?.path;
        let unchanged =
            || stamps.iter().all(|stamp| stamp.unreadable().is_none()) && self.sources.iter().all(Source::is_as_read);
        if self.sources == self.in_force && unchanged() {
            // Not checked again: the file of API keys, which is not among them, may be wrong by now, and says so itself.
            self.read = settled.then_some(stamps);
            return (why == Trigger::Asked).then_some(Found::InForce);
        }
        let loaded = match stamps.first().and_then(FileFingerprint::unreadable) {
            Some(error) => LoadedConfig::unreadable(path, &error),
            None => LoadedConfig::from(path),
        };
        if self.stamps() != stamps {
            // One changed while it was read.
            self.looked = None;
            return None;
        }
        // A file that was not named before has been read without a look at it before.
        let same_files = loaded.sources.iter().map(|source| &source.path).eq(self.sources.iter().map(|old| &old.path));
        self.read = (settled && same_files).then_some(stamps);
        let news = loaded.sources != self.sources || why == Trigger::Asked;
        self.sources = loaded.sources;
        match loaded.config {
            Err(problems) => news.then_some(Found::Wrong(problems)),
            Ok(_) if self.sources == self.in_force => news.then_some(Found::InForce),
            Ok(config) => {
                self.in_force.clone_from(&self.sources);
                Some(Found::Changed(Box::new(config)))
            }
        }
    }

    fn stamps(&self) -> Vec<FileFingerprint> {
        self.sources.iter().map(|source| FileFingerprint::of(&source.path)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::*;

    const SECRET: &str = "jwt: {algorithms: [HS256], keys: {secret_file: secret}}\n";

    fn watched(folder: &Path, rest: &str) -> (ConfigWatch, PathBuf) {
        let file = folder.join("gateway.yaml");
        std::fs::write(&file, format!("upstream: http://a\n{rest}")).unwrap();
        let watch = ConfigWatch::new(LoadedConfig::from(&file).sources).unwrap();
        (watch, file)
    }

    /// What so many looks by time have found.
    fn looks(watch: &mut ConfigWatch, count: usize) -> Vec<String> {
        let found = (0..count).filter_map(|_| watch.look(Trigger::Time));
        found
            .map(|found| match found {
                Found::Changed(config) => format!("{}:{}", config.upstream.host, config.upstream.port),
                Found::InForce => "in force".to_owned(),
                Found::Wrong(problems) => problems.problems.len().to_string(),
            })
            .collect()
    }

    #[test]
    fn a_change_counts_once_the_file_has_looked_the_same_twice() {
        let folder = tempfile::tempdir().unwrap();
        let (mut watch, file) = watched(folder.path(), "");
        assert_eq!(looks(&mut watch, 4), [""; 0]);
        std::fs::write(&file, "upstream: http://").unwrap();
        assert_eq!(looks(&mut watch, 1), [""; 0]);
        std::fs::write(&file, "upstream: http://b\n").unwrap();
        assert_eq!(looks(&mut watch, 1), [""; 0]);
        assert_eq!(looks(&mut watch, 4), ["b:80"]);
        // Asked, it does not wait.
        std::fs::write(&file, "upstream: http://c\n").unwrap();
        assert!(matches!(watch.look(Trigger::Asked), Some(Found::Changed(_))));
        assert!(matches!(watch.look(Trigger::Asked), Some(Found::InForce)));
        assert_eq!(looks(&mut watch, 4), [""; 0]);
    }

    #[test]
    fn what_is_wrong_is_found_once_and_so_is_what_is_right_again() {
        let folder = tempfile::tempdir().unwrap();
        let (mut watch, file) = watched(folder.path(), "");
        let right = std::fs::read(&file).unwrap();
        std::fs::write(&file, "lisen: 1\n").unwrap();
        assert_eq!(looks(&mut watch, 4), ["2"]);
        // The same, by another file of its name.
        std::fs::copy(&file, folder.path().join("copy")).unwrap();
        std::fs::rename(folder.path().join("copy"), &file).unwrap();
        assert_eq!(looks(&mut watch, 4), [""; 0]);
        assert!(matches!(watch.look(Trigger::Asked), Some(Found::Wrong(_))));
        std::fs::remove_file(&file).unwrap();
        assert_eq!(looks(&mut watch, 4), ["1"]);
        std::fs::write(&file, right).unwrap();
        assert_eq!(looks(&mut watch, 4), ["in force"]);
    }

    #[test]
    fn a_file_that_is_named_is_watched_also_before_it_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let (mut watch, file) = watched(folder.path(), "");
        let secret = folder.path().join("secret");
        std::fs::write(&file, format!("upstream: http://b\n{SECRET}")).unwrap();
        assert_eq!(looks(&mut watch, 4), ["1"]);
        std::fs::write(&secret, "s".repeat(32)).unwrap();
        assert_eq!(looks(&mut watch, 4), ["b:80"]);
        std::fs::write(&secret, "t".repeat(32)).unwrap();
        assert_eq!(looks(&mut watch, 4), ["b:80"]);
        std::fs::write(&secret, "short").unwrap();
        assert_eq!(looks(&mut watch, 4), ["1"]);
        std::fs::write(&secret, "t".repeat(32)).unwrap();
        assert_eq!(looks(&mut watch, 4), ["in force"]);
    }
}
