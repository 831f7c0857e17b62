//! Loads a script again when the server answers NOSCRIPT: it was restarted behind a proxy, or its scripts were flushed.
//! NOSCRIPT proves that the script did not run, so the call may be sent again.

use redis::aio::MultiplexedConnection;
use redis::{RedisError, Value};

use super::handshake::load;
use crate::error::Fault;

/// Whether a call did not run because the server does not know its script.
pub(crate) fn is_noscript(reply: &Result<Value, RedisError>) -> bool {
    matches!(reply, Err(error) if error.code() == Some("NOSCRIPT"))
}

/// Loads the script if one of the replies is NOSCRIPT, puts its name into `sha`, and returns true: the calls with that reply
/// must then be sent again.
///
/// # Errors
/// When the connection fails, or the user may not load scripts.
pub(crate) async fn load_if_unknown(
    connection: &mut MultiplexedConnection,
    sha: &mut String,
    replies: &[Result<Value, RedisError>],
    text: impl FnOnce() -> String,
) -> Result<bool, Fault> {
    let is_unknown = replies.iter().any(is_noscript);
    if is_unknown {
        *sha = load(connection, &text()).await?;
    }
    Ok(is_unknown)
}
