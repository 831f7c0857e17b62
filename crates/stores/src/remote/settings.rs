//! The settings of a remote store that do not depend on the kind of server.

use crate::breaker;
use base::time::Micros;

#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The longest wait for a decision.
    pub timeout: Micros,
    pub breaker: breaker::Settings,
    /// The smallest number of gateways among which the limits are shared.
    pub gateways: u64,
}
