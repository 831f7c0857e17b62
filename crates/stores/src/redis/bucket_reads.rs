//! Encodes the commands that read buckets and change nothing, and decodes their replies.

use redis::{Cmd, Value};

use super::codec::{key_name, state};
use crate::error::{Fault, StoreError};
use crate::remote::transport::ReadStates;
use base::time::Timestamp;
use ledger::algorithm::State;
use ledger::bucket_key::BucketKey;

/// Returns the commands that read these buckets: one for each bucket, and then one for the server's time, so that no state is
/// later than the time. `prefix` begins the names of the buckets.
pub(super) fn commands(prefix: &str, keys: &[BucketKey]) -> Vec<Cmd> {
    keys.iter().map(|key| get(prefix, key)).chain([time()]).collect()
}

/// Returns [`commands`] for buckets by their names in Redis.
pub(super) fn named(names: &[Vec<u8>]) -> Vec<Cmd> {
    names.iter().map(|name| get_named(name)).chain([time()]).collect()
}

/// Returns the command that reads a bucket.
pub(super) fn get(prefix: &str, key: &BucketKey) -> Cmd {
    get_named(&key_name(prefix, key))
}

fn get_named(name: &[u8]) -> Cmd {
    let mut command = Cmd::new();
    command.arg("GET").arg(name);
    command
}

/// Returns the command that reads the server's time.
pub(super) fn time() -> Cmd {
    let mut command = Cmd::new();
    command.arg("TIME");
    command
}

/// Decodes the replies to [`commands`] for this number of buckets.
///
/// # Errors
///
/// The first error among the replies, or a fault if they are not those of such commands.
pub(super) fn parse(
    mut replies: impl Iterator<Item = Result<Value, Fault>>,
    buckets: usize,
) -> Result<ReadStates, Fault> {
    let states = replies.by_ref().take(buckets).map(stored).collect::<Result<Vec<_>, _>>()?;
    let now = replies.next().ok_or_else(|| unexpected_reply("TIME"))?.and_then(|value| moment(&value))?;
    Ok(ReadStates { now, states })
}

/// Decodes the reply to one GET. An invalid state counts as an empty bucket, as in the script.
///
/// # Errors
///
/// If the reply is an error, except for a key of another type.
pub(super) fn stored(reply: Result<Value, Fault>) -> Result<Option<State>, Fault> {
    match reply {
        Ok(value) => Ok(state(&value).unwrap_or_else(|_| Some(State::new()))),
        Err(fault) if fault.detail.contains("WRONGTYPE") => Ok(Some(State::new())),
        Err(fault) => Err(fault),
    }
}

/// Decodes the reply to TIME.
///
/// # Errors
///
/// If the reply is not a time.
pub(super) fn moment(reply: &Value) -> Result<Timestamp, Fault> {
    let number = |value: &Value| match value {
        Value::BulkString(digits) => std::str::from_utf8(digits).ok()?.parse::<u64>().ok(),
        _ => None,
    };
    match reply {
        Value::Array(parts) => match (parts.first().and_then(number), parts.get(1).and_then(number)) {
            (Some(seconds), Some(micros)) => Ok(Timestamp(seconds.saturating_mul(1_000_000).saturating_add(micros))),
            _ => Err(unexpected_reply("TIME")),
        },
        _ => Err(unexpected_reply("TIME")),
    }
}

fn unexpected_reply(command: &str) -> Fault {
    Fault::new(StoreError::UnexpectedReply, format!("{command} was answered with something else"))
}
