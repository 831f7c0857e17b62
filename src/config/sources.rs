//! Reads a file with those that it names, and remembers which those were: so that a change of any can be told.

use std::cell::RefCell;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::problem::{Problem, Problems};
use super::{Config, Environment};
use crate::auth::key_file;

/// What came of reading a file.
#[derive(Debug)]
pub struct LoadedConfig {
    pub config: Result<Config, Problems>,
    /// The file, then those that it names; not that of API keys once it is good, because keys follow it by themselves.
    pub sources: Vec<Source>,
}

/// One file, and what was in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// As it can be opened.
    pub path: PathBuf,
    /// Of its content; none if it could not be read.
    hash: Option<[u8; 32]>,
}

impl Source {
    fn new(path: &Path, read: &io::Result<Vec<u8>>) -> Source {
        let hash = read.as_ref().ok().map(|bytes| Sha256::digest(bytes).into());
        Source { path: path.to_owned(), hash }
    }
}

impl Source {
    /// Whether there is still in it what was read.
    pub fn is_as_read(&self) -> bool {
        Source::new(&self.path, &read_file(&self.path)) == *self
    }
}

impl LoadedConfig {
    pub fn from(path: &Path) -> LoadedConfig {
        let bytes = std::fs::read(path);
        let named = RefCell::new(vec![Source::new(path, &bytes)]);
        let file = path.display().to_string();
        let config = match bytes {
            Ok(bytes) => {
                // Relative paths in a file are relative to it.
                let folder = path.parent().unwrap_or(Path::new(""));
                let read = |path: &Path| {
                    let path = folder.join(path);
                    let read = read_file(&path);
                    named.borrow_mut().push(Source::new(&path, &read));
                    read
                };
                let variable = |name: &str| std::env::var(name).ok();
                Config::parse(&file, &bytes, Environment { variable: &variable, folder, read: &read })
            }
            Err(error) => Err(unreadable(file, &error)),
        };
        let mut sources = named.into_inner();
        if let Ok(Config { api_keys: Some(api_keys), .. }) = &config {
            sources.retain(|source| source.path != api_keys.file);
        }
        LoadedConfig { config, sources }
    }

    /// What cannot even be tried to read.
    pub fn unreadable(path: &Path, error: &io::Error) -> LoadedConfig {
        let sources = vec![Source { path: path.to_owned(), hash: None }];
        LoadedConfig { config: Err(unreadable(path.display().to_string(), error)), sources }
    }
}

fn unreadable(file: String, error: &io::Error) -> Problems {
    let what = format!("must be a readable file: {error}");
    Problems { file, problems: vec![Problem { file: None, place: None, path: String::new(), what, hint: None }] }
}

/// A file that gateway.yaml names. Of one that is larger than any may be, just enough is read to tell.
pub fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(key_file::MAX_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(loaded: &LoadedConfig) -> Vec<&str> {
        loaded.sources.iter().filter_map(|source| source.path.file_name()?.to_str()).collect()
    }

    #[test]
    fn the_files_that_a_file_names_are_known_also_when_one_is_missing() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("gateway.yaml");
        let text = "upstream: http://a\njwt: {algorithms: [HS256], keys: {secret_file: secret}}\n\
                    api_keys: {from: header:x-api-key, file: keys.txt}\n";
        std::fs::write(&file, text).unwrap();
        std::fs::write(folder.path().join("keys.txt"), "# none yet").unwrap();
        let missing = LoadedConfig::from(&file);
        assert!(missing.config.is_err());
        assert_eq!(names(&missing), ["gateway.yaml", "secret", "keys.txt"]);
        std::fs::write(folder.path().join("secret"), "s".repeat(32)).unwrap();
        let good = LoadedConfig::from(&file);
        assert!(good.config.is_ok());
        // Keys follow their file by themselves.
        assert_eq!(names(&good), ["gateway.yaml", "secret"]);
        assert_ne!(missing.sources[1], good.sources[1]);
        assert_eq!(good.sources, LoadedConfig::from(&file).sources);
    }
}
