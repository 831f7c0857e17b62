//! Bounds the open connections: all of them, those of one client, and those that are being rejected.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use metrics::Gauge;

use super::connection_guard::ConnectionGuard;
pub use super::connection_guard::CountGuard;
use super::connections_per_client::{ClientGuard, PerClientConnections, Share};
use crate::auth::client_ip::Settings as ClientIp;
use crate::base::time::Clock;
use crate::config::Bounds;
use crate::gateway::runtime::fd_limit::FdBudget;
use crate::gateway::runtime::log_throttle::LogThrottle;

/// Of one process: all listeners and threads share it.
#[derive(Debug)]
pub struct ConnectionLimits {
    open: Arc<AtomicUsize>,
    /// How many streams of HTTP/2 have a connection to an upstream, beyond one for each connection of a client.
    streams: Arc<AtomicUsize>,
    clients: Arc<PerClientConnections>,
    /// How many connections are being answered 503. They are not among the open ones.
    rejecting: Arc<AtomicUsize>,
    /// How many handshakes of TLS are under way.
    handshakes: Arc<AtomicUsize>,
    fd_budget: FdBudget,
    rejections: LogThrottle,
    client_rejections: LogThrottle,
}

/// The limit that a rejected connection is beyond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionLimit {
    Connections,
    ConnectionsPerClient,
}

/// Counts the connections to upstreams that the streams of one connection of HTTP/2 have: the first with that connection, as the
/// one of a connection of HTTP/1.1 is, and the others among all streams.
#[derive(Debug)]
pub struct UpstreamConnections {
    first: Arc<AtomicUsize>,
    limits: Arc<ConnectionLimits>,
}

impl UpstreamConnections {
    pub fn new(limits: &Arc<ConnectionLimits>) -> UpstreamConnections {
        UpstreamConnections { first: Arc::default(), limits: Arc::clone(limits) }
    }

    /// Counts one more. `None`, which is logged, if there are as many as the open-file limit allows.
    pub fn count(&self, clock: &Clock) -> Option<CountGuard> {
        let limits = &self.limits;
        CountGuard::new(&self.first, 1).or_else(|| {
            let most = limits.fd_budget.streams(limits.open.load(Ordering::Acquire));
            let count = CountGuard::new(&limits.streams, most);
            if count.is_none() {
                limits.log_rejection(ConnectionLimit::Connections, clock);
            }
            count
        })
    }
}

impl ConnectionLimits {
    pub fn new(fd_budget: FdBudget) -> ConnectionLimits {
        ConnectionLimits {
            open: Arc::default(),
            streams: Arc::default(),
            clients: Arc::default(),
            rejecting: Arc::default(),
            handshakes: Arc::default(),
            fd_budget,
            rejections: LogThrottle::default(),
            client_rejections: LogThrottle::default(),
        }
    }

    /// The number of open connections, which draining waits for.
    pub fn open(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.open)
    }

    /// Counts a connection, also in its listener's `gauge`.
    ///
    /// # Errors
    /// If there were as many before as `bounds` or the open-file limit allow.
    pub fn accept(&self, gauge: &Gauge, bounds: &Bounds) -> Result<ConnectionGuard, ConnectionLimit> {
        let (guard, open_before) = ConnectionGuard::new(&self.open, gauge);
        let is_beyond = open_before >= self.fd_budget.clamp(bounds)
            || self.streams.load(Ordering::Acquire) > self.fd_budget.streams(open_before + 1);
        if is_beyond { Err(ConnectionLimit::Connections) } else { Ok(guard) }
    }

    /// Counts a connection as its client's.
    ///
    /// # Errors
    /// If its client had as many before as it may.
    pub fn count_client(
        &self,
        guard: &mut ConnectionGuard,
        peer: IpAddr,
        client_ip: &ClientIp,
        bounds: &Bounds,
    ) -> Result<(), ConnectionLimit> {
        let (client, share) = self.clients.count(peer, client_ip, bounds);
        guard.belongs_to(client);
        match share {
            Share::Within => Ok(()),
            Share::Exceeded => Err(ConnectionLimit::ConnectionsPerClient),
        }
    }

    /// Counts a stream of HTTP/2 that is not the only one of its connection as its client's, as a connection of HTTP/1.1 would be,
    /// which has one request. `None` if nothing bounds those of a client.
    ///
    /// # Errors
    /// If its client had as many before as it may.
    pub fn count_stream(
        &self,
        peer: Option<IpAddr>,
        client_ip: &ClientIp,
        bounds: &Bounds,
    ) -> Result<Option<ClientGuard>, ConnectionLimit> {
        let Some(peer) = peer.filter(|_| bounds.connections_per_client.is_some()) else { return Ok(None) };
        match self.clients.count(peer, client_ip, bounds) {
            (client, Share::Within) => Ok(Some(client)),
            (_, Share::Exceeded) => Err(ConnectionLimit::ConnectionsPerClient),
        }
    }

    /// Counts a handshake. `None` if `most` are under way already.
    pub fn begin_handshake(&self, most: usize) -> Option<CountGuard> {
        CountGuard::new(&self.handshakes, most)
    }

    /// Logs a rejection. `None` if as many connections as there are files for are being rejected already.
    pub fn reject(&self, limit: ConnectionLimit, clock: &Clock) -> Option<CountGuard> {
        self.log_rejection(limit, clock);
        CountGuard::new(&self.rejecting, self.fd_budget.rejections())
    }

    /// Logs that a connection, or a stream of HTTP/2, is rejected.
    pub fn log_rejection(&self, limit: ConnectionLimit, clock: &Clock) {
        let (throttle, hint) = match limit {
            ConnectionLimit::Connections => {
                (&self.rejections, "limits.connections, or what the open-file limit leaves of it, is reached")
            }
            ConnectionLimit::ConnectionsPerClient => {
                (&self.client_rejections, "limits.connections_per_client is reached by some client")
            }
        };
        if let Some(connections) = throttle.admit(clock.now()) {
            log::warn!(connections, hint; "connections turned away");
        }
    }
}
