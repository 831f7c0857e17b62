//! Announces a gateway in Redis, and lists the other gateways.

use std::slice::from_ref;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Value};

use super::bucket_reads;
use super::handshake::send;
use super::noscript::{is_noscript, load_if_unknown};
use crate::error::{Fault, StoreError};
use crate::events::{RunningGateway, gateway_ttl};
use crate::remote::heartbeat::STATE_FORMAT;
use crate::remote::transport::LiveGateways;

const SCRIPT: &str = include_str!("gateway_heartbeat.lua");

/// The maximum length of a host name, or of the hash of a configuration, in bytes.
const MAX_LENGTH: usize = 64;

/// The names of the list of gateways, and of the list of the formats that they read.
const GATEWAYS: &str = "gateways";
const FORMATS: &str = "formats";

/// Sends one heartbeat, and returns the live gateways. `None` if the next heartbeat must load the script again. `sha`
/// is the name of the script on the server, and is empty before the first heartbeat.
///
/// # Errors
/// When the connection fails, or the server refuses the script or answers with something else.
pub(crate) async fn beat(
    connection: &mut MultiplexedConnection,
    sha: &mut String,
    prefix: &str,
    name: [u8; 8],
    this_gateway: &RunningGateway,
) -> Result<Option<LiveGateways>, Fault> {
    // These keys are shorter than any bucket's key, so they are never read as buckets.
    let lists = [GATEWAYS, "running", FORMATS].map(|list| format!("{prefix}:{list}").into_bytes());
    let running = encode(this_gateway);
    let command = |sha: &str| {
        let mut command = Cmd::new();
        command.arg("EVALSHA").arg(sha).arg(lists.len());
        for list in &lists {
            command.arg(list);
        }
        command.arg(&name).arg(gateway_ttl().0).arg(&running).arg(&[STATE_FORMAT]);
        command
    };
    let mut reply = send(connection, &command(sha)).await;
    // The script is unknown at the first heartbeat, or after the server has lost its scripts.
    if load_if_unknown(connection, sha, from_ref(&reply), || SCRIPT.to_owned()).await? {
        reply = send(connection, &command(sha)).await;
    }
    match reply {
        // The server has lost its scripts again.
        reply if is_noscript(&reply) => Ok(None),
        Ok(Value::Array(parts)) => match &parts[..] {
            [Value::Int(alive @ 1..), Value::BulkString(others), Value::Int(older)] => Ok(Some(LiveGateways {
                alive: u64::try_from(*alive).map_err(|_| unexpected_reply())?,
                // The lists are separate, so a gateway that has just gone can still have a format.
                older: u64::try_from(*older).unwrap_or_default(),
                others: decode(others),
            })),
            _ => Err(unexpected_reply()),
        },
        Ok(_) => Err(unexpected_reply()),
        Err(error) => Err(error.into()),
    }
}

/// Returns the commands that read which gateways are alive, and which formats they read.
pub(super) fn lists(prefix: &str) -> [Cmd; 3] {
    let get = |list: &str| Cmd::new().arg("GET").arg(format!("{prefix}:{list}")).clone();
    [get(GATEWAYS), get(FORMATS), bucket_reads::time()]
}

/// Returns how many live gateways announce no format, or one older than `format`. `answers` are those to [`lists`].
///
/// # Errors
/// When the server has refused a command, or answered with something else.
pub(super) fn count_older(answers: Vec<Result<Value, Fault>>, format: u8) -> Result<usize, Fault> {
    let answers: Vec<Value> = answers.into_iter().collect::<Result<_, _>>()?;
    let [gateways, formats, time] = &answers[..] else { return Err(unexpected_reply()) };
    let list = |value: &Value| match value {
        Value::BulkString(list) => list.clone(),
        _ => Vec::new(),
    };
    let (gateways, formats, now) = (list(gateways), list(formats), bucket_reads::moment(time)?);
    let (gateways, formats) = (gateways.as_chunks::<16>().0, formats.as_chunks::<17>().0);
    let is_alive = |entry: &[u8; 16]| {
        let heard = entry.last_chunk::<8>().map_or(0, |heard| u64::from_le_bytes(*heard));
        now.0.abs_diff(heard) < gateway_ttl().0
    };
    let reads = |name: &[u8]| formats.iter().any(|entry| entry.starts_with(name) && entry.last() >= Some(&format));
    Ok(gateways.iter().filter(|entry| is_alive(entry)).filter(|entry| !reads(entry.split_at(8).0)).count())
}

