//! Remembers for each watched kind of file whether its last content is in force.

use std::sync::atomic::{AtomicBool, Ordering};

/// The kind of a file that the gateway reads again while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum File {
    /// The configuration file, and all files that it names.
    Config,
    ApiKeys,
    /// The certificates of all listeners.
    Certificates,
}

impl File {
    /// Returns the name of the kind of file, for metrics and log lines.
    pub(crate) fn label(self) -> &'static str {
        match self {
            File::Config => "config",
            File::ApiKeys => "api_keys",
            File::Certificates => "certificates",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileState {
    InForce,
    /// The file was invalid when it was last read, so its old content is in force.
    Invalid,
}

#[derive(Debug, Default)]
pub(crate) struct ReloadStatus {
    config_invalid: AtomicBool,
    api_keys_invalid: AtomicBool,
    certificates_invalid: AtomicBool,
}

impl ReloadStatus {
    pub(crate) fn set(&self, file: File, state: FileState) {
        match file {
            File::Config => &self.config_invalid,
            File::ApiKeys => &self.api_keys_invalid,
            File::Certificates => &self.certificates_invalid,
        }
        .store(state == FileState::Invalid, Ordering::Relaxed);
    }

    pub(crate) fn all_in_force(&self) -> bool {
        let all = [&self.config_invalid, &self.api_keys_invalid, &self.certificates_invalid];
        !all.iter().any(|invalid| invalid.load(Ordering::Relaxed))
    }
}
