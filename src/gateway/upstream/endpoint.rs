//! Holds one address of an upstream: how to connect to it, and its recent results.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use pingora::upstreams::peer::{HttpPeer, Peer, PeerOptions};

use super::Window;
use super::endpoint_counts::{Availability, EndpointCounts};
use super::failure::EndpointFailure;
use super::health_state::HealthState;
use super::stable_hash::stable_hash;
use super::tls::PeerTls;
use base::endpoint_address::EndpointAddress;
use base::time::{Micros, Timestamp};
use config::{Protocol, Scheme};

/// The receive buffer of a narrow connection ([`Window::Narrow`]), in bytes.
const NARROW: usize = 8 << 10;

/// The maximum number of concurrent requests on one HTTP/2 connection. A server may allow fewer.
const MAX_STREAMS: usize = 100;

/// The maximum number of unread bytes of one response over HTTP/2, on an ordinary connection. With 64 KiB, a single
/// response of nginx reaches only 2 MB/s.
const STREAM_WINDOW: u32 = 128 << 10;
/// The maximum number of unread bytes of one response over HTTP/2, on a narrow connection.
const NARROW_STREAM_WINDOW: u32 = 16 << 10;

/// The maximum number of unread bytes of all responses of an HTTP/2 connection. With this maximum, an unread response
/// does not delay other responses.
const CONNECTION_WINDOW: u32 = (1 << 31) - 1;

const PING_INTERVAL: Duration = Duration::from_secs(10);

/// One address of an upstream to which requests may be sent, with its state.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub address: EndpointAddress,
    /// The host name or address in the configuration. `localhost` for a Unix domain socket.
    pub host: String,
    pub scheme: Scheme,
    /// The hash of the address. Used to select the endpoint by a value of the request.
    pub(super) hash: u64,
    /// The endpoint's share of the requests is proportional to this weight.
    pub weight: u64,
    peer: HttpPeer,
    /// Pingora's description of the endpoint for connections with [`Window::Narrow`].
    narrow: HttpPeer,
    /// The keys under which a pool keeps the ordinary connections, and those with [`Window::Narrow`].
    pool_keys: [u64; 2],
    /// The recent results of the endpoint. Kept when the configuration or the addresses change.
    pub condition: Arc<EndpointCondition>,
}

/// An address of an upstream, with its weight.
#[derive(Clone, Debug)]
pub(crate) struct WeightedAddress {
    pub address: EndpointAddress,
    pub scheme: Scheme,
    pub host: String,
    pub weight: u64,
}

/// The options for connections to an upstream. All endpoints of the upstream share them.
#[derive(Clone, Debug)]
pub(crate) struct ConnectOptions {
    pub timeouts: config::UpstreamTimeouts,
    pub protocol: Protocol,
    /// The TLS settings. `None` if no endpoint of the upstream uses TLS.
    pub tls: Option<PeerTls>,
}

/// The recent results of an endpoint: its requests, failures, ejection and health checks.
#[derive(Debug, Default)]
pub(crate) struct EndpointCondition {
    /// The number of requests under way.
    in_flight: AtomicU32,
    /// The number of failed requests since the last successful request.
    pub(super) failures: AtomicU32,
    /// The time at which the ejection ends, in microseconds. 0 if the endpoint is not ejected.
    pub(super) ejected_until: AtomicU64,
    pub(super) health: HealthState,
    pub(super) counts: EndpointCounts,
}

impl Endpoint {
    /// Makes an endpoint for an address, with the options for connections to it. `condition` holds the earlier results
    /// of its health checks and requests.
    ///
    /// # Errors
    /// If the path of a socket is invalid. A loaded configuration has no such path.
    pub(crate) fn new(
        WeightedAddress { address, scheme, host, weight }: WeightedAddress,
        connecting: &ConnectOptions,
        condition: Arc<EndpointCondition>,
    ) -> pingora::Result<Endpoint> {
        let mut peer = match &address {
            EndpointAddress::Inet(address) => HttpPeer::new(*address, scheme == Scheme::Https, String::new()),
            EndpointAddress::Unix(path) => HttpPeer::new_uds(&path.to_string_lossy(), false, String::new())?,
        };
        peer.options = options(connecting);
        if let (Scheme::Https, Some(tls)) = (scheme, &connecting.tls) {
            tls.apply(&mut peer, &host);
        }
        let mut narrow = peer.clone();
        match connecting.protocol {
            Protocol::Http1 => narrow.options.tcp_recv_buf = Some(NARROW),
            // HTTP/2 reads arrived bytes at once, so unread bytes are limited by the flow-control window.
            Protocol::H2 | Protocol::H2c => narrow.options.h2_stream_window_size = Some(NARROW_STREAM_WINDOW),
        }
        // Connections with the small buffer have their own group in a pool, so that they are not reused for ordinary requests.
        narrow.group_key |= 1;
        let pool_keys = [peer.reuse_hash(), narrow.reuse_hash()];
        let hash = stable_hash(address.to_string().as_bytes());
        Ok(Endpoint { hash, address, host, scheme, weight, peer, narrow, pool_keys, condition })
    }

