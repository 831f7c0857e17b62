//! Closes the connections of peers that may not ask for decisions.

use std::net::IpAddr;

use metrics::Counter;
use pingora::protocols::Stream;

use super::server_state::ServerState;
use crate::gateway::runtime::log_throttle::LogThrottle;
use base::time::Micros;

/// The interval between two log lines about closed connections.
const REPORT_INTERVAL: Micros = Micros(60_000_000);

/// The stage of one listener that closes connections of peers that may not ask for decisions.
#[derive(Debug)]
pub(crate) struct DecisionClients {
    /// The index of the listener in the configuration.
    listener: usize,
    closed: Counter,
    throttle: LogThrottle,
}

impl DecisionClients {
    /// Makes the stage for the listener with this index. `closed` counts the connections that the stage closes.
    pub(crate) fn new(listener: usize, closed: Counter) -> DecisionClients {
        DecisionClients { listener, closed, throttle: LogThrottle::default() }
    }

    /// Whether the peer of this connection may ask for decisions. If not, the connection is counted and logged.
    pub(crate) fn admit(&self, stream: &Stream, state: &ServerState) -> bool {
        let peer = peer(stream);
        let snapshot = state.snapshot.load();
        let settings = snapshot.config.decide(self.listener);
        if peer.zip(settings).is_some_and(|(peer, settings)| settings.admits(peer)) {
            return true;
        }
        self.closed.increment(1);
        if let Some(connections) = self.throttle.admit_every(REPORT_INTERVAL, state.clock.now()) {
            let peer = peer.map(|peer| peer.to_string()).unwrap_or_default();
            log::warn!(connections, peer; "connection closed: its peer is not in clients of the listener");
        }
        false
    }
}

fn peer(stream: &Stream) -> Option<IpAddr> {
    Some(stream.get_socket_digest()?.peer_addr()?.as_inet()?.ip())
}
