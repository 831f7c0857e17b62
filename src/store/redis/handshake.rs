//! Connects to Redis: files of the login, TCP, TLS, user, the role, the scripts, and whether the user may run them.

use std::future::Future;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, ErrorKind, RedisConnectionInfo, RedisError, Value};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::address::Address;
use super::codec::key_name;
use super::login::{Credentials, CurrentLogin, Tls};
use super::read_limit::ReadLimit;
use super::script;
use super::settings::Settings;
use crate::base::secret::Secret;
use crate::limit::bucket_key::BucketKey;
use crate::store::error::{Fault, StoreError};
use crate::store::remote::transport::Driver;

/// The longest that a step may take: many times what a decision waits, because a step needs up to three round trips, and no
/// request waits for it.
const STEP: Duration = Duration::from_secs(2);

/// How long sent bytes may stay unacknowledged before the system gives the connection up.
const UNACKNOWLEDGED: Duration = Duration::from_secs(2);

/// A connection that has been tested.
pub struct ReadyConnection {
    pub connection: MultiplexedConnection,
    pub driver: Driver,
    /// The SHA-1 that names the script on the server; empty if none was loaded.
    pub sha: String,
}

impl From<RedisError> for Fault {
    fn from(error: RedisError) -> Fault {
        Fault::new(kind(&error), error.to_string())
    }
}

/// Connects for a gateway, which will run this script. Each step may take [`STEP`].
///
/// # Errors
///
/// When a step is refused or takes too long, the server is a replica, or the user lacks a permission.
pub async fn connect(
    settings: &Settings,
    address: &Address,
    login: &CurrentLogin,
    text: &str,
) -> Result<ReadyConnection, Fault> {
    reach(settings, address, login, Some(text)).await
}

/// As [`connect`]; without a script, role and permissions are not checked.
///
/// # Errors
/// As for [`connect`].
pub async fn reach(
    settings: &Settings,
    address: &Address,
    login: &CurrentLogin,
    text: Option<&str>,
) -> Result<ReadyConnection, Fault> {
    let mut credentials = login.read(STEP).await?;
    let unreachable = |error: std::io::Error| Fault::new(StoreError::Unreachable, error.to_string());
    let address = (&*address.host, address.port);
    let stream = step("connecting", TcpStream::connect(address)).await?.map_err(unreachable)?;
    // A call is one small write: waiting for more to send with it would only delay it.
    stream.set_nodelay(true).map_err(unreachable)?;
    let socket = SockRef::from(&stream);
    // A peer that has vanished is noticed even on an idle connection.
    let keepalive = TcpKeepalive::new().with_time(Duration::from_secs(15)).with_interval(Duration::from_secs(5));
    socket.set_tcp_keepalive(&keepalive).map_err(unreachable)?;
    socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED)).map_err(unreachable)?;
    match credentials.tls.take() {
        None => step("logging in", log_in(settings, &credentials, text, stream)).await?,
        Some(Tls { config, server_name }) => {
            let handshake = TlsConnector::from(config).connect(server_name, stream);
            let stream = step("the TLS handshake", handshake).await?;
            let stream = stream.map_err(|error| Fault::new(StoreError::Unreachable, format!("TLS: {error}")))?;
            step("logging in", log_in(settings, &credentials, text, stream)).await?
        }
    }
}

async fn step<T>(name: &str, work: impl Future<Output = T>) -> Result<T, Fault> {
    let overdue = |_| Fault::new(StoreError::Unreachable, format!("{name} took longer than {STEP:?}"));
    tokio::time::timeout(STEP, work).await.map_err(overdue)
}

