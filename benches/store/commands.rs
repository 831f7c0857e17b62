//! Reads a bucket, computes here and writes the bucket back: three commands. Other clients' commands may run in
//! between.

use base::time::Clock;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisError};

use super::Failure;
use super::bucket::{Answer, KEPT, Limit, StoredBucket, count, milliseconds, names};
use super::server::Server;

/// The commands that it sends, as INFO calls them.
pub const COMMANDS: &[&str] = &["hmget", "hset", "expire"];

#[derive(Debug)]
pub struct Commands {
    connection: MultiplexedConnection,
    buckets: Vec<String>,
    limit: Limit,
    clock: Clock,
}

impl Commands {
    pub async fn open(server: &Server, limit: Limit, buckets: usize) -> Result<Commands, Failure> {
        let connection = server.connect().await?;
        Ok(Commands { connection, buckets: names(buckets), limit, clock: Clock::system() })
    }

    pub async fn take(&self, bucket: usize) -> Result<Answer, RedisError> {
        let (mut connection, bucket) = (self.connection.clone(), &self.buckets[bucket]);
        let now = milliseconds(&self.clock);
        let found: StoredBucket = hmget(bucket).query_async(&mut connection).await?;
        let counted = count(self.limit, found, now);
        // A refusal is written too. Otherwise the time before it would be refilled again.
        hset(bucket, counted.tokens, counted.since).query_async::<()>(&mut connection).await?;
        let mut expire = Cmd::new();
        expire.arg("EXPIRE").arg(bucket).arg(KEPT.ceil_seconds()).query_async::<()>(&mut connection).await?;
        Ok(counted.answer)
    }
}

pub fn hmget(bucket: &str) -> Cmd {
    let mut command = Cmd::new();
    command.arg("HMGET").arg(bucket).arg("tokens").arg("since");
    command
}

pub fn hset(bucket: &str, tokens: f64, since: u64) -> Cmd {
    let mut command = Cmd::new();
    command.arg("HSET").arg(bucket).arg("tokens").arg(tokens).arg("since").arg(since);
    command
}
