//! Watches gateway.yaml and the files that it names, and reads them when one has changed.
//!
//! A write may be incomplete. So changed files are read when two checks in a row have found all files the same.
//! Files with the same content, or with the same fault as before, are not reported again.

use std::path::PathBuf;
use std::sync::Arc;

use super::file_fingerprint::{FileFingerprint, Trigger};
use config::problem::{Problem, Problems};
use config::{API_KEYS_FILE, Config, Home, ListSize, LoadedConfig, Source};
use identity::api_keys::ApiKeys;

/// The result of a check of the configuration files.
#[derive(Debug)]
pub(crate) enum ConfigChange {
    Changed(Box<Config>),
    /// The files are those of the current configuration. Reported only if the files were invalid before, or if an operator
    /// asked for a reload.
    Unchanged,
    Invalid(Problems),
}

#[derive(Debug)]
pub(crate) struct ConfigWatch {
    /// The files of the current configuration.
    in_force: Vec<Source>,
    /// The files that were read last.
    sources: Vec<Source>,
    /// The fingerprints that the last check found.
    last_seen: Option<Vec<FileFingerprint>>,
    /// The fingerprints when the files were last read.
    last_read: Option<Vec<FileFingerprint>>,
    /// The sizes of the lists in the current configuration.
    lists: Vec<ListSize>,
    /// The API keys of the current configuration. Another watch checks their file.
    api_keys: Option<Arc<ApiKeys>>,
    /// The file of API keys, if the last configuration was rejected because the file had lost too many keys.
    shrunk_keys: Option<PathBuf>,
    /// The home of limits over several regions, if this process has one. Its store and region stay as they were at the start.
    home: Option<Home>,
}

impl ConfigWatch {
    /// Makes a watch of the files from which `config` was read. The first checks also find changes since the files were read.
    /// `None` if gateway.yaml came from a pipe, because a pipe can be read only once.
    pub(crate) fn new(sources: Vec<Source>, config: &Config) -> Option<ConfigWatch> {
        let is_file = |source: &Source| source.path.metadata().is_ok_and(|found| found.is_file());
        sources.first().is_some_and(is_file).then(|| ConfigWatch {
            in_force: sources.clone(),
            sources,
            last_seen: None,
            last_read: None,
            lists: config.remarks.lists.clone(),
            api_keys: config.api_keys.clone(),
            shrunk_keys: None,
            home: config.home.clone(),
        })
    }

    pub(crate) fn check(&mut self, trigger: Trigger) -> Option<ConfigChange> {
        let fingerprints = self.fingerprints();
        let settled = self.last_seen.as_ref() == Some(&fingerprints);
        self.last_seen = Some(fingerprints.clone());
        if trigger == Trigger::Interval && (!settled || self.last_read.as_ref() == Some(&fingerprints)) {
            return None;
        }
        let path = &self.sources.first()?.path;
        if self.sources == self.in_force && self.sources.iter().all(Source::is_as_read) {
            // The file of API keys may have changed. It is not among the sources, because it has its own watch.
            self.last_read = settled.then_some(fingerprints);
            return (trigger == Trigger::Operator).then_some(ConfigChange::Unchanged);
        }
        let loaded = LoadedConfig::again(path);
        if self.fingerprints() != fingerprints {
            // A file changed while it was read, so all files are read again.
            self.last_seen = None;
            return None;
        }
        // A file that was not named before has no fingerprint yet, so all files are read again at the next check.
        let same_files = loaded.sources.iter().map(|source| &source.path).eq(self.sources.iter().map(|old| &old.path));
        self.last_read = (settled && same_files).then_some(fingerprints);
        let is_new = loaded.sources != self.sources || trigger == Trigger::Operator;
        self.sources = loaded.sources;
        self.shrunk_keys = None;
        match loaded.config {
            Err(problems) => is_new.then_some(ConfigChange::Invalid(problems)),
            Ok(_) if self.sources == self.in_force => is_new.then_some(ConfigChange::Unchanged),
            Ok(config) => {
                if let Some(problem) = config.needs_restart_for_home(self.home.as_ref()) {
                    return is_new.then(|| ConfigChange::Invalid(self.problems(vec![problem])));
                }
                if let Some(problems) = self.shrunk_lists(&config) {
                    // This watch must also notice a change of the file of API keys, to try the configuration again.
                    let is_of_keys = |problem: &Problem| problem.path == API_KEYS_FILE;
                    let keys = config.api_keys.filter(|_| problems.problems.iter().any(is_of_keys));
                    self.shrunk_keys = keys.map(|keys| keys.file.clone());
                    return is_new.then_some(ConfigChange::Invalid(problems));
                }
                self.lists.clone_from(&config.remarks.lists);
                self.api_keys.clone_from(&config.api_keys);
                self.home = config.home_after(self.home.as_ref());
                self.in_force.clone_from(&self.sources);
                Some(ConfigChange::Changed(Box::new(config)))
            }
        }
    }