    /// Returns the description with which Pingora connects to the endpoint.
    pub(crate) fn peer(&self, window: Window) -> Box<HttpPeer> {
        Box::new(match window {
            Window::Whole => self.peer.clone(),
            Window::Narrow => self.narrow.clone(),
        })
    }

    /// Returns the key of connections to the endpoint in a connection pool. A request may use any pooled connection with an
    /// equal key.
    pub(crate) fn pool_key(&self, window: Window) -> u64 {
        let [whole, narrow] = self.pool_keys;
        match window {
            Window::Whole => whole,
            Window::Narrow => narrow,
        }
    }

    /// Returns the options for connections to the endpoint, such as their timeouts.
    pub(crate) fn options(&self) -> &PeerOptions {
        &self.peer.options
    }

    pub(crate) fn in_flight(&self) -> u32 {
        self.condition.in_flight.load(Ordering::Relaxed)
    }

    /// Returns the host for the field `Host`. The port is appended unless it is the default port of the scheme.
    pub(crate) fn authority(&self) -> String {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        match self.address.inet().map(|address| address.port()) {
            Some(port) if port != self.scheme.default_port() => format!("{host}:{port}"),
            _ => host,
        }
    }

    /// Returns whether the endpoint counts as up: the health checks have not found it down.
    pub(crate) fn is_up(&self) -> bool {
        !self.condition.health.is_down()
    }

    /// Returns whether the endpoint is ejected at present. `now` is called only if the endpoint has been ejected.
    pub(crate) fn is_ejected(&self, now: impl Fn() -> Timestamp) -> bool {
        match self.condition.ejected_until.load(Ordering::Relaxed) {
            0 => false,
            until => until > now().0,
        }
    }

    /// Returns whether the endpoint is neither down nor ejected.
    pub(crate) fn is_available(&self, now: impl Fn() -> Timestamp) -> bool {
        self.is_up() && !self.is_ejected(now)
    }

    pub(crate) fn availability(&self, now: impl Fn() -> Timestamp) -> Availability {
        match (self.is_up(), self.is_ejected(now)) {
            (false, _) => Availability::Down,
            (true, true) => Availability::Ejected,
            (true, false) => Availability::Available,
        }
    }
}

fn options(ConnectOptions { timeouts, protocol, .. }: &ConnectOptions) -> PeerOptions {
    let mut options = PeerOptions::new();
    options.connection_timeout = Some(timeouts.connect.into());
    options.total_connection_timeout = Some(timeouts.connect.into());
    options.read_timeout = Some(timeouts.read.into());
    options.write_timeout = Some(timeouts.write.into());
    options.idle_timeout = Some(timeouts.idle.into());
    if *protocol != Protocol::Http1 {
        options.set_http_version(2, 2);
        options.max_h2_streams = MAX_STREAMS;
        options.h2_stream_window_size = Some(STREAM_WINDOW);
        options.h2_connection_window_size = Some(CONNECTION_WINDOW);
        // Without pings, a connection to a server that has stopped would get further requests.
        options.h2_ping_interval = Some(PING_INTERVAL);
    }
    options
}

/// One attempt to send a request to an endpoint. The request counts as under way at the endpoint until this value is dropped.
#[derive(Debug)]
pub(crate) struct Attempt {
    pub endpoint: Arc<Endpoint>,
}

impl Attempt {
    /// Begins an attempt. Returns `None` if `most` requests are already under way at the endpoint.
    pub(crate) fn within(most: u32, endpoint: Arc<Endpoint>) -> Option<Attempt> {
        let more = |requests: u32| (requests < most).then(|| requests.saturating_add(1));
        endpoint.condition.in_flight.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        endpoint.condition.counts.count_request();
        Some(Attempt { endpoint })
    }

    pub(crate) fn new(endpoint: Arc<Endpoint>) -> Attempt {
        endpoint.condition.in_flight.fetch_add(1, Ordering::Relaxed);
        endpoint.condition.counts.count_request();
        Attempt { endpoint }
    }

    pub(crate) fn count_failure(&self, failure: EndpointFailure) {
        self.endpoint.condition.counts.count_failure(failure);
    }

    /// Adds the duration of the attempt to the sum of the endpoint. The duration is the time from connecting to the end of the
    /// response.
    pub(crate) fn add_duration(&self, duration: Micros) {
        self.endpoint.condition.counts.add_duration(duration);
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.endpoint.condition.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}
