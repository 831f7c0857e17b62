//! Connects to Redis and tests the connection: the role, the scripts, and whether the user may run them.

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, ErrorKind, RedisError, Value};

use super::codec::key_name;
use super::dial::{OpenConnection, STEP, connection_info, dial, step};
use super::script;
use super::settings::Settings;
use crate::error::{Fault, StoreError};
use crate::remote::login::CurrentLogin;
use base::host_port::HostPort;
use base::tls::certificate_error;
use ledger::bucket_key::BucketKey;

impl From<RedisError> for Fault {
    fn from(error: RedisError) -> Fault {
        // With TLS 1.3, a server may refuse our certificate after the handshake.
        Fault::new(kind(&error), certificate_error::of_server(&error.to_string()))
    }
}

/// Connects for a gateway that will run the script `text`, and loads this script. Also returns the SHA-1 hash that
/// names the script on the server. Each step may take [`STEP`].
///
/// # Errors
///
/// When a step is refused or takes too long, the server is a replica, or the user lacks a permission.
pub(super) async fn connect(
    settings: &Settings,
    address: &HostPort,
    login: &CurrentLogin,
    text: &str,
) -> Result<(OpenConnection, String), Fault> {
    let mut opened = reach(settings, address, login).await?;
    let trying = async {
        tokio::select! {
            biased;
            sha = try_out(settings, text, &mut opened.connection) => sha,
            () = &mut opened.driver => Err(closed()),
        }
    };
    let sha = step("checking the permissions", trying).await??;
    Ok((opened, sha))
}

/// Connects and logs in as [`connect`] does, but loads no script and checks nothing.
///
/// # Errors
/// When a step is refused or takes too long.
pub(super) async fn reach(
    settings: &Settings,
    address: &HostPort,
    login: &CurrentLogin,
) -> Result<OpenConnection, Fault> {
    open(address, login, settings.target.database()).await
}

/// Connects, and checks that the server reports the role of a master.
///
/// # Errors
///
/// When a step of connecting fails, or the server has another role.
pub(crate) async fn check_role(address: &HostPort, login: &CurrentLogin) -> Result<(), Fault> {
    let mut opened = open(address, login, 0).await?;
    tokio::select! {
        biased;
        role = expect_master(&mut opened.connection) => role,
        () = &mut opened.driver => Err(closed()),
    }
}

async fn open(address: &HostPort, login: &CurrentLogin, database: i64) -> Result<OpenConnection, Fault> {
    let credentials = login.read(STEP).await?;
    let info = connection_info(&credentials, database);
    dial(address, credentials.tls, &info, AsyncConnectionConfig::new()).await
}

fn closed() -> Fault {
    // With TLS 1.3 the server's reason is lost when the connection is closed.
    let hint = "a server with TLS does so if it requires a certificate (`cert_file`), or does not accept it";
    Fault::new(StoreError::Unreachable, format!("the connection was closed at once; {hint}"))
}

/// Checks that the server reports the role of a master.
async fn expect_master(connection: &mut MultiplexedConnection) -> Result<(), Fault> {
    let role = send(connection, Cmd::new().arg("ROLE")).await?;
    let Value::Array(role) = role else { return Err(unexpected_reply("ROLE")) };
    match role.first().and_then(word).as_deref() {
        Some("master") => Ok(()),
        Some(other) => Err(Fault::new(StoreError::Replica, format!("its role is `{other}`, not `master`"))),
        None => Err(unexpected_reply("ROLE")),
    }
}

/// Checks the role and the permissions. The commands are sent together, to save round trips. The long script is sent
/// last, because some servers close the connection at a long command without a login.
async fn try_out(settings: &Settings, text: &str, connection: &mut MultiplexedConnection) -> Result<String, Fault> {
    let mut other = connection.clone();
    let (role, probe) = tokio::join!(biased; expect_master(connection), load(&mut other, script::PROBE));
    role?;
    // No bucket has this key.
    let key = key_name(&settings.prefix, &BucketKey([0; 16]));
    let mut trying = Cmd::new();
    trying.arg("EVALSHA").arg(probe?).arg(1).arg(key);
    let (refused, sha) = tokio::join!(biased; send(connection, &trying), load(&mut other, text));
    let refused = match refused {
        // A cluster node without hash slots answers the trial with a redirection. That is no failure.
        Err(error) if kind(&error).is_redirection() => return sha,
        refused => refused?,
    };
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

/// Loads a script with SCRIPT LOAD, and returns the SHA-1 hash that names it. The server never evicts such a script.
///
/// # Errors
/// When the connection fails, or the user may not load scripts.
pub(super) async fn load(connection: &mut MultiplexedConnection, text: &str) -> Result<String, Fault> {
    let sha = send(connection, Cmd::new().arg("SCRIPT").arg("LOAD").arg(text)).await?;
    word(&sha).ok_or_else(|| unexpected_reply("SCRIPT LOAD"))
}

/// Sends a command and returns the reply.
///
/// # Errors
///
/// When the connection ends, or the reply is an error of the server.
pub(super) async fn send(connection: &mut MultiplexedConnection, command: &Cmd) -> Result<Value, RedisError> {
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

/// Returns the kind of an error, for metrics.
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
        "MOVED" => StoreError::SlotMoved,
        "ASK" => StoreError::SlotMoving,
        "TRYAGAIN" => StoreError::TryAgain,
        "CLUSTERDOWN" => StoreError::ClusterDown,
        // These errors have no code of their own, so the text is searched.
        _ if text.contains("The user executing the script can't") || text.contains("no permissions") => {
            StoreError::Forbidden
        }
        _ => StoreError::Refused,
    }
}
