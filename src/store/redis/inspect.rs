//! Looks at buckets from outside of any gateway, for an operator: reads them, finds them by their keys, forgets them.
//!
//! A connection of its own, with plain commands: it needs no script, and no more than GET and TIME to look. No gateway
//! hears of it; one that remembers a bucket as short asks for it again after a second at the latest.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, Value};

use super::codec::{key_name, state};
use super::connect::{reach, send};
use super::settings::Settings;
use crate::base::time::Timestamp;
use crate::limit::algorithm::State;
use crate::limit::key::BucketKey;
use crate::store::error::{Fault, StoreError};

/// How long one command may take: an operator waits longer than a request does.
const PATIENCE: Duration = Duration::from_secs(5);
/// How many keys Redis looks at for each SCAN: it answers nobody else meanwhile.
const BITE: usize = 1_000;

/// A connection that looks.
pub struct Inspector {
    connection: MultiplexedConnection,
    prefix: String,
}

impl std::fmt::Debug for Inspector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Inspector({})", self.prefix)
    }
}

impl Inspector {
    /// To be called on a runtime: that moves the bytes.
    pub async fn open(settings: &Settings) -> Result<Inspector, Fault> {
        let connected = reach(settings, None).await?;
        tokio::spawn(connected.driver);
        Ok(Inspector { connection: connected.connection, prefix: settings.prefix.clone() })
    }

    /// What is kept of these buckets, in their order, and a moment at which it was so.
    pub async fn states(&mut self, keys: &[BucketKey]) -> Result<(Timestamp, Vec<Option<State>>), Fault> {
        self.each(keys, &[]).await
    }

    /// The same, and from then on nothing is kept of them: they are full.
    pub async fn remove(&mut self, keys: &[BucketKey]) -> Result<(Timestamp, Vec<Option<State>>), Fault> {
        let forget = |key: &BucketKey| {
            let mut command = Cmd::new();
            command.arg("DEL").arg(key_name(&self.prefix, key));
            command
        };
        let commands: Vec<Cmd> = keys.iter().map(forget).collect();
        self.each(keys, &commands).await
    }

    /// The keys of all buckets that `is` is true of. `told` hears how many have been looked at so far.
    pub async fn find(
        &mut self,
        is: &dyn Fn(&BucketKey) -> bool,
        told: &mut dyn FnMut(u64),
    ) -> Result<Vec<BucketKey>, Fault> {
        let mut found = Vec::new();
        let (mut cursor, mut seen) = (b"0".to_vec(), 0);
        loop {
            let mut command = Cmd::new();
            command.arg("SCAN").arg(&cursor).arg("MATCH").arg(format!("{}:*", self.prefix)).arg("COUNT").arg(BITE);
            let Value::Array(mut parts) = self.one(&command).await? else { return Err(unexpected_reply("SCAN")) };
            let (Some(Value::Array(names)), Some(Value::BulkString(next))) = (parts.pop(), parts.pop()) else {
                return Err(unexpected_reply("SCAN"));
            };
            for name in names {
                let Value::BulkString(name) = name else { return Err(unexpected_reply("SCAN")) };
                // What is longer or shorter is no bucket, such as the list of gateways.
                let key = name.get(self.prefix.len() + 1..).and_then(|key| key.try_into().ok()).map(BucketKey);
                // Redis may tell a key twice.
                if let Some(key) = key.filter(|key| is(key) && !found.contains(key)) {
                    found.push(key);
                }
                seen += 1;
            }
            told(seen);
            if next == b"0" {
                return Ok(found);
            }
            cursor = next;
        }
    }

    /// Reads before the clock: no state lies ahead of its moment.
    async fn each(&mut self, keys: &[BucketKey], then: &[Cmd]) -> Result<(Timestamp, Vec<Option<State>>), Fault> {
        let mut commands: Vec<Cmd> = Vec::with_capacity(keys.len() + 1 + then.len());
        for key in keys {
            let mut command = Cmd::new();
            command.arg("GET").arg(key_name(&self.prefix, key));
            commands.push(command);
        }
        let mut time = Cmd::new();
        time.arg("TIME");
        commands.push(time);
        commands.extend(then.iter().cloned());
        let mut answers = self.all(&commands).await?.into_iter();
        let states = answers.by_ref().take(keys.len()).map(read).collect::<Result<Vec<_>, _>>()?;
        let now = answers.next().ok_or_else(|| unexpected_reply("TIME"))?.and_then(|value| moment(&value));
        answers.try_for_each(|answer| answer.map(drop))?;
        Ok((now?, states))
    }

    async fn one(&mut self, command: &Cmd) -> Result<Value, Fault> {
        let answer = tokio::time::timeout(PATIENCE, send(&mut self.connection, command)).await;
        Ok(answer.map_err(|_| overdue())??)
    }

    /// In one go, though another's charge may come between.
    async fn all(&mut self, commands: &[Cmd]) -> Result<Vec<Result<Value, Fault>>, Fault> {
        let mut pipeline = Pipeline::with_capacity(commands.len());
        for command in commands {
            pipeline.add_command(command.clone());
        }
        let sent = self.connection.send_packed_commands(&pipeline, 0, commands.len());
        let answers = tokio::time::timeout(PATIENCE, sent).await.map_err(|_| overdue())??;
        if answers.len() != commands.len() {
            return Err(unexpected_reply("a pipeline"));
        }
        Ok(answers.into_iter().map(|answer| answer.extract_error().map_err(Fault::from)).collect())
    }
}

/// What is no state is a bucket with nothing left, as it is to those who charge it.
fn read(answer: Result<Value, Fault>) -> Result<Option<State>, Fault> {
    match answer {
        Ok(value) => Ok(state(&value).unwrap_or_else(|_| Some(State::new()))),
        Err(fault) if fault.detail.contains("WRONGTYPE") => Ok(Some(State::new())),
        Err(fault) => Err(fault),
    }
}

fn moment(answer: &Value) -> Result<Timestamp, Fault> {
    let number = |value: &Value| match value {
        Value::BulkString(digits) => std::str::from_utf8(digits).ok()?.parse::<u64>().ok(),
        _ => None,
    };
    match answer {
        Value::Array(parts) => match (parts.first().and_then(number), parts.get(1).and_then(number)) {
            (Some(seconds), Some(micros)) => Ok(Timestamp(seconds.saturating_mul(1_000_000).saturating_add(micros))),
            _ => Err(unexpected_reply("TIME")),
        },
        _ => Err(unexpected_reply("TIME")),
    }
}

fn overdue() -> Fault {
    Fault::new(StoreError::Timeout, format!("no answer within {PATIENCE:?}"))
}

fn unexpected_reply(command: &str) -> Fault {
    Fault::new(StoreError::UnexpectedReply, format!("{command} was answered with something else"))
}
