//! The settings of a remote store that do not depend on the kind of server.

use crate::breaker;
use base::time::Micros;

#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The longest time that a request waits for a decision.
    pub timeout: Micros,
    pub breaker: breaker::Settings,
    /// During an outage, the limits are divided among at least this number of gateways.
    pub gateways: u64,
}
