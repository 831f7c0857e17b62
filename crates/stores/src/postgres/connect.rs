//! Connects to one PostgreSQL server by TCP and TLS, logs in, and checks the schema and the permissions.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};
use tokio_postgres::config::SslMode;
use tokio_postgres::{AsyncMessage, Client, Config, Connection, NoTls};

use super::cancellation::Cancellation;
use super::errors;
use super::schema;
use super::session::SocketAddresses;
use super::settings::Settings;
use super::tls::Handshake;
use crate::error::{Fault, StoreError};
use crate::events::{Event, EventSink, ServerNotice};
use crate::remote::login::{Credentials, Tls};
use crate::remote::transport::Driver;
use base::host_port::HostPort;
use base::interval::fixed_interval;
use base::secret::Secret;

/// The longest time that one step of connecting may take. A distant server needs several round trips.
pub(super) const STEP: Duration = Duration::from_secs(2);

/// The longest time that sent bytes may stay unacknowledged before the system closes the connection.
const UNACKNOWLEDGED: Duration = Duration::from_secs(2);

/// The interval at which the name of a connected server is resolved again.
const RESOLVE_EVERY: Duration = Duration::from_secs(30);

/// A connection to a server that has passed the checks and can be used.
pub(crate) struct ReadyConnection {
    pub client: Client,
    pub driver: Driver,
    pub endpoint: Endpoint,
    pub ends: SocketAddresses,
    pub cancellation: Cancellation,
}

/// What is checked before a server is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Checks {
    /// The server accepts writes and has the tables, and the user may use them.
    Schema,
    /// The user can log in.
    Login,
}

/// A server: its host from the settings, and the address to which the host name was resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Endpoint {
    pub host: HostPort,
    pub address: SocketAddr,
}

/// Returns the addresses of a host.
///
/// # Errors
///
/// When the host has no address, or its name is not resolved in time.
pub(super) async fn resolve(host: &HostPort) -> Result<Vec<SocketAddr>, Fault> {
    let found = step("resolving the name", lookup_host((&*host.host, host.port))).await?;
    let addresses: Vec<SocketAddr> = found.map_err(unreachable)?.collect();
    if addresses.is_empty() {
        Err(Fault::new(StoreError::Unreachable, "the name has no address"))
    } else {
        Ok(addresses)
    }
}

/// Connects to one server, logs in, and does the checks.
///
/// # Errors
///
/// Returns the reason why the server cannot be used.
pub(super) async fn connect(
    settings: &Settings,
    Endpoint { host, address }: &Endpoint,
    credentials: &Credentials,
    checks: Checks,
    events: &EventSink,
) -> Result<ReadyConnection, Fault> {
    let stream = step("connecting", TcpStream::connect(address)).await?.map_err(unreachable)?;
    let ends = SocketAddresses { local: stream.local_addr().map_err(unreachable)?, peer: *address };
    // A call is one small write. Without `TCP_NODELAY`, the system could delay it.
    stream.set_nodelay(true).map_err(unreachable)?;
    let socket = SockRef::from(&stream);
    // Keepalive packets show that the peer has vanished, even if no call is sent.
    let keepalive = TcpKeepalive::new().with_time(Duration::from_secs(15)).with_interval(Duration::from_secs(5));
    socket.set_tcp_keepalive(&keepalive).map_err(unreachable)?;
    socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED)).map_err(unreachable)?;
    let mut config = Config::new();
    config.user(credentials.username.as_deref().unwrap_or_default()).dbname(&settings.database);
    config.application_name("tollgate");
    if let Some(password) = &credentials.password {
        config.password(Secret::reveal(password));
    }
    let handshake = match &credentials.tls {
        None => None,
        Some(tls) => Some(Handshake { config: Arc::clone(&tls.config), server_name: server_name(host, tls)? }),
    };
    let (client, connection): (Client, Driver) = match handshake.clone() {
        None => {
            config.ssl_mode(SslMode::Disable);
            let connected = step("logging in", config.connect_raw(stream, NoTls)).await?;
            let (client, connection) = connected.map_err(login_fault)?;
            (client, Box::pin(ended(connection, events.clone())))
        }
        Some(handshake) => {
            config.ssl_mode(SslMode::Require);
            let connected = step("logging in", config.connect_raw(stream, handshake)).await?;
            let (client, connection) = connected.map_err(login_fault)?;
            (client, Box::pin(ended(connection, events.clone())))
        }
    };
    let mut driver = until_moved(connection, host.clone(), ends.peer.ip());
    let cancellation = Cancellation::new(client.cancel_token(), ends.peer, handshake);
    if checks == Checks::Schema {
        tokio::select! {
            biased;
            checked = step("checking the schema", schema::check(&client, settings)) => checked??,
            fault = &mut driver => return Err(fault),
        }
    }
    let endpoint = Endpoint { host: host.clone(), address: *address };
    Ok(ReadyConnection { client, driver: cancellation.keep_open(driver), endpoint, ends, cancellation })
}

