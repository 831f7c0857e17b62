//! Defines the settings of a route that replace those of its upstream or of the file.

use std::sync::Arc;

use super::error_format::ErrorFormat;
use super::llm_settings::LlmSettings;
use super::retries::RouteRetries;
use base::time::Micros;

/// The settings of a route that replace those of its upstream or of the file. `None` replaces nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    pub timeouts: Timeouts,
    pub retries: RouteRetries,
    /// The largest request body, in bytes.
    pub body_bytes: Option<u64>,
    /// The longest request body that is read for the rules, in bytes.
    pub inspect_bytes: Option<u64>,
    /// The format of the gateway's own error responses. `None` keeps the format of the file.
    pub error_format: Option<ErrorFormat>,
    /// The settings for requests to language models, completed from the file. `None` keeps all settings of the file.
    pub llm: Option<Arc<LlmSettings>>,
}

/// The timeouts for requests to an upstream. `None` keeps the timeout of the upstream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timeouts {
    pub connect: Option<Micros>,
    /// The longest wait for the first byte of a response, after the request was sent.
    pub first_byte: Option<Micros>,
    /// The longest time between two bytes received from the upstream.
    pub read: Option<Micros>,
    /// The longest time between two bytes sent to the upstream.
    pub write: Option<Micros>,
    pub total: Option<TotalTimeout>,
}

/// The longest time that a whole request may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TotalTimeout {
    /// The whole request has no timeout of its own. Only the other timeouts apply.
    None,
    After(Micros),
}

impl TotalTimeout {
    pub fn micros(self) -> Option<Micros> {
        match self {
            TotalTimeout::None => None,
            TotalTimeout::After(total) => Some(total),
        }
    }
}
