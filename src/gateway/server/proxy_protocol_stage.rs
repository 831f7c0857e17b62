//! Reads the PROXY protocol header at the beginning of a connection, and gives the connection the client's address.
//!
//! Only the header is read. If the configuration names the peers that may send a header, connections of other peers are
//! closed before a byte is read. A connection without a valid header is closed without a response.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use ipnet::IpNet;
use pingora::protocols::{SocketDigest, Stream};
use pingora::server::ShutdownWatch;
use tokio::io::AsyncReadExt;

use crate::gateway::runtime::log_throttle::LogThrottle;
use crate::gateway::telemetry::metrics::{CounterOnUse, HttpMetrics};
use base::interval::fixed_interval;
use base::time;
use base::time::{Clock, Micros};
use config::HeaderSenders;
use identity::proxy_protocol::{HeaderError, Progress, Source, parse};

/// The longest time until the header is complete, counted from the accept of the connection.
const DEADLINE: Duration = Duration::from_secs(5);

/// The longest time until the header is complete, while the process shuts down.
const LAST_HEADER: Duration = Duration::from_millis(100);

/// The interval between two log lines about peers that are not allowed to connect.
const REPORT_INTERVAL: Micros = Micros(60_000_000);

/// The stage that reads the PROXY protocol headers of one listener, for all threads.
#[derive(Debug)]
pub(crate) struct ProxyProtocol {
    /// The peers that may connect. `None` if all peers may connect.
    senders: Option<Senders>,
    malformed: CounterOnUse,
    timeout: CounterOnUse,
    closed: CounterOnUse,
    throttle: LogThrottle,
    clock: Clock,
}

/// The peers that may connect, and the count of connections from other peers.
#[derive(Debug)]
struct Senders {
    networks: Vec<IpNet>,
    /// The number of closed connections of other peers.
    closed: CounterOnUse,
    throttle: LogThrottle,
}

/// The reason why no header was read.
#[derive(Debug)]
enum Failure {
    Malformed(HeaderError),
    Timeout,
    /// The connection closed within the header.
    Closed,
    /// No error: the connection closed before its first byte, or the process shuts down.
    Empty,
}

impl ProxyProtocol {
    /// Makes the stage for a listener. `listener` is the label in metrics. `None` if connections of the listener begin without
    /// a header.
    pub(crate) fn new(
        from: &HeaderSenders,
        metrics: &HttpMetrics,
        clock: Clock,
        listener: &str,
    ) -> Option<ProxyProtocol> {
        let senders = match from {
            HeaderSenders::Nobody => return None,
            HeaderSenders::Anyone => None,
            HeaderSenders::Networks(networks) => Some(Senders {
                networks: networks.clone(),
                closed: metrics.proxy_protocol_errors(listener, "peer"),
                throttle: LogThrottle::default(),
            }),
        };
        let [malformed, timeout, closed] =
            ["malformed", "timeout", "closed"].map(|kind| metrics.proxy_protocol_errors(listener, kind));
        Some(ProxyProtocol { senders, malformed, timeout, closed, throttle: LogThrottle::default(), clock })
    }

    /// Reads the header, and returns the stream with the client's address as its peer address. `None` if the connection must be
    /// closed.
    pub(crate) async fn read(&self, mut stream: Stream, shutdown: &ShutdownWatch) -> Option<Stream> {
        if let Some(senders) = &self.senders
            && !senders.admit(&stream, &self.clock)
        {
            return None;
        }
        let mut shutdown = shutdown.clone();
        let header = async {
            let mut header = pin!(read_header(&mut stream));
            let leave = async { drop(shutdown.wait_for(|leave| *leave).await) };
            tokio::select! {
                biased;
                header = &mut header => header,
                () = leave => time::timeout(LAST_HEADER, header).await.unwrap_or(Err(Failure::Empty)),
            }
        };
        match time::timeout(fixed_interval("proxy_protocol", DEADLINE), header).await.unwrap_or(Err(Failure::Timeout)) {
            Ok(Source::Client(address)) => {
                let digest = SocketDigest::from_raw_fd(stream.id());
                // The cell of a new digest is always empty, so setting it does not fail.
                let _ = digest.peer_addr.set(Some(address.into()));
                stream.set_socket_digest(digest);
                Some(stream)
            }
            Ok(Source::Peer) => Some(stream),
            Err(failure) => {
                self.report(&failure, &stream);
                None
            }
        }
    }

    fn report(&self, failure: &Failure, stream: &Stream) {
        let (counter, detail) = match failure {
            Failure::Malformed(HeaderError(detail)) => (&self.malformed, *detail),
            Failure::Timeout => (&self.timeout, "not there in time"),
            Failure::Closed => (&self.closed, "closed in the middle"),
            Failure::Empty => return,
        };
        counter.increment(1);
        let Some(connections) = self.throttle.admit(self.clock.now()) else { return };
        let peer = peer(stream).map(|peer| peer.to_string());
        log::debug!(detail, connections, peer:% = peer.unwrap_or_default(); "PROXY protocol header refused");
    }
}

impl Senders {
    /// Whether this connection's peer may connect. A peer that may not connect is counted and reported.
    fn admit(&self, stream: &Stream, clock: &Clock) -> bool {
        let peer = peer(stream);
        // On a socket for both IP versions, an IPv4 peer has an IPv4-mapped IPv6 address.
        let address = peer.map(|peer| peer.ip().to_canonical());
        if address.is_some_and(|address| self.networks.iter().any(|network| network.contains(&address))) {
            return true;
        }
        self.closed.increment(1);
        if let Some(connections) = self.throttle.admit_every(REPORT_INTERVAL, clock.now()) {
            let peer = peer.map(|peer| peer.to_string());
            log::warn!(connections, peer:% = peer.unwrap_or_default(); "connection closed: its peer is not in proxy_protocol.from");
        }
        false
    }
}

fn peer(stream: &Stream) -> Option<SocketAddr> {
    stream.get_socket_digest()?.peer_addr()?.as_inet().copied()
}

async fn read_header(stream: &mut Stream) -> Result<Source, Failure> {
    let mut header = Vec::new();
    loop {
        let missing = match parse(&header).map_err(Failure::Malformed)? {
            Progress::Whole { source, .. } => return Ok(source),
            Progress::More(missing) => missing,
        };
        let length = header.len();
        header.resize(length + missing, 0);
        // Not `read_exact`, because an invalid header is rejected at its first wrong byte.
        let read: io::Result<usize> = stream.read(header.get_mut(length..).unwrap_or_default()).await;
        match read {
            Ok(read @ 1..) => header.truncate(length + read),
            _ if length == 0 => return Err(Failure::Empty),
            _ => return Err(Failure::Closed),
        }
    }
}
