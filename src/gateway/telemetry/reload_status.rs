//! Remembers for each file that is read again whether it holds what is in force.

use std::sync::atomic::{AtomicBool, Ordering};

/// A file that is read again while the process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum File {
    /// The configuration, with every file that it names.
    Config,
    ApiKeys,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileState {
    InForce,
    /// The file was invalid when it was last read.
    Invalid,
}

#[derive(Debug, Default)]
pub struct ReloadStatus {
    config_invalid: AtomicBool,
    api_keys_invalid: AtomicBool,
}

impl ReloadStatus {
    pub fn set(&self, file: File, state: FileState) {
        match file {
            File::Config => &self.config_invalid,
            File::ApiKeys => &self.api_keys_invalid,
        }
        .store(state == FileState::Invalid, Ordering::Relaxed);
    }

    pub fn all_in_force(&self) -> bool {
        !self.config_invalid.load(Ordering::Relaxed) && !self.api_keys_invalid.load(Ordering::Relaxed)
    }
}
