//! Computes here, and writes only if no other client has written meanwhile: WATCH, MULTI, EXEC, and repeats this if
//! necessary.

use base::time::Clock;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, RedisError, Value};

use super::Failure;
use super::bucket::{Answer, KEPT, Limit, StoredBucket, count, milliseconds, names};
use super::commands::{hmget, hset};
use super::server::Server;

/// The commands that it sends, as INFO calls them.
pub const COMMANDS: &[&str] = &["watch", "hmget", "multi", "hset", "pexpire", "exec"];

/// The number of tries before a request gets no answer.
const TRIES: usize = 20;

#[derive(Debug)]
pub struct Watch {
    /// One connection for each caller, because a connection watches for only one transaction at a time.
    connections: Vec<MultiplexedConnection>,
    buckets: Vec<String>,
    limit: Limit,
    clock: Clock,
}

impl Watch {
    pub async fn open(server: &Server, limit: Limit, buckets: usize, callers: usize) -> Result<Watch, Failure> {
        let mut connections = Vec::new();
        for _ in 0..callers {
            connections.push(server.connect().await?);
        }
        Ok(Watch { connections, buckets: names(buckets), limit, clock: Clock::system() })
    }

    pub async fn take(&self, caller: usize, bucket: usize) -> Result<Answer, RedisError> {
        let (mut connection, bucket) = (self.connections[caller].clone(), &self.buckets[bucket]);
        for _ in 0..TRIES {
            let now = milliseconds(&self.clock);
            let mut watch = Cmd::new();
            watch.arg("WATCH").arg(bucket).query_async::<()>(&mut connection).await?;
            let found: StoredBucket = hmget(bucket).query_async(&mut connection).await?;
            let counted = count(self.limit, found, now);
            let mut transaction = Pipeline::new();
            transaction.atomic();
            if counted.answer == Answer::Granted {
                transaction.add_command(hset(bucket, counted.tokens, counted.since));
            }
            transaction.cmd("PEXPIRE").arg(bucket).arg(KEPT.0 / 1000);
            // Nil means that another client was faster, and nothing was written.
            if transaction.query_async::<Value>(&mut connection).await? != Value::Nil {
                return Ok(counted.answer);
            }
        }
        Ok(Answer::Failed)
    }
}
