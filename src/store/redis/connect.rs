//! Makes a connection that can be asked: TCP, TLS, the user, the role, the scripts, and whether the user may run them.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, ErrorKind, RedisConnectionInfo, RedisError, Value};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::codec::key_name;
use super::read_limit::ReadLimit;
use super::script;
use super::settings::Settings;
use crate::base::secret::Secret;
use crate::limit::key::BucketKey;
use crate::store::error::{Fault, StoreError};

const STEP: Duration = Duration::from_millis(600);

/// How long sent bytes may stay unacknowledged before the system gives the connection up.
const UNACKNOWLEDGED: Duration = Duration::from_secs(2);

/// A connection that has been shown to work.
pub struct Connected {
    pub connection: MultiplexedConnection,
    /// Moves the bytes; ends when the connection does.
    pub driver: Driver,
    /// The name of the script on the server; empty where none was asked for.
    pub sha: String,
}

pub type Driver = Pin<Box<dyn Future<Output = ()> + Send>>;

impl From<RedisError> for Fault {
    fn from(error: RedisError) -> Fault {
        Fault::new(kind(&error), error.to_string())
    }
}

/// For a gateway, which will take with this script. Each step of the way gets [`STEP`]; all of them together are what a
/// start waits for at most.
pub async fn connect(settings: &Settings, text: &str) -> Result<Connected, Fault> {
    reach(settings, Some(text)).await
}

/// Without a script, nothing is tried out.
pub async fn reach(settings: &Settings, text: Option<&str>) -> Result<Connected, Fault> {
    let unreachable = |error: std::io::Error| Fault::new(StoreError::Unreachable, error.to_string());
    let address = (&*settings.host, settings.port);
    let stream = step("connecting", TcpStream::connect(address)).await?.map_err(unreachable)?;
    // A call is one small write: waiting for more to send with it would only delay it.
    stream.set_nodelay(true).map_err(unreachable)?;
    let socket = SockRef::from(&stream);
    // A peer that has vanished is noticed, also by a link on which nothing is asked.
    let keepalive = TcpKeepalive::new().with_time(Duration::from_secs(15)).with_interval(Duration::from_secs(5));
    socket.set_tcp_keepalive(&keepalive).map_err(unreachable)?;
    socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED)).map_err(unreachable)?;
    match &settings.tls {
        None => step("logging in", log_in(settings, text, stream)).await?,
        Some(tls) => {
            let handshake = TlsConnector::from(Arc::clone(&tls.config)).connect(tls.name.clone(), stream);
            let stream = step("the TLS handshake", handshake).await?;
            let stream = stream.map_err(|error| Fault::new(StoreError::Unreachable, format!("TLS: {error}")))?;
            step("logging in", log_in(settings, text, stream)).await?
        }
    }
}

async fn step<T>(name: &str, work: impl Future<Output = T>) -> Result<T, Fault> {
    let overdue = |_| Fault::new(StoreError::Unreachable, format!("{name} took longer than {STEP:?}"));
    tokio::time::timeout(STEP, work).await.map_err(overdue)
}

async fn log_in(
    settings: &Settings,
    text: Option<&str>,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> Result<Connected, Fault> {
    let mut info = RedisConnectionInfo::default().set_db(settings.database).set_skip_set_lib_name();
    if let Some(username) = &settings.username {
        info = info.set_username(username);
    }
    // A user without a password is one who needs none; to say who it is all the same takes an empty one.
    if settings.username.is_some() || settings.password.is_some() {
        info = info.set_password(settings.password.as_ref().map_or("", Secret::reveal));
    }
    // Each answer's deadline is set where it is waited for.
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
    Ok(Connected { connection, driver, sha })
}

/// Everything that could be found missing is, before the first request depends on it.
async fn try_out(settings: &Settings, text: &str, connection: &mut MultiplexedConnection) -> Result<String, Fault> {
    let role = send(connection, Cmd::new().arg("ROLE")).await?;
    let Value::Array(role) = role else { return Err(unexpected_reply("ROLE")) };
    match role.first().and_then(word).as_deref() {
        Some("master") => {}
        Some(other) => return Err(Fault::new(StoreError::Replica, format!("its role is `{other}`, not `master`"))),
        None => return Err(unexpected_reply("ROLE")),
    }
    let probe = load(connection, script::PROBE).await?;
    // Nobody's bucket: a hash that comes out as nothing but zeros will not be seen.
    let key = key_name(&settings.prefix, &BucketKey([0; 16]));
    let refused = send(connection, Cmd::new().arg("EVALSHA").arg(probe).arg(1).arg(key)).await?;
    let Value::Array(refused) = refused else { return Err(unexpected_reply("EVALSHA")) };
    if !refused.is_empty() {
        let refused: Vec<String> = refused.iter().filter_map(word).collect();
        let error = refused.first().map_or(StoreError::UnexpectedReply, |first| {
            let text = first.split_once(": ").map_or(&**first, |(_, text)| text);
            server_error(text.split(' ').next().unwrap_or_default(), text)
        });
        return Err(Fault::new(error, refused.join("; ")));
    }
    load(connection, text).await
}

/// SCRIPT LOAD, and the name that the server gave it. A loaded script is never evicted, as one that came by EVAL may be.
pub async fn load(connection: &mut MultiplexedConnection, text: &str) -> Result<String, Fault> {
    let sha = send(connection, Cmd::new().arg("SCRIPT").arg("LOAD").arg(text)).await?;
    word(&sha).ok_or_else(|| unexpected_reply("SCRIPT LOAD"))
}

/// One command and its answer; the server's error is an error here.
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

/// What an error of the server, or of the way to it, is counted as.
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
        // What a script may not do, or a SELECT on the way, is told without a code of its own.
        _ if text.contains("The user executing the script can't") || text.contains("no permissions") => {
            StoreError::Forbidden
        }
        _ => StoreError::Refused,
    }
}
