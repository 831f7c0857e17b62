//! Bounds the open connections: all of them, those of one client, and those that are being rejected.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use metrics::Gauge;

use super::connection_guard::ConnectionGuard;
pub(crate) use super::connection_guard::CountGuard;
use super::connections_per_client::{ClientGuard, PerClientConnections, Share};
use super::upstream_files::UpstreamFiles;
use crate::gateway::runtime::fd_limit::{FdBudget, OpenFiles};
use crate::gateway::runtime::log_throttle::LogThrottle;
use base::time::Clock;
use config::Bounds;
use identity::client_ip::Settings as ClientIp;
use request::client_address::ClientAddress;

/// The limits on the connections of one process, shared by all listeners and threads.
#[derive(Debug)]
pub struct ConnectionLimits {
    /// The number of open connections of clients whose requests are proxied.
    proxying: Arc<AtomicUsize>,
    /// The number of open connections of proxies that ask for decisions.
    deciding: Arc<AtomicUsize>,
    /// The number of HTTP/2 streams that use a connection to an upstream. The first such stream of each client
    /// connection is not counted.
    streams: Arc<AtomicUsize>,
    clients: Arc<PerClientConnections>,
    /// The number of connections that are being answered with 503. They do not count as open.
    rejecting: Arc<AtomicUsize>,
    /// The number of connections that were accepted and are not yet counted as open.
    uncounted: AtomicUsize,
    /// The number of TLS handshakes under way.
    handshakes: Arc<AtomicUsize>,
    /// The open connections to upstreams. Near the open-file limit, those that no request uses are closed.
    pub upstream_files: UpstreamFiles,
    fd_budget: FdBudget,
    rejections: LogThrottle,
    client_rejections: LogThrottle,
}

/// The limit that a rejected connection or HTTP/2 stream exceeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionLimit {
    Connections,
    ConnectionsPerClient,
}

/// The limit that a TLS handshake exceeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandshakeLimit {
    Handshakes,
    HandshakesOfClient,
}

/// Counts a TLS handshake, both for the process and for its client, until the guard is dropped.
#[derive(Debug)]
pub struct HandshakeGuard {
    _of_client: Option<CountGuard>,
    _of_all: CountGuard,
}

/// The purpose of a connection. Connections are counted separately for each purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To proxy a client's requests.
    Proxying,
    /// To give decisions to another proxy.
    Deciding,
}

/// Counts the connections to upstreams that the streams of one HTTP/2 connection use. The first is counted with the
/// client's connection.
#[derive(Debug)]
pub(crate) struct UpstreamConnections {
    first: Arc<AtomicUsize>,
    limits: Arc<ConnectionLimits>,
}

impl UpstreamConnections {
    pub(crate) fn new(limits: &Arc<ConnectionLimits>) -> UpstreamConnections {
        UpstreamConnections { first: Arc::default(), limits: Arc::clone(limits) }
    }