/// Encodes an announcement. Each part is preceded by one byte with its length.
fn encode(running: &RunningGateway) -> Vec<u8> {
    let parts = [&running.host, &running.configuration]
        .map(|part| part.as_bytes().get(..MAX_LENGTH).unwrap_or(part.as_bytes()));
    parts.iter().flat_map(|part| [&[u8::try_from(part.len()).unwrap_or(0)][..], *part].concat()).collect()
}

/// Decodes the gateways that announced a configuration. Anybody with access to Redis can write to the list, so
/// implausible entries are left out.
fn decode(others: &[u8]) -> Vec<RunningGateway> {
    let mut rest = others;
    let mut read = Vec::new();
    while let Some((host, configuration, after)) = entry(rest) {
        rest = after;
        let is_plain = |part: &[u8]| part.len() <= MAX_LENGTH && part.iter().all(|byte| byte.is_ascii_graphic());
        if is_plain(host) && is_plain(configuration) && !configuration.is_empty() {
            let [host, configuration] = [host, configuration].map(|part| String::from_utf8_lossy(part).into_owned());
            read.push(RunningGateway { host, configuration });
        }
    }
    read
}

fn entry(bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (host, rest) = part(bytes.get(16..)?)?;
    let (configuration, rest) = part(rest)?;
    Some((host, configuration, rest))
}

fn part(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first()?;
    rest.split_at_checked(usize::from(*length))
}

fn unexpected_reply() -> Fault {
    Fault::new(StoreError::UnexpectedReply, "the list of gateways was answered with something else")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn running(host: &str, configuration: &str) -> RunningGateway {
        RunningGateway { host: host.to_owned(), configuration: configuration.to_owned() }
    }

    #[test]
    fn a_gateway_that_announces_no_format_or_an_older_one_is_older() {
        let now = 1_800_000_000_000_000_u64;
        let entry = |name: u8, heard: u64| [[name; 8], heard.to_le_bytes()].concat();
        let gateways = [entry(1, now), entry(2, now - 1_000_000), entry(3, now), entry(4, now - 60_000_000)].concat();
        let format = |name, format: u8| [&entry(name, now)[..], &[format]].concat();
        let formats = [format(1, 1), format(3, 0)].concat();
        let time = Value::Array(["1800000000", "0"].map(|part| Value::BulkString(part.into())).to_vec());
        let count = |gateways, formats| count_older(vec![Ok(gateways), Ok(formats), Ok(time.clone())], 1);
        assert_eq!(count(Value::BulkString(gateways.clone()), Value::BulkString(formats)), Ok(2));
        assert_eq!(count(Value::BulkString(gateways), Value::Nil), Ok(3));
        assert_eq!(count(Value::Nil, Value::Nil), Ok(0));
    }

    #[test]
    fn heartbeats_are_read_back_and_invalid_ones_ignored() {
        let list = |all: &[RunningGateway]| {
            all.iter().flat_map(|one| [&[7; 16][..], &encode(one)].concat()).collect::<Vec<u8>>()
        };
        let (one, other) = (running("gw-1.example", "4b17"), running("", "9c17a0e2"));
        assert_eq!(decode(&list(&[one.clone(), other.clone()])), [one.clone(), other.clone()]);
        for wrong in [running("a b", "1"), running("a\u{1b}[1m", "1"), running("é", "1"), running("a", "")] {
            let one = from_ref(&one);
            assert_eq!(decode(&list(&[&[wrong][..], one].concat())), one);
        }
        assert_eq!(decode(&list(&[running(&"a".repeat(300), "1")])), [running(&"a".repeat(MAX_LENGTH), "1")]);
        // The entries before the end of a cut list are decoded.
        let bytes = list(&[one.clone(), other]);
        for cut in 0..bytes.len() {
            let first = list(from_ref(&one)).len();
            assert_eq!(decode(&bytes[..cut]).len(), usize::from(cut >= first), "{cut}");
        }
    }
}