    /// Returns the number of entries of a list in the current configuration.
    fn in_force(&self, list: &ListSize) -> Option<usize> {
        let before = self.lists.iter().filter(|before| before.file == list.file);
        match &self.api_keys {
            // The API keys may have been replaced since gateway.yaml was read, so they are counted now.
            Some(keys) if list.path == API_KEYS_FILE => before.map(|_| keys.keys().len()).next(),
            _ => before.map(|before| before.entries).max(),
        }
    }

    /// Returns a problem for each list that has lost more entries than allowed.
    fn shrunk_lists(&self, config: &Config) -> Option<Problems> {
        let problem = |list: &ListSize| {
            let before = self.in_force(list)?;
            let ListSize { entries, max_shrink, position, .. } = list;
            let what = format!("the list has {entries} of {before} entries left, and may lose {max_shrink}% at once");
            let hint = Some("raise `max_shrink`, or restart, if this is meant".to_owned());
            let problem = Problem { file: None, position: Some(*position), path: list.path.clone(), what, hint };
            list.has_shrunk(before).then_some(problem)
        };
        let problems: Vec<Problem> = config.remarks.lists.iter().filter_map(problem).collect();
        (!problems.is_empty()).then(|| self.problems(problems))
    }

    /// Returns these problems of the configuration file.
    fn problems(&self, problems: Vec<Problem>) -> Problems {
        let file = self.sources.first().map_or_else(String::new, |source| source.path.display().to_string());
        Problems { file, problems, warnings: Vec::new() }
    }