async fn log_in(
    settings: &Settings,
    credentials: &Credentials,
    text: Option<&str>,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> Result<ReadyConnection, Fault> {
    let mut info = RedisConnectionInfo::default().set_db(settings.database).set_skip_set_lib_name();
    if let Some(username) = &credentials.username {
        info = info.set_username(username);
    }
    // A user without a password still needs an empty one to log in by name.
    if credentials.username.is_some() || credentials.password.is_some() {
        info = info.set_password(credentials.password.as_ref().map_or("", Secret::reveal));
    }
    // The deadline of each reply is set where it is awaited.
    let config = AsyncConnectionConfig::new().set_response_timeout(None);
    let (mut connection, driver) =
        MultiplexedConnection::new_with_config(&info, ReadLimit::new(stream), config).await?;
    let mut driver: Driver = Box::pin(driver);
    let sha = tokio::select! {
        biased;
        sha = async {
            match text {
                Some(text) => try_out(settings, text, &mut connection).await,
                None => Ok(String::new()),
            }
        } => sha?,
        () = &mut driver => return Err(Fault::new(StoreError::Unreachable, "the connection was closed at once")),
    };
    Ok(ReadyConnection { connection, driver, sha })
}

/// Checks the role and the permissions, so that anything missing is found before the first request needs it. What does not
/// depend on another reply is sent together: a round trip may be long.
async fn try_out(settings: &Settings, text: &str, connection: &mut MultiplexedConnection) -> Result<String, Fault> {
    let [mut asking_role, mut loading_probe, mut loading] = [(); 3].map(|()| connection.clone());
    let mut role = Cmd::new();
    role.arg("ROLE");
    let (role, probe, sha) = tokio::join!(
        biased;
        send(&mut asking_role, &role),
        load(&mut loading_probe, script::PROBE),
        load(&mut loading, text),
    );
    let Value::Array(role) = role? else { return Err(unexpected_reply("ROLE")) };
    match role.first().and_then(word).as_deref() {
        Some("master") => {}
        Some(other) => return Err(Fault::new(StoreError::Replica, format!("its role is `{other}`, not `master`"))),
        None => return Err(unexpected_reply("ROLE")),
    }
    // Not a real bucket: no hash will ever be all zeros.
    let key = key_name(&settings.prefix, &BucketKey([0; 16]));
    let refused = send(connection, Cmd::new().arg("EVALSHA").arg(probe?).arg(1).arg(key)).await?;
    let Value::Array(refused) = refused else { return Err(unexpected_reply("EVALSHA")) };
    if !refused.is_empty() {
        let refused: Vec<String> = refused.iter().filter_map(word).collect();
        let error = refused.first().map_or(StoreError::UnexpectedReply, |first| {
            let text = first.split_once(": ").map_or(&**first, |(_, text)| text);
            server_error(text.split(' ').next().unwrap_or_default(), text)
        });
        return Err(Fault::new(error, refused.join("; ")));
    }
    sha
}

/// Loads a script with SCRIPT LOAD and returns its name. Unlike a script sent by EVAL, it is never evicted.
///
/// # Errors
/// When the connection fails, or the user may not load scripts.
pub async fn load(connection: &mut MultiplexedConnection, text: &str) -> Result<String, Fault> {
    let sha = send(connection, Cmd::new().arg("SCRIPT").arg("LOAD").arg(text)).await?;
    word(&sha).ok_or_else(|| unexpected_reply("SCRIPT LOAD"))
}

/// Sends a command and returns the reply.
///
/// # Errors
///
/// When the connection ends, and when the reply is an error of the server.
pub async fn send(connection: &mut MultiplexedConnection, command: &Cmd) -> Result<Value, RedisError> {
    connection.send_packed_command(command).await?.extract_error()
}

fn word(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok(),
        Value::SimpleString(text) => Some(text.clone()),
        _ => None,
    }
}

fn unexpected_reply(command: &str) -> Fault {
    Fault::new(StoreError::UnexpectedReply, format!("{command} was answered with something else"))
}

/// The kind under which an error of the server or the connection is counted.
fn kind(error: &RedisError) -> StoreError {
    match error.kind() {
        ErrorKind::AuthenticationFailed => StoreError::Unauthorized,
        ErrorKind::Io => StoreError::Closed,
        ErrorKind::Parse | ErrorKind::UnexpectedReturnType => StoreError::UnexpectedReply,
        _ => server_error(error.code().unwrap_or_default(), error.detail().unwrap_or_default()),
    }
}

fn server_error(code: &str, text: &str) -> StoreError {
    match code {
        "NOAUTH" | "WRONGPASS" => StoreError::Unauthorized,
        "NOPERM" => StoreError::Forbidden,
        "READONLY" | "MASTERDOWN" => StoreError::Replica,
        "LOADING" => StoreError::Loading,
        "OOM" => StoreError::OutOfMemory,
        "BUSY" => StoreError::Busy,
        // A command that a script may not run, or a refused SELECT, has no error code of its own.
        _ if text.contains("The user executing the script can't") || text.contains("no permissions") => {
            StoreError::Forbidden
        }
        _ => StoreError::Refused,
    }
}
