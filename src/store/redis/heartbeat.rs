//! Tells the other gateways that this one is alive, through Redis, and hears how many there are.
//!
//! Nothing that Redis decides depends on it: it is for when Redis gives no answer, and each gateway grants its share.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Value};

use super::connect::{load, send};
use crate::base::time;
use crate::store::error::{Fault, StoreError};
use crate::store::fallback::FallbackShare;
use crate::store::report::{Event, GATEWAY_COUNTS, Report, Running};

const SCRIPT: &str = include_str!("heartbeat.lua");

/// How often it is told. The others divide by one more as soon as they have told once themselves.
const BEAT: Duration = Duration::from_secs(2);
/// In microseconds, as the script counts.
const COUNTS: u64 = GATEWAY_COUNTS.0;
/// Of a name or a hash, in bytes.
const LONGEST: usize = 64;
/// How long an answer is waited for.
const PATIENCE: Duration = Duration::from_secs(2);

/// One gateway among those that share a Redis.
#[derive(Debug)]
pub struct Heartbeat {
    /// Drawn by lot: nobody has to give it a name.
    name: [u8; 8],
    keys: [Vec<u8>; 2],
    running: Arc<Mutex<Running>>,
    local: Arc<FallbackShare>,
    report: Report,
}

impl Heartbeat {
    pub fn new(prefix: &str, running: Arc<Mutex<Running>>, local: Arc<FallbackShare>, report: Report) -> Heartbeat {
        // Shorter than any bucket's key.
        let keys = ["gateways", "running"].map(|list| format!("{prefix}:{list}").into_bytes());
        // The only randomness of the standard library that two machines cannot have in common.
        let name = RandomState::new().hash_one(prefix).to_le_bytes();
        Heartbeat { name, keys, running, local, report }
    }

    /// Tells and hears, for as long as the connection lasts. What goes wrong is left to those who ask for more.
    pub async fn keep(&self, mut connection: MultiplexedConnection) {
        let mut sha = String::new();
        loop {
            match time::timeout(PATIENCE, self.tell(&mut connection, &mut sha)).await {
                Ok(Ok(Some((alive, others)))) => {
                    self.report.tell(Event::Gateways { alive: self.local.heard(alive), others });
                }
                Ok(Err(fault)) => self.report.tell(Event::Unheard(fault)),
                Ok(Ok(None)) | Err(_) => {}
            }
            // Spread out, so that gateways which lost their server together do not tell together.
            time::sleep(BEAT.mul_f64(0.75 + fastrand::f64() / 2.0)).await;
        }
    }

    /// How many are alive, and what the others run. None: it could not be told this time.
    async fn tell(&self, connection: &mut MultiplexedConnection, sha: &mut String) -> Result<Heard, Fault> {
        let running = written(&self.running.lock());
        let [list, runs] = &self.keys;
        let command = |sha: &str| {
            let mut command = Cmd::new();
            command.arg("EVALSHA").arg(sha).arg(2).arg(list).arg(runs).arg(&self.name).arg(COUNTS).arg(&running);
            command
        };
        let reply = match send(connection, &command(sha)).await {
            // The first time, and when scripts were flushed.
            Err(error) if error.code() == Some("NOSCRIPT") => {
                *sha = load(connection, SCRIPT).await?;
                send(connection, &command(sha)).await
            }
            reply => reply,
        };
        match reply {
            // Flushed again in between: the next time will do.
            Err(error) if error.code() == Some("NOSCRIPT") => Ok(None),
            Ok(Value::Array(parts)) => match &parts[..] {
                [Value::Int(alive @ 1..), Value::BulkString(others)] => {
                    Ok(Some((u64::try_from(*alive).map_err(|_| garbled())?, read(others))))
                }
                _ => Err(garbled()),
            },
            Ok(_) => Err(garbled()),
            Err(error) => Err(error.into()),
        }
    }
}

type Heard = Option<(u64, Vec<Running>)>;

/// Each part behind its length.
fn written(running: &Running) -> Vec<u8> {
    let parts =
        [&running.host, &running.configuration].map(|part| part.as_bytes().get(..LONGEST).unwrap_or(part.as_bytes()));
    parts.iter().flat_map(|part| [&[u8::try_from(part.len()).unwrap_or(0)][..], *part].concat()).collect()
}

/// Those that tell what they run, in words that a gateway would use: whoever may write to Redis can write anything.
fn read(others: &[u8]) -> Vec<Running> {
    let mut rest = others;
    let mut read = Vec::new();
    while let Some((host, configuration, after)) = one(rest) {
        rest = after;
        let is_plain = |part: &[u8]| part.len() <= LONGEST && part.iter().all(|byte| byte.is_ascii_graphic());
        if is_plain(host) && is_plain(configuration) && !configuration.is_empty() {
            let [host, configuration] = [host, configuration].map(|part| String::from_utf8_lossy(part).into_owned());
            read.push(Running { host, configuration });
        }
    }
    read
}

fn one(bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (host, rest) = part(bytes.get(16..)?)?;
    let (configuration, rest) = part(rest)?;
    Some((host, configuration, rest))
}

fn part(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first()?;
    rest.split_at_checked(usize::from(*length))
}

fn garbled() -> Fault {
    Fault::new(StoreError::Garbled, "the list of gateways was answered with something else")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn running(host: &str, configuration: &str) -> Running {
        Running { host: host.to_owned(), configuration: configuration.to_owned() }
    }

    #[test]
    fn what_is_written_is_read_and_what_no_gateway_writes_is_left_out() {
        let list =
            |all: &[Running]| all.iter().flat_map(|one| [&[7; 16][..], &written(one)].concat()).collect::<Vec<u8>>();
        let (one, other) = (running("gw-1.example", "4b17"), running("", "9c17a0e2"));
        assert_eq!(read(&list(&[one.clone(), other.clone()])), [one.clone(), other.clone()]);
        for wrong in [running("a b", "1"), running("a\u{1b}[1m", "1"), running("é", "1"), running("a", "")] {
            let one = std::slice::from_ref(&one);
            assert_eq!(read(&list(&[&[wrong][..], one].concat())), one);
        }
        assert_eq!(read(&list(&[running(&"a".repeat(300), "1")])), [running(&"a".repeat(LONGEST), "1")]);
        // Cut anywhere, what was whole before the cut is read.
        let bytes = list(&[one.clone(), other]);
        for cut in 0..bytes.len() {
            let first = list(std::slice::from_ref(&one)).len();
            assert_eq!(read(&bytes[..cut]).len(), usize::from(cut >= first), "{cut}");
        }
    }
}
