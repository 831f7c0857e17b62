//! Determines whether the gateway is ready, for `/readyz` and the status page.

use super::GatewayState;

/// Whether the gateway should receive requests, and the reason if it should not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Readiness {
    Ready,
    /// The keys of a token issuer have not been fetched yet.
    KeysMissing,
    Draining,
    /// The next process has taken over the sockets.
    HandedOver,
}

impl Readiness {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Readiness::Ready => "ready",
            Readiness::KeysMissing => "keys missing",
            Readiness::Draining => "draining",
            Readiness::HandedOver => "handed over",
        }
    }
}

impl GatewayState {
    /// Returns whether the gateway is ready: the keys of all token issuers have been fetched, and the process is not draining.
    /// The state of the store does not count, because a short outage of the store would take every gateway out of use.
    pub(crate) fn readiness(&self) -> Readiness {
        match (self.is_draining(), self.lifecycle.is_handed_over()) {
            (true, true) => Readiness::HandedOver,
            (true, false) => Readiness::Draining,
            (false, _) if self.has_keys() => Readiness::Ready,
            (false, _) => Readiness::KeysMissing,
        }
    }
}
