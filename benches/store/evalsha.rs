//! Calls one script for each decision, as most users of Redis limit requests.

use base::time::Clock;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisError};

use super::Failure;
use super::bucket::{Answer, COST, KEPT, Limit, milliseconds, names};
use super::server::Server;

/// The commands that it sends, as INFO calls them.
pub const COMMANDS: &[&str] = &["evalsha"];

#[derive(Debug)]
pub struct EvalSha {
    connection: MultiplexedConnection,
    sha: String,
    buckets: Vec<String>,
    limit: Limit,
    clock: Clock,
}

impl EvalSha {
    pub async fn open(server: &Server, limit: Limit, buckets: usize) -> Result<EvalSha, Failure> {
        let mut connection = server.connect().await?;
        let mut load = Cmd::new();
        load.arg("SCRIPT").arg("LOAD").arg(include_str!("bucket.lua"));
        let sha = load.query_async(&mut connection).await?;
        Ok(EvalSha { connection, sha, buckets: names(buckets), limit, clock: Clock::system() })
    }

    pub async fn take(&self, bucket: usize) -> Result<Answer, RedisError> {
        let mut command = Cmd::new();
        command.arg("EVALSHA").arg(&self.sha).arg(1).arg(&self.buckets[bucket]).arg(milliseconds(&self.clock));
        command.arg(self.limit.per_second).arg(self.limit.burst).arg(COST).arg(KEPT.0 / 1000);
        let (granted, _wait): (u8, u64) = command.query_async(&mut self.connection.clone()).await?;
        Ok(if granted == 1 { Answer::Granted } else { Answer::Refused })
    }
}
