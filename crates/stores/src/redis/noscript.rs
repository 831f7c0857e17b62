//! Loads a script again when the server answers NOSCRIPT, such as after a restart behind a proxy. NOSCRIPT proves that
//! the script did not run.

use redis::aio::MultiplexedConnection;
use redis::{RedisError, Value};

use super::handshake::load;
use crate::error::Fault;

/// Whether the reply shows that the call did not run because the server does not know its script.
pub(crate) fn is_noscript(reply: &Result<Value, RedisError>) -> bool {
    matches!(reply, Err(error) if error.code() == Some("NOSCRIPT"))
}

/// Loads the script if one of the replies is NOSCRIPT, and puts the script's name into `sha`. Returns whether it was
/// loaded. If so, the calls with the reply NOSCRIPT must be sent again.
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
