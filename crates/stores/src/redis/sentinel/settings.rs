//! The settings of a master that sentinels name.

use crate::remote::login::Login;
use base::host_port::HostPort;

/// The port of a sentinel whose address has none.
pub const DEFAULT_PORT: u16 = 26379;

/// The sentinels, the name of the master, and their login. The login of the master is a separate one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The name of the master in the sentinels' configuration.
    pub master: String,
    /// The addresses of sentinels, at least one; the others are learnt from those that answer.
    pub nodes: Vec<HostPort>,
    pub login: Login,
}

impl Settings {
    /// Whether both name the same master. With an entirely different list of sentinels the name may belong to another one.
    pub(crate) fn is_same_master(&self, other: &Settings) -> bool {
        self.master == other.master && self.nodes.iter().any(|node| other.nodes.contains(node))
    }
}
