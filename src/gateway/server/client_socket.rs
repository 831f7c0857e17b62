//! Holds the socket of a client: the addresses of both sides, and whether the client is still connected.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use pingora::protocols::SocketDigest;

use stores::Caller;

/// The socket of a client's connection.
#[derive(Clone, Debug)]
pub(crate) struct ClientSocket(Arc<SocketDigest>);

impl ClientSocket {
    pub(crate) fn new(digest: Arc<SocketDigest>) -> ClientSocket {
        ClientSocket(digest)
    }

    /// Returns the IP address of the peer. `None` if the peer has no IP address.
    pub(crate) fn peer(&self) -> Option<IpAddr> {
        Some(self.0.peer_addr()?.as_inet()?.ip())
    }

    /// Returns the address that the client has connected to. `None` for a Unix domain socket.
    pub(crate) fn local(&self) -> Option<SocketAddr> {
        self.0.local_addr()?.as_inet().copied()
    }
}

impl Caller for ClientSocket {
    fn has_left(&self) -> bool {
        // The number of the Linux kernel for a TCP connection that is open in both directions.
        const ESTABLISHED: u8 = 1;
        self.0.tcp_info().is_some_and(|tcp| tcp.tcpi_state != ESTABLISHED)
    }
}