    fn fingerprints(&self) -> Vec<FileFingerprint> {
        let files = self.sources.iter().map(|source| &source.path).chain(&self.shrunk_keys);
        files.map(|file| FileFingerprint::of(file)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const SECRET: &str = "jwt: {algorithms: [HS256], keys: {secret_file: secret}}\n";

    fn watched(folder: &Path, rest: &str) -> (ConfigWatch, PathBuf) {
        let file = folder.join("gateway.yaml");
        std::fs::write(&file, format!("upstream: http://a\n{rest}")).unwrap();
        let LoadedConfig { config, sources, .. } = LoadedConfig::from(&file);
        let watch = ConfigWatch::new(sources, &config.unwrap()).unwrap();
        (watch, file)
    }

    /// Makes `count` checks, each as if the interval had passed, and returns their results.
    fn looks(watch: &mut ConfigWatch, count: usize) -> Vec<String> {
        let found = (0..count).filter_map(|_| watch.check(Trigger::Interval));
        found
            .map(|found| match found {
                ConfigChange::Changed(config) => {
                    format!("{}:{}", config.upstreams[0].endpoints[0].host, config.upstreams[0].endpoints[0].port)
                }
                ConfigChange::Unchanged => "in force".to_owned(),
                ConfigChange::Invalid(problems) => problems.problems.len().to_string(),
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
        // A check by an operator reads changed files at once.
        std::fs::write(&file, "upstream: http://c\n").unwrap();
        assert!(matches!(watch.check(Trigger::Operator), Some(ConfigChange::Changed(_))));
        assert!(matches!(watch.check(Trigger::Operator), Some(ConfigChange::Unchanged)));
        assert_eq!(looks(&mut watch, 4), [""; 0]);
    }

    #[test]
    fn an_invalid_file_is_found_once_and_so_is_its_repair() {
        let folder = tempfile::tempdir().unwrap();
        let (mut watch, file) = watched(folder.path(), "");
        let right = std::fs::read(&file).unwrap();
        std::fs::write(&file, "lisen: 1\n").unwrap();
        assert_eq!(looks(&mut watch, 4), ["2"]);
        // The file is replaced by one with the same content.
        std::fs::copy(&file, folder.path().join("copy")).unwrap();
        std::fs::rename(folder.path().join("copy"), &file).unwrap();
        assert_eq!(looks(&mut watch, 4), [""; 0]);
        assert!(matches!(watch.check(Trigger::Operator), Some(ConfigChange::Invalid(_))));
        std::fs::remove_file(&file).unwrap();
        assert_eq!(looks(&mut watch, 4), ["1"]);
        std::fs::write(&file, right).unwrap();
        assert_eq!(looks(&mut watch, 4), ["in force"]);
    }

    #[test]
    fn limits_over_several_regions_are_not_added_by_a_reload_of_a_process_without_home() {
        let home = "{redis: {url: \"redis://b\"}, region: eu, regions: [eu, us]}";
        let file_with = |scope: &str| {
            let store = format!("store: {{redis: {{url: \"redis://a\"}}, gateways: 1, home: {home}}}");
            format!("{store}\nrules: [{{name: a, {scope}limit_keys: [], algorithm_config: {{rps: 9, burst: 90}}}}]\n")
        };
        let folder = tempfile::tempdir().unwrap();
        let (mut watch, file) = watched(folder.path(), "store: {redis: {url: \"redis://a\"}, gateways: 1}\n");
        std::fs::write(&file, format!("upstream: http://b\n{}", file_with("scope: global, "))).unwrap();
        let Some(ConfigChange::Invalid(problems)) = watch.check(Trigger::Operator) else { panic!("it is accepted") };
        let lines: Vec<String> = problems.lines().collect();
        assert!(
            lines[0].ends_with("store.home: `scope: global` needs a home from the start of the process"),
            "{lines:?}"
        );
        // A home that no limit uses only needs a restart.
        std::fs::write(&file, format!("upstream: http://b\n{}", file_with(""))).unwrap();
        assert!(matches!(watch.check(Trigger::Operator), Some(ConfigChange::Changed(_))));
        let (mut watch, file) = watched(folder.path(), &file_with(""));
        std::fs::write(&file, format!("upstream: http://b\n{}", file_with("scope: global, "))).unwrap();
        assert!(matches!(watch.check(Trigger::Operator), Some(ConfigChange::Changed(_))));
    }

    #[test]
    fn limits_over_several_regions_do_not_move_by_a_reload() {
        let file_with = |home: &str, scope: &str| {
            let store =
                format!("store: {{redis: {{url: \"redis://a\"}}, gateways: 1, home: {{{home}, regions: [eu, us]}}}}");
            format!(
                "upstream: http://b\n{store}\nrules: [{{name: a, {scope}limit_keys: [], algorithm_config: {{rate: 90/s}}}}]\n"
            )
        };
        let (here, global) = ("redis: {url: \"redis://b\"}, region: eu", "scope: global, ");
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("gateway.yaml");
        std::fs::write(&file, file_with(here, global)).unwrap();
        let LoadedConfig { config, sources, .. } = LoadedConfig::from(&file);
        let mut watch = ConfigWatch::new(sources, &config.unwrap()).unwrap();
        let mut reload = |home: &str, scope: &str| {
            std::fs::write(&file, file_with(home, scope)).unwrap();
            match watch.check(Trigger::Operator) {
                Some(ConfigChange::Changed(_)) => String::new(),
                Some(ConfigChange::Invalid(problems)) => problems.problems[0].path.clone(),
                other => panic!("{other:?}"),
            }
        };
        for (moved, path) in [
            ("redis: {url: \"redis://c\"}, region: eu, on_failure: local", "store.home"),
            ("redis: {url: \"redis://b\"}, region: us, return_after: 9s", "store.home.region"),
        ] {
            assert_eq!(reload(moved, global), path);
            // Without such limits, nothing moves. And the home that stays is that of the start.
            assert_eq!(reload(moved, ""), "");
            assert_eq!(reload(moved, global), path);
            assert_eq!(reload(&format!("{here}, on_failure: local"), global), "");
        }
    }

    #[test]
    fn a_named_file_is_watched_before_it_exists() {
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
