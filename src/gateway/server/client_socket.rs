//! Tells a store whether a client is still connected, by its socket.

use std::sync::Arc;

use pingora::protocols::SocketDigest;

use stores::Caller;

/// The socket of a client's connection.
#[derive(Clone, Debug)]
pub struct ClientSocket(pub Arc<SocketDigest>);

impl Caller for ClientSocket {
    fn has_left(&self) -> bool {
        // Of the kernel's states of a TCP connection, the one in which both sides may still send.
        const ESTABLISHED: u8 = 1;
        self.0.tcp_info().is_some_and(|tcp| tcp.tcpi_state != ESTABLISHED)
    }
}
