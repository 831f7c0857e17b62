//! Takes the PROXY protocol's header off a connection, before anything else is read of it.
//!
//! Exactly the header is read, and what follows stays unread: the same stream goes on, which from then on has the client's
//! address instead of its peer's. A connection without a good header is closed
//! without an answer, because nobody knows who would get it.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use metrics::Counter;
use pingora::protocols::{SocketDigest, Stream};
use pingora::server::ShutdownWatch;
use tokio::io::AsyncReadExt;

use crate::auth::proxy_protocol::{Malformed, Progress, Source, parse};
use crate::base::time;
use crate::gateway::runtime::log_throttle::LogThrottle;
use crate::gateway::state::GatewayState;

/// From the connection to the end of its header. A lost segment is sent again after 3 seconds by the slowest.
const DEADLINE: Duration = Duration::from_secs(5);

/// One listener's, for all threads.
#[derive(Debug)]
pub struct ProxyProtocol {
    gateway: Arc<GatewayState>,
    malformed: Counter,
    timeout: Counter,
    closed: Counter,
    refused: LogThrottle,
}

/// Why there is no header.
#[derive(Debug)]
enum Failure {
    Malformed(Malformed),
    Timeout,
    /// In the middle of it.
    Closed,
    /// Before its first byte, as a load balancer's check does; or this process leaves. Nobody did anything wrong.
    Gone,
}

impl ProxyProtocol {
    pub fn new(gateway: Arc<GatewayState>, listener: &str) -> ProxyProtocol {
        let [malformed, timeout, closed] =
            ["malformed", "timeout", "closed"].map(|kind| gateway.metrics.proxy_protocol_errors(listener, kind));
        ProxyProtocol { gateway, malformed, timeout, closed, refused: LogThrottle::default() }
    }

    /// The same stream, as the client's; none when it is closed.
    pub async fn take(&self, mut stream: Stream, shutdown: &ShutdownWatch) -> Option<Stream> {
        let mut shutdown = shutdown.clone();
        let header = async {
            tokio::select! {
                header = read(&mut stream) => header,
                _ = shutdown.wait_for(|stop| *stop) => Err(Failure::Gone),
            }
        };
        match time::timeout(DEADLINE, header).await.unwrap_or(Err(Failure::Timeout)) {
            Ok(Source::Client(address)) => {
                let digest = SocketDigest::from_raw_fd(stream.id());
                // A new cell is empty.
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
            Failure::Gone => return,
        };
        counter.increment(1);
        let Some(connections) = self.refused.say(self.gateway.clock.now()) else { return };
        let digest = stream.get_socket_digest();
        let peer = digest.as_ref().and_then(|digest| digest.peer_addr()?.as_inet()).map(ToString::to_string);
        log::debug!(detail, connections, peer:% = peer.unwrap_or_default(); "PROXY protocol header refused");
    }
}

async fn read(stream: &mut Stream) -> Result<Source, Failure> {
    let mut header = Vec::new();
    loop {
        let missing = match parse(&header).map_err(Failure::Malformed)? {
            Progress::Whole { source, .. } => return Ok(source),
            Progress::More(missing) => missing,
        };
        let begun = header.len();
        header.resize(begun + missing, 0);
        // Not `read_exact`: what is wrong shows at its first byte, and more may never come.
        let found: io::Result<usize> = stream.read(header.get_mut(begun..).unwrap_or_default()).await;
        match found {
            Ok(found @ 1..) => header.truncate(begun + found),
            _ if begun == 0 => return Err(Failure::Gone),
            _ => return Err(Failure::Closed),
        }
    }
}
