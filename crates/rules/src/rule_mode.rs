//! Defines the mode of a rule. A rule refuses requests, or is a dry run (shadow) that only counts them.

use serde::{Deserialize, Serialize};

/// Whether a policy or rule refuses requests, or is only a dry run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    Enforce,
    /// A dry run: rules charge buckets of their own and are counted, but clients never notice them.
    Shadow,
}

impl Mode {
    pub fn name(self) -> &'static str {
        match self {
            Mode::Enforce => "enforce",
            Mode::Shadow => "shadow",
        }
    }
}
