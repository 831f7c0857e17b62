//! The settings of a remote store that do not depend on the kind of server.

use crate::breaker;
use base::time::Micros;

#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The longest time that a request waits for a decision.
    pub timeout: Micros,
    pub breaker: breaker::Settings,
    /// The number of gateways among which the limits are divided during an outage, at least.
    pub gateways: u64,
}
