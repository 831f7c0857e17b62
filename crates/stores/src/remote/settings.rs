//! The settings of a remote store that do not depend on the kind of server.

use crate::breaker;
use base::time::Micros;

#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The longest that a decision waits.
    pub timeout: Micros,
    pub breaker: breaker::Settings,
    /// The least number of gateways that share the limits.
    pub gateways: u64,
}
