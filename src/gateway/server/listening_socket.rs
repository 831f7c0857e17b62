//! Holds one listening socket, over TCP or at a path, and the connections that it accepts.
//!
//! All threads share the socket of a path, because SO_REUSEPORT exists only for IP sockets. Clients of a path have no
//! address, so the loopback address is used for them.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};

use pingora::protocols::l4::stream::Stream as Layer4;
use pingora::protocols::{GetSocketDigest, SocketDigest, Stream};
use socket2::{Domain, Socket, Type};

use super::socket_file;
use crate::gateway::runtime::peer_user::PeerUser;
use base::endpoint_address::EndpointAddress;

/// The length of the queue of a listening socket. The kernel reduces it to net.core.somaxconn.
const BACKLOG: i32 = 65_535;

/// The maximum number of bytes of a response that wait unsent in the kernel. Without this limit, a socket takes
/// megabytes for a client that does not read.
const UNSENT: u32 = 32 << 10;

/// The peer address of clients that connect through a Unix socket.
const LOCAL_CLIENT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// A listening socket in non-blocking mode.
#[derive(Debug)]
pub enum ListeningSocket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// An accepted connection, as the operating system returns it.
#[derive(Debug)]
pub enum AcceptedConnection {
    Tcp(TcpStream, SocketAddr),
    Unix(UnixStream),
}

impl ListeningSocket {
    /// Binds `count` sockets to one address. `mode` is the permissions of the file of a Unix domain socket. `None` leaves them
    /// to the umask.
    ///
    /// # Errors
    /// If the address cannot be bound, for example because another process uses it.
    pub fn bind(address: &EndpointAddress, mode: Option<u32>, count: usize) -> io::Result<Vec<ListeningSocket>> {
        match address {
            EndpointAddress::Inet(address) => {
                // Without SO_REUSEPORT, this bind fails if another process uses the port.
                let probe = tcp(*address, PortSharing::Exclusive)?;
                let address = probe.local_addr()?;
                drop(probe);
                (0..count).map(|_| Ok(ListeningSocket::Tcp(tcp(address, PortSharing::Shared)?))).collect()
            }
            EndpointAddress::Unix(path) => {
                let bound = ListeningSocket::Unix(socket_file::bind(path, mode, BACKLOG)?);
                let duplicates: Vec<_> = (1..count).map(|_| bound.duplicate()).collect::<io::Result<_>>()?;
                Ok(std::iter::once(bound).chain(duplicates).collect())
            }
        }
    }

    /// Adds sockets with the address of the first socket until there are at least `count`. An empty list stays empty.
    ///
    /// # Errors
    /// If the open-file limit is reached.
    pub fn extend(mut sockets: Vec<ListeningSocket>, count: usize) -> io::Result<Vec<ListeningSocket>> {
        let Some(first) = sockets.first() else { return Ok(sockets) };
        let missing = sockets.len()..count;
        let more: io::Result<Vec<_>> = match first {
            ListeningSocket::Tcp(first) => {
                let address = first.local_addr()?;
                missing.map(|_| Ok(ListeningSocket::Tcp(tcp(address, PortSharing::Shared)?))).collect()
            }
            ListeningSocket::Unix(_) => missing.map(|_| first.duplicate()).collect(),
        };
        sockets.extend(more?);
        Ok(sockets)
    }

    /// Returns another file descriptor of this socket.
    ///
    /// # Errors
    /// If the open-file limit is reached.
    pub fn duplicate(&self) -> io::Result<ListeningSocket> {
        match self {
            ListeningSocket::Tcp(socket) => socket.try_clone().map(ListeningSocket::Tcp),
            ListeningSocket::Unix(socket) => socket.try_clone().map(ListeningSocket::Unix),
        }
    }

    /// Returns the address of the socket, with the port that the kernel chose for port 0.
    ///
    /// # Errors
    /// If the address cannot be read, or a Unix domain socket has no path.
    pub fn address(&self) -> io::Result<EndpointAddress> {
        match self {
            ListeningSocket::Tcp(socket) => socket.local_addr().map(EndpointAddress::Inet),
            ListeningSocket::Unix(socket) => {
                let address = socket.local_addr()?;
                let path = address.as_pathname().ok_or_else(|| io::Error::other("a socket without a path"))?;
                Ok(EndpointAddress::Unix(path.into()))
            }
        }
    }

    /// Accepts the next connection in the queue of the socket.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if the queue is empty. Other kinds if the connection has failed, or no file
    /// descriptor is left for it.
    pub fn accept(&self) -> io::Result<AcceptedConnection> {
        match self {
            ListeningSocket::Tcp(socket) => {
                socket.accept().map(|(connection, peer)| AcceptedConnection::Tcp(connection, peer))
            }
            ListeningSocket::Unix(socket) => {
                socket.accept().map(|(connection, _)| AcceptedConnection::Unix(connection))
            }
        }
    }
}

impl AsFd for ListeningSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            ListeningSocket::Tcp(socket) => socket.as_fd(),
            ListeningSocket::Unix(socket) => socket.as_fd(),
        }
    }
}

/// Makes a listening socket of a file descriptor, by the family of its address.
impl TryFrom<OwnedFd> for ListeningSocket {
    type Error = io::Error;

    fn try_from(descriptor: OwnedFd) -> io::Result<ListeningSocket> {
        let socket = Socket::from(descriptor);
        let is_unix = socket.domain()? == Domain::UNIX;
        Ok(if is_unix { ListeningSocket::Unix(socket.into()) } else { ListeningSocket::Tcp(socket.into()) })
    }
}

impl AcceptedConnection {
    /// Makes a stream of the connection, with the settings that Pingora uses for its own connections.
    ///
    /// # Errors
    /// If the connection has failed.
    pub fn into_stream(self) -> io::Result<Stream> {
        match self {
            AcceptedConnection::Tcp(connection, peer) => {
                connection.set_nonblocking(true)?;
                connection.set_nodelay(true)?;
                Ok(stream(tokio::net::TcpStream::from_std(connection)?.into(), peer))
            }
            AcceptedConnection::Unix(connection) => {
                connection.set_nonblocking(true)?;
                Ok(local_stream(tokio::net::UnixStream::from_std(connection)?))
            }
        }
    }
}

/// Makes the stream of a connection to a Unix domain socket. The loopback address takes the place of its peer address.
pub(crate) fn local_stream(connection: tokio::net::UnixStream) -> Stream {
    let user = PeerUser::of(&connection);
    let mut stream = stream(connection.into(), LOCAL_CLIENT);
    if let Some(user) = user {
        user.note_in(&mut stream);
    }
    stream
}

fn stream(mut stream: Layer4, peer: SocketAddr) -> Stream {
    let digest = SocketDigest::from_raw_fd(stream.as_raw_fd());
    // A new digest has no peer address yet, so setting the address does not fail.
    let _ = digest.peer_addr.set(Some(peer.into()));
    stream.set_socket_digest(digest);
    Box::new(stream)
}

#[derive(Clone, Copy)]
enum PortSharing {
    Exclusive,
    Shared,
}

fn tcp(address: SocketAddr, sharing: PortSharing) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    match sharing {
        PortSharing::Exclusive => socket.bind(&address.into())?,
        PortSharing::Shared => {
            socket.set_reuse_port(true)?;
            socket.bind(&address.into())?;
            // Accepted connections inherit this option.
            socket.set_tcp_notsent_lowat(UNSENT)?;
            socket.listen(BACKLOG)?;
        }
    }
    Ok(socket.into())
}
