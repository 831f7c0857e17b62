//! Holds what a route says in place of the settings of its upstream, and of the whole file.

use base::time::Micros;

/// The settings of a route. What it does not say holds as it does elsewhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    pub timeouts: Timeouts,
    /// How often a request is tried again.
    pub retries: Option<u32>,
    /// The size of a request body.
    pub body_bytes: Option<u64>,
}

/// How long the upstream may take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timeouts {
    pub connect: Option<Micros>,
    /// Between bytes.
    pub read: Option<Micros>,
    /// Between bytes.
    pub write: Option<Micros>,
    pub total: Option<TotalTimeout>,
}

/// How long a whole request may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TotalTimeout {
    /// As long as the other timeouts allow.
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
