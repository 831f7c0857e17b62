//! Remembers which of the files that are read again were wrong when they were last read.

use std::sync::atomic::{AtomicBool, Ordering};

/// What is read again while the process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum File {
    /// With it the API keys, and all else that it names.
    Config,
    ApiKeys,
}

#[derive(Debug, Default)]
pub struct ReloadStatus {
    config: AtomicBool,
    api_keys: AtomicBool,
}

impl ReloadStatus {
    pub fn note(&self, file: File, wrong: bool) {
        match file {
            File::Config => &self.config,
            File::ApiKeys => &self.api_keys,
        }
        .store(wrong, Ordering::Relaxed);
    }

    pub fn any(&self) -> bool {
        self.config.load(Ordering::Relaxed) || self.api_keys.load(Ordering::Relaxed)
    }
}