fn unreachable(error: io::Error) -> Fault {
    Fault::new(StoreError::Unreachable, error.to_string())
}

/// Runs one step of connecting, for at most `STEP`. `name` is the name of the step in messages.
///
/// # Errors
///
/// When the step takes longer.
pub(super) async fn step<T>(name: &str, work: impl Future<Output = T>) -> Result<T, Fault> {
    let overdue = |_| Fault::new(StoreError::Unreachable, format!("{name} took longer than {STEP:?}"));
    tokio::time::timeout(STEP, work).await.map_err(overdue)
}

/// Returns the fault of a failed login. An error that the server has sent is reported as it is.
fn login_fault(error: tokio_postgres::Error) -> Fault {
    let answered = error.as_db_error().is_some();
    let fault = Fault::from(error);
    if answered { fault } else { Fault { error: StoreError::Unreachable, ..fault } }
}

fn server_name(host: &HostPort, tls: &Tls) -> Result<ServerName<'static>, Fault> {
    match &tls.server_name {
        Some(name) => Ok(name.clone()),
        None => ServerName::try_from(host.host.clone())
            .map_err(|_| Fault::new(StoreError::Unreachable, "no certificate can bear the name of this host")),
    }
}

/// Moves the bytes of a connection until it ends, and returns the reason. Reports the notices of the server.
async fn ended<S, T>(mut connection: Connection<S, T>, events: EventSink) -> Fault
where
    S: AsyncRead + AsyncWrite + Unpin,
    T: AsyncRead + AsyncWrite + Unpin,
{
    loop {
        match std::future::poll_fn(|context| connection.poll_message(context)).await {
            Some(Ok(AsyncMessage::Notice(notice))) => {
                let (level, text) = (errors::notice_level(&notice), errors::text(&notice));
                events.send(Event::ServerNotice(ServerNotice { level, text }));
            }
            Some(Ok(_)) => {}
            Some(Err(error)) => return error.into(),
            None => return Fault::new(StoreError::Closed, "the connection was closed"),
        }
    }
}

/// Wraps the driver of a connection. The returned driver ends when the connection ends, or when the host name leads to
/// another address.
fn until_moved(connection: Driver, host: HostPort, address: IpAddr) -> Driver {
    if host.ip().is_some() {
        return connection;
    }
    let moved = async move {
        loop {
            tokio::time::sleep(fixed_interval("resolve_store", RESOLVE_EVERY)).await;
            // A failed lookup says nothing about the server, so the connection stays.
            let Ok(addresses) = lookup_host((&*host.host, host.port)).await else { continue };
            let addresses: Vec<IpAddr> = addresses.map(|address| address.ip()).collect();
            if !addresses.is_empty() && !addresses.contains(&address) {
                return Fault::new(StoreError::Moved, format!("{host} is at another address now"));
            }
        }
    };
    Box::pin(async move {
        tokio::select! {
            fault = connection => fault,
            fault = moved => fault,
        }
    })
}
