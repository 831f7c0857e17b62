//! Lists the implementations that are compared: how each is opened, called, and counted at the server.

use std::fmt;

use super::Failure;
use super::bucket::{Answer, Limit};
use super::commands;
use super::commands::Commands;
use super::evalsha;
use super::evalsha::EvalSha;
use super::ours;
use super::ours::Ours;
use super::server::Server;
use super::watch;
use super::watch::Watch;

/// So many buckets there are at most.
pub const BUCKETS: usize = 10_000;

/// Who is compared, in the order of the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Implementation {
    EvalSha,
    Commands,
    Watch,
    Ours,
}

impl Implementation {
    pub const ALL: [Implementation; 4] =
        [Implementation::EvalSha, Implementation::Commands, Implementation::Watch, Implementation::Ours];

    /// The commands that it sends, as INFO calls them.
    pub fn commands(self) -> &'static [&'static str] {
        match self {
            Implementation::EvalSha => evalsha::COMMANDS,
            Implementation::Commands => commands::COMMANDS,
            Implementation::Watch => watch::COMMANDS,
            Implementation::Ours => ours::COMMANDS,
        }
    }
}

impl fmt::Display for Implementation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Implementation::EvalSha => "EVALSHA",
            Implementation::Commands => "HMGET, HSET, EXPIRE",
            Implementation::Watch => "WATCH, MULTI, EXEC",
            Implementation::Ours => "Tollgate",
        })
    }
}

/// One that is connected.
#[derive(Debug)]
pub enum Subject {
    EvalSha(EvalSha),
    Commands(Commands),
    Watch(Watch),
    Ours(Ours),
}

impl Subject {
    pub async fn open(
        which: Implementation,
        server: &Server,
        limit: Limit,
        callers: usize,
    ) -> Result<Subject, Failure> {
        Ok(match which {
            Implementation::EvalSha => Subject::EvalSha(EvalSha::open(server, limit, BUCKETS).await?),
            Implementation::Commands => Subject::Commands(Commands::open(server, limit, BUCKETS).await?),
            Implementation::Watch => Subject::Watch(Watch::open(server, limit, BUCKETS, callers).await?),
            Implementation::Ours => Subject::Ours(Ours::open(server, limit, BUCKETS).await?),
        })
    }

    pub fn implementation(&self) -> Implementation {
        match self {
            Subject::EvalSha(_) => Implementation::EvalSha,
            Subject::Commands(_) => Implementation::Commands,
            Subject::Watch(_) => Implementation::Watch,
            Subject::Ours(_) => Implementation::Ours,
        }
    }

    pub async fn take(&self, caller: usize, bucket: usize) -> Answer {
        match self {
            Subject::EvalSha(script) => script.take(bucket).await.unwrap_or(Answer::Failed),
            Subject::Commands(commands) => commands.take(bucket).await.unwrap_or(Answer::Failed),
            Subject::Watch(watch) => watch.take(caller, bucket).await.unwrap_or(Answer::Failed),
            Subject::Ours(ours) => ours.take(bucket).await.unwrap_or(Answer::Failed),
        }
    }
}