    /// Counts one more connection to an upstream. If the open-file limit allows no more connections, logs this and returns
    /// `None`.
    pub(crate) fn count(&self, clock: &Clock) -> Option<CountGuard> {
        let limits = &self.limits;
        CountGuard::new(&self.first, 1).or_else(|| {
            let open = limits.open_files();
            let most = limits.fd_budget.streams(open.proxying, open.deciding);
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
            proxying: Arc::default(),
            deciding: Arc::default(),
            streams: Arc::default(),
            clients: Arc::default(),
            rejecting: Arc::default(),
            uncounted: AtomicUsize::new(0),
            handshakes: Arc::default(),
            upstream_files: UpstreamFiles::default(),
            fd_budget,
            rejections: LogThrottle::default(),
            client_rejections: LogThrottle::default(),
        }
    }

    /// Returns the number of open connections. A drain does not end before this number is zero.
    pub fn open(&self) -> usize {
        self.proxying.load(Ordering::Acquire).saturating_add(self.deciding.load(Ordering::Acquire))
    }

    fn open_files(&self) -> OpenFiles {
        OpenFiles {
            proxying: self.proxying.load(Ordering::Acquire),
            streams: self.streams.load(Ordering::Acquire),
            deciding: self.deciding.load(Ordering::Acquire),
        }
    }

    /// Counts a connection that has just been accepted, until [`ConnectionLimits::begin`] is called. Returns `false` if
    /// there are not enough file descriptors. The connection must then be closed.
    pub fn admit(&self, purpose: Purpose, clock: &Clock) -> bool {
        let uncounted = self.uncounted.fetch_add(1, Ordering::AcqRel) + 1;
        self.make_room();
        let rejecting = self.rejecting.load(Ordering::Acquire);
        let open = self.open_files();
        let is_admitted = match purpose {
            Purpose::Proxying => self.fd_budget.has_file_for_uncounted(open, rejecting, uncounted),
            // A proxy that asks for decisions needs only one file descriptor.
            Purpose::Deciding => {
                self.fd_budget.excess(open, self.upstream_files.open(), rejecting.saturating_add(uncounted)) == 0
            }
        };
        if !is_admitted {
            self.begin();
            self.log_rejection(ConnectionLimit::Connections, clock);
        }
        is_admitted
    }

    /// Counts a connection to an upstream that is about to be opened. Near the open-file limit, closes unused
    /// connections.
    pub fn begin_upstream(&self) -> CountGuard {
        let guard = self.upstream_files.count();
        self.make_room();
        guard
    }

    /// Closes connections to upstreams that no request uses, until no more files are open than allowed.
    fn make_room(&self) {
        let others = self.rejecting.load(Ordering::Acquire) + self.uncounted.load(Ordering::Acquire);
        let excess = self.fd_budget.excess(self.open_files(), self.upstream_files.open(), others);
        if excess > 0 {
            self.upstream_files.close_idle(excess);
        }
    }

    /// Ends the counting that [`ConnectionLimits::admit`] has begun. The connection is counted as open next.
    pub fn begin(&self) {
        self.uncounted.fetch_sub(1, Ordering::AcqRel);
    }

    /// Counts a connection as open, also in its listener's `gauge`.
    ///
    /// # Errors
    /// If `bounds` or the open-file limit allow no more connections.
    pub fn accept(&self, purpose: Purpose, gauge: &Gauge, bounds: &Bounds) -> Result<ConnectionGuard, ConnectionLimit> {
        let count = match purpose {
            Purpose::Proxying => &self.proxying,
            Purpose::Deciding => &self.deciding,
        };
        let (guard, before) = ConnectionGuard::new(count, gauge);
        let is_within = match purpose {
            // `before` is the number of connections that were counted before this connection.
            Purpose::Proxying => self
                .fd_budget
                .admits_client(bounds.connections, OpenFiles { proxying: before + 1, ..self.open_files() }),
            Purpose::Deciding => {
                self.fd_budget.admits_proxy(bounds.connections, OpenFiles { deciding: before + 1, ..self.open_files() })
            }
        };
        if is_within { Ok(guard) } else { Err(ConnectionLimit::Connections) }
    }

    /// Counts a connection for its client. Connections of a trusted proxy are not limited.
    ///
    /// # Errors
    /// If the client already has as many connections as `bounds` allow.
    pub fn count_client(
        &self,
        guard: &mut ConnectionGuard,
        peer: IpAddr,
        client_ip: &ClientIp,
        bounds: &Bounds,
    ) -> Result<(), ConnectionLimit> {
        if client_ip.trusts(peer) {
            return Ok(());
        }
        let (client, share) = self.clients.count(ClientAddress::new(peer, client_ip.ipv6_prefix), bounds);
        guard.belongs_to(client);
        match share {
            Share::Within => Ok(()),
            Share::Exceeded => Err(ConnectionLimit::ConnectionsPerClient),
        }
    }

    /// Counts a TLS handshake with a client.
    ///
    /// # Errors
    /// If `bounds` allow no more handshakes at the same time, in total or with this client.
    pub fn begin_handshake(
        &self,
        client: Option<&ClientGuard>,
        bounds: &Bounds,
    ) -> Result<HandshakeGuard, HandshakeLimit> {
        let of_client = client.map(|client| client.begin_handshake(bounds.handshakes_per_client()));
        if matches!(of_client, Some(None)) {
            return Err(HandshakeLimit::HandshakesOfClient);
        }
        let of_all = CountGuard::new(&self.handshakes, bounds.handshakes_at_once).ok_or(HandshakeLimit::Handshakes)?;
        Ok(HandshakeGuard { _of_client: of_client.flatten(), _of_all: of_all })
    }

    /// Logs that a connection is rejected, and returns a guard that counts the connection while it is answered. `None`
    /// if no file descriptor is left for the answer.
    pub fn reject(&self, limit: ConnectionLimit, clock: &Clock) -> Option<CountGuard> {
        self.log_rejection(limit, clock);
        CountGuard::new(&self.rejecting, self.fd_budget.rejections())
    }

    /// Logs that a connection or an HTTP/2 stream is rejected because of this limit.
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
