//! Loads gateway.yaml with the files that it names. Remembers a hash of each file, to notice a change.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::config::Config;
use crate::keys::log::LogFormat;
use crate::language::environment::Environment;
use crate::language::problem::{Problem, Problems, Purpose};
use crate::language::tree;
use crate::log_format::log_format;
use base::named_file::read_regular;
use identity::api_key_file;

/// The path that stands for standard input in commands.
const STANDARD_INPUT: &str = "-";

/// The result of loading a gateway.yaml: the configuration or its problems, and the files that were read.
#[derive(Debug)]
pub struct LoadedConfig {
    pub config: Result<Config, Problems>,
    /// The format of the log, also if the file is invalid.
    pub log_format: LogFormat,
    /// The gateway.yaml and the files that it names, for watching them. Valid API key files and valid certificates of
    /// listeners are left out, because they need no reload.
    pub sources: Vec<Source>,
}

/// A file that was read, with a hash of its content at that time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The path under which the file can be opened.
    pub path: PathBuf,
    /// The hash of the file's content. `None` if the file could not be read.
    hash: Option<[u8; 32]>,
}

impl Config {
    /// Reads and checks a gateway.yaml that the gateway is going to run.
    ///
    /// # Errors
    /// All problems of the file, and of the files that it names.
    pub fn load(path: &Path) -> Result<Config, Problems> {
        LoadedConfig::from(path).config
    }

    /// Reads and checks a gateway.yaml for this purpose. If a command only examines the file, each unknown secret or address
    /// is a warning, and not a problem.
    ///
    /// # Errors
    /// All problems of the file, and of the files that it names.
    pub fn examine(path: &Path, purpose: Purpose) -> Result<Config, Problems> {
        LoadedConfig::read(path, purpose, read_main(path, purpose)).config
    }
}

impl Source {
    fn new(path: &Path, read: &io::Result<Vec<u8>>) -> Source {
        let hash = read.as_ref().ok().map(|bytes| Sha256::digest(bytes).into());
        Source { path: path.to_owned(), hash }
    }

    /// Whether the file still has the content that was read.
    pub fn is_as_read(&self) -> bool {
        Source::new(&self.path, &read_file(&self.path)) == *self
    }
}

impl LoadedConfig {
    /// Reads and checks a gateway.yaml. Returns also the files that were read.
    pub fn from(path: &Path) -> LoadedConfig {
        LoadedConfig::read(path, Purpose::Run, read_main(path, Purpose::Run))
    }

    /// Reads and checks a gateway.yaml again, such as for a reload. The path must be a regular file, and not a pipe.
    pub fn again(path: &Path) -> LoadedConfig {
        LoadedConfig::read(path, Purpose::Run, read_file(path))
    }

