//! Which store to open, and with which settings.

use super::{memory, redis};

/// Which store to open, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settings {
    Memory(memory::Settings),
    Redis(redis::Settings),
}

impl Settings {
    /// As the file calls it.
    pub fn name(&self) -> &'static str {
        match self {
            Settings::Memory(_) => "memory",
            Settings::Redis(_) => "redis",
        }
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings::Memory(memory::Settings::default())
    }
}
