//! The settings of a master that sentinels name.

use crate::remote::login::Login;
use base::host_port::HostPort;

/// The port of a sentinel whose address has no port.
pub const DEFAULT_PORT: u16 = 26379;

/// A master, and the sentinels that name its address, with their login. The master has a separate login.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The name of the master in the sentinels' configuration.
    pub master: String,
    /// The addresses of sentinels, at least one. The other sentinels are learnt from the sentinels that answer.
    pub nodes: Vec<HostPort>,
    pub login: Login,
}

impl Settings {
    /// Whether both settings name the same master: they have the same name and a sentinel in common.
    pub(crate) fn is_same_master(&self, other: &Settings) -> bool {
        self.master == other.master && self.nodes.iter().any(|node| other.nodes.contains(node))
    }
}