    fn read(path: &Path, purpose: Purpose, bytes: io::Result<Vec<u8>>) -> LoadedConfig {
        let sources = RefCell::new(vec![Source::new(path, &bytes)]);
        let file = path.display().to_string();
        let (config, log_format) = match bytes {
            Ok(bytes) => {
                // Relative paths in a file are relative to the folder of the file.
                let folder = path.parent().unwrap_or(Path::new(""));
                // A command may parse gateway.yaml twice. It reads each named file only once, because the file may
                // change in between.
                let known: RefCell<HashMap<PathBuf, Vec<u8>>> = RefCell::default();
                let read = |path: &Path| {
                    let path = folder.join(path);
                    if let Some(known) = known.borrow().get(&path) {
                        return Ok(known.clone());
                    }
                    let read = read_file(&path);
                    sources.borrow_mut().push(Source::new(&path, &read));
                    if let (Ok(content), true) = (&read, purpose != Purpose::Run) {
                        known.borrow_mut().insert(path, content.clone());
                    }
                    read
                };
                let variable = |name: &str| std::env::var(name).ok();
                let environment = Environment { variable: &variable, folder, read: &read };
                let config = Config::parse_for(purpose, &file, &bytes, environment);
                let of_invalid = || log_format(&bytes, environment);
                let log_format = config.as_ref().map_or_else(|_| of_invalid(), |config| config.log.format);
                (config, log_format)
            }
            Err(error) => (Err(unreadable(file, &error)), LogFormat::Text),
        };
        let mut sources = sources.into_inner();
        if let Ok(Config { api_keys: Some(api_keys), .. }) = &config {
            sources.retain(|source| source.path != api_keys.file);
        }
        if let Ok(config) = &config {
            let certificates = config.listeners.iter().filter_map(|listener| listener.tls.as_ref());
            let followed: Vec<_> = certificates.flat_map(|tls| tls.files().map(|(_, _, file)| file.path())).collect();
            sources.retain(|source| !followed.contains(&&*source.path));
        }
        if let Some(buckets) = config.as_ref().ok().and_then(|config| config.store.bucket_file()) {
            // The folder of the bucket file is not watched, because every file in the folder changes it.
            sources.retain(|source| Some(&*source.path) != buckets.path.parent());
        }
        LoadedConfig { config, log_format, sources }
    }
}

/// Reads gateway.yaml itself. A command that checks or examines the file may read it from standard input.
fn read_main(path: &Path, purpose: Purpose) -> io::Result<Vec<u8>> {
    match purpose {
        Purpose::Run => std::fs::read(path),
        _ if path.as_os_str() == STANDARD_INPUT => read_standard_input(),
        _ => std::fs::read(path),
    }
}

fn read_standard_input() -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // One byte more than a file may have is enough to reject the file.
    io::stdin().lock().take(tree::CONFIG.bytes as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn unreadable(file: String, error: &io::Error) -> Problems {
    let what = format!("must be a readable file: {error}");
    let problem = Problem { file: None, position: None, path: String::new(), what, hint: None };
    Problems { file, problems: vec![problem], warnings: Vec::new() }
}

/// Reads a file that gateway.yaml names. Of a file that is too large, reads one byte more than allowed.
///
/// # Errors
/// If the file cannot be opened or read, or is not a regular file.
pub fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    read_regular(path, api_key_file::MAX_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(loaded: &LoadedConfig) -> Vec<&str> {
        loaded.sources.iter().filter_map(|source| source.path.file_name()?.to_str()).collect()
    }

    #[test]
    fn the_files_that_a_file_names_are_remembered_even_if_one_is_missing() {
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
        // The file of API keys is watched separately, so it is not a source.
        assert_eq!(names(&good), ["gateway.yaml", "secret"]);
        assert_ne!(missing.sources[1], good.sources[1]);
        assert_eq!(good.sources, LoadedConfig::from(&file).sources);
    }

    #[test]
    fn the_folder_of_the_buckets_must_exist_and_is_not_watched() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("gateway.yaml");
        std::fs::write(&file, "upstream: http://a\nstore: {memory: {file: data/buckets.tgb}}\n").unwrap();
        let missing = LoadedConfig::from(&file).config.unwrap_err().to_string();
        let expected = "gateway.yaml:2:24: store.memory.file: must be a file in a folder that exists (No such file or \
                        directory (os error 2)), is `data/buckets.tgb`\n1 problem";
        assert!(missing.ends_with(expected), "{missing}");
        std::fs::write(folder.path().join("data"), "").unwrap();
        let no_folder = LoadedConfig::from(&file).config.unwrap_err().to_string();
        assert!(no_folder.contains("must be a file in a folder that exists (not a directory), is"), "{no_folder}");
        std::fs::remove_file(folder.path().join("data")).unwrap();
        std::fs::create_dir(folder.path().join("data")).unwrap();
        let good = LoadedConfig::from(&file);
        assert!(good.config.is_ok());
        assert_eq!(names(&good), ["gateway.yaml"]);
    }
}
