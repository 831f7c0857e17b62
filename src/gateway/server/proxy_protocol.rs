//! Reads the PROXY protocol header at the beginning of a connection, and gives the connection the client's address.
//!
//! Exactly the header is read, and what follows stays unread: the same stream goes on, which from then on has the client's
//! address instead of its peer's. A connection without a valid header is closed without a response, because it is not known
//! which client would get it.

use std::io;
use std::time::Duration;

use metrics::Counter;
use pingora::protocols::{SocketDigest, Stream};
use pingora::server::ShutdownWatch;
use tokio::io::AsyncReadExt;

use crate::auth::proxy_protocol::{Malformed, Progress, Source, parse};
use crate::base::interval::fixed_interval;
use crate::base::time;
use crate::base::time::Clock;
use crate::gateway::runtime::log_throttle::LogThrottle;
use crate::gateway::telemetry::metrics::Metrics;

/// From the accepted connection to the end of its header. The slowest TCP stacks retransmit a lost segment after 3 seconds.
const DEADLINE: Duration = Duration::from_secs(5);

/// The stage of one listener, for all threads.
#[derive(Debug)]
pub struct ProxyProtocol {
    malformed: Counter,
    timeout: Counter,
    closed: Counter,
    throttle: LogThrottle,
    clock: Clock,
}

/// Why there is no header.
#[derive(Debug)]
enum Failure {
    Malformed(Malformed),
    Timeout,
    /// Closed in the middle of the header.
    Closed,
    /// Closed before its first byte, as the check of a load balancer is; or this process leaves. Neither is an error.
    Empty,
}

impl ProxyProtocol {
    /// `listener` is its label in metrics.
    pub fn new(metrics: &Metrics, clock: Clock, listener: &str) -> ProxyProtocol {
        let [malformed, timeout, closed] =
            ["malformed", "timeout", "closed"].map(|kind| metrics.http.proxy_protocol_errors(listener, kind));
        ProxyProtocol { malformed, timeout, closed, throttle: LogThrottle::default(), clock }
    }

    /// Returns the same stream, with the client's address; `None` if the connection is to be closed.
    pub async fn read(&self, mut stream: Stream, shutdown: &ShutdownWatch) -> Option<Stream> {
        let mut shutdown = shutdown.clone();
        let header = async {
            tokio::select! {
                header = read_header(&mut stream) => header,
                _ = shutdown.wait_for(|stop| *stop) => Err(Failure::Empty),
            }
        };
        match time::timeout(fixed_interval("proxy_protocol", DEADLINE), header).await.unwrap_or(Err(Failure::Timeout)) {
            Ok(Source::Client(address)) => {
                let digest = SocketDigest::from_raw_fd(stream.id());
                // The cell is new, and so it is empty.
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
            Failure::Malformed(Malformed(detail)) => (&self.malformed, *detail),
            Failure::Timeout => (&self.timeout, "not there in time"),
            Failure::Closed => (&self.closed, "closed in the middle"),
            Failure::Empty => return,
        };
        counter.increment(1);
        let Some(connections) = self.throttle.admit(self.clock.now()) else { return };
        let digest = stream.get_socket_digest();
        let peer = digest.as_ref().and_then(|digest| digest.peer_addr()?.as_inet()).map(ToString::to_string);
        log::debug!(detail, connections, peer:% = peer.unwrap_or_default(); "PROXY protocol header refused");
    }
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
        // Not `read_exact`: an invalid header shows at its first wrong byte, and more may never arrive.
        let read: io::Result<usize> = stream.read(header.get_mut(length..).unwrap_or_default()).await;
        match read {
            Ok(read @ 1..) => header.truncate(length + read),
            _ if length == 0 => return Err(Failure::Empty),
            _ => return Err(Failure::Closed),
        }
    }
}
