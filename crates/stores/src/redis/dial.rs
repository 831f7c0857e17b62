//! Opens a connection to a server that speaks the Redis protocol, a data server or a sentinel: TCP, TLS, login.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisConnectionInfo};
use rustls::pki_types::ServerName;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::read_limit::ReadLimit;
use crate::error::{Fault, StoreError};
use crate::remote::login::{Credentials, Tls};
use base::host_port::HostPort;
use base::secret::Secret;
use base::tls::certificate_error;

/// The longest time that one step of connecting may take. A step needs up to three round trips, and no request waits
/// for it.
pub(super) const STEP: Duration = Duration::from_secs(2);

/// The longest that sent bytes may stay unacknowledged before the system closes the connection.
const UNACKNOWLEDGED: Duration = Duration::from_secs(2);

/// A connection on which the user has logged in.
pub(crate) struct OpenConnection {
    pub connection: MultiplexedConnection,
    /// Moves the bytes of the connection, until the connection ends.
    pub driver: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// The address of the server's end of the connection.
    pub peer: SocketAddr,
}

/// Returns the login and the database of a connection.
pub(crate) fn connection_info(credentials: &Credentials, database: i64) -> RedisConnectionInfo {
    let mut info = RedisConnectionInfo::default().set_db(database).set_skip_set_lib_name();
    if let Some(username) = &credentials.username {
        info = info.set_username(username);
    }
    // Redis logs in a user by name only with a password, which may be empty.
    if credentials.username.is_some() || credentials.password.is_some() {
        info = info.set_password(credentials.password.as_ref().map_or("", Secret::reveal));
    }
    info
}

/// Connects to the server at this address and logs in. A host name is resolved each time. Each step may take [`STEP`].
///
/// # Errors
///
/// When a step is refused or takes too long.
pub(crate) async fn dial(
    address: &HostPort,
    tls: Option<Tls>,
    info: &RedisConnectionInfo,
    config: AsyncConnectionConfig,
) -> Result<OpenConnection, Fault> {
    let unreachable = |error: std::io::Error| Fault::new(StoreError::Unreachable, error.to_string());
    let stream = step("connecting", TcpStream::connect((&*address.host, address.port))).await?;
    let stream = stream.map_err(unreachable)?;
    let peer = stream.peer_addr().map_err(unreachable)?;
    // A call is one small write. Without `TCP_NODELAY`, the system could delay it.
    stream.set_nodelay(true).map_err(unreachable)?;
    let socket = SockRef::from(&stream);
    // Keepalive packets show that the peer has vanished, even if the connection is idle.
    let keepalive = TcpKeepalive::new().with_time(Duration::from_secs(15)).with_interval(Duration::from_secs(5));
    socket.set_tcp_keepalive(&keepalive).map_err(unreachable)?;
    socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED)).map_err(unreachable)?;
    let Some(Tls { config: tls, server_name }) = tls else {
        return log_in(stream, peer, info, config).await;
    };
    let impossible = |_| Fault::new(StoreError::Unreachable, format!("TLS: no certificate can bear {}", address.host));
    let server_name = match server_name {
        Some(name) => name,
        None => ServerName::try_from(address.host.clone()).map_err(impossible)?,
    };
    let handshake = TlsConnector::from(tls).connect(server_name, stream);
    let stream = step("the TLS handshake", handshake).await?;
    let refused = |error: std::io::Error| {
        Fault::new(StoreError::Unreachable, format!("TLS: {}", certificate_error::of_server(&error.to_string())))
    };
    let stream = stream.map_err(refused)?;
    log_in(stream, peer, info, config).await
}

async fn log_in(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    peer: SocketAddr,
    info: &RedisConnectionInfo,
    config: AsyncConnectionConfig,
) -> Result<OpenConnection, Fault> {
    // The deadline is set where a reply is awaited.
    let config = config.set_response_timeout(None);
    let opening = MultiplexedConnection::new_with_config(info, ReadLimit::new(stream), config);
    let (connection, driver) = step("logging in", opening).await??;
    Ok(OpenConnection { connection, driver: Box::pin(driver), peer })
}

/// Runs one step of connecting, for at most [`STEP`]. `name` is the name of the step in messages.
///
/// # Errors
///
/// When the step takes longer than [`STEP`].
pub(super) async fn step<T>(name: &str, work: impl Future<Output = T>) -> Result<T, Fault> {
    let overdue = |_| Fault::new(StoreError::Unreachable, format!("{name} took longer than {STEP:?}"));
    tokio::time::timeout(STEP, work).await.map_err(overdue)
}
