//! Remembers for each file that is read again whether it is the one in force.

use std::sync::atomic::{AtomicBool, Ordering};

/// A file that is read again while the process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum File {
    /// The configuration, with every file that it names.
    Config,
    ApiKeys,
    /// The certificates of all listeners.
    Certificates,
}

impl File {
    /// The name of the file in metrics and log lines.
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
    /// The file was invalid when it was last read.
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
