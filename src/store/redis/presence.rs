//! Tells the other gateways that this one is alive, through Redis, and hears how many there are.
//!
//! Nothing that Redis decides depends on it: it is for when Redis gives no answer, and each gateway grants its share.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Value};

use super::super::local::Local;
use super::super::{Event, Fault, Report, StoreError};
use super::connect::{load, send};

const SCRIPT: &str = include_str!("presence.lua");

/// How often it is told. The others divide by one more as soon as they have told once themselves.
const BEAT: Duration = Duration::from_secs(2);
/// For how long a gateway counts that is not heard of any more, in microseconds: three times in vain, and a little.
const COUNTS: u64 = 7_000_000;
/// How long an answer is waited for.
const PATIENCE: Duration = Duration::from_secs(2);

/// One gateway among those that share a Redis.
#[derive(Debug)]
pub struct Presence {
    /// Drawn by lot: nobody has to give it a name.
    name: [u8; 8],
    key: Vec<u8>,
    local: Arc<Local>,
    report: Report,
}

impl Presence {
    pub fn new(prefix: &str, local: Arc<Local>, report: Report) -> Presence {
        // Shorter than any bucket's key.
        let key = format!("{prefix}:gateways").into_bytes();
        // The only randomness of the standard library that two machines cannot have in common.
        let name = RandomState::new().hash_one(prefix).to_le_bytes();
        Presence { name, key, local, report }
    }

    /// Tells and hears, for as long as the connection lasts. What goes wrong is left to those who ask for more.
    pub async fn keep(&self, mut connection: MultiplexedConnection) {
        let mut sha = String::new();
        loop {
            match tokio::time::timeout(PATIENCE, self.tell(&mut connection, &mut sha)).await {
                Ok(Ok(gateways)) => self.report.tell(Event::Gateways(self.local.heard(gateways))),
                Ok(Err(fault)) => self.report.tell(Event::Unheard(fault)),
                Err(_) => {}
            }
            // Spread out, so that gateways which lost their server together do not tell together.
            tokio::time::sleep(BEAT.mul_f64(0.75 + fastrand::f64() / 2.0)).await;
        }
    }

    async fn tell(&self, connection: &mut MultiplexedConnection, sha: &mut String) -> Result<u64, Fault> {
        let command = |sha: &str| {
            let mut command = Cmd::new();
            command.arg("EVALSHA").arg(sha).arg(1).arg(&self.key).arg(&self.name).arg(COUNTS);
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
            Err(error) if error.code() == Some("NOSCRIPT") => Ok(self.local.gateways()),
            Ok(Value::Int(gateways @ 1..)) => u64::try_from(gateways).map_err(|_| garbled()),
            Ok(_) => Err(garbled()),
            Err(error) => Err(error.into()),
        }
    }
}

fn garbled() -> Fault {
    Fault::new(StoreError::Garbled, "the list of gateways was answered with something else")
}
