//! Reads, finds and removes buckets in Redis for an operator, without a gateway.
//!
//! Giving back needs a script, because the amount depends on what is spent. Any other change is written only if the bucket has
//! not changed since it was read. A gateway that has cached a bucket as empty notices a change after at most a second.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, Value};

use super::address::resolve_once;
use super::bucket_reads::{self, moment, stored};
use super::codec::{add_grant, key_name};
use super::gateway_heartbeat;
use super::handshake::{load, reach, send};
use super::script;
use super::settings::Settings;
use crate::ban_list::BanList;
use crate::bucket_change::BucketChange;
use crate::error::{Fault, StoreError};
use crate::remote::login::CurrentLogin;
use crate::remote::transport::ReadStates;
use crate::reply::GivenBack;
use base::host_port::HostPort;
use base::time::Timestamp;
use ledger::algorithm::{Algorithm, AlgorithmKind, Entry, State};
use ledger::bucket_key::BucketKey;
use ledger::cost::Cost;

/// How long one command may take. An operator can wait longer than a request.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(5);
/// The number of keys that Redis visits for each SCAN, while other clients wait.
const SCAN_COUNT: usize = 1_000;
/// How often a change is tried on a bucket that requests keep changing.
const ATTEMPTS: usize = 100;

/// A connection to Redis, for an operator who reads, finds and removes buckets.
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
    /// Connects to the server for an operator. Must be called on a tokio runtime.
    ///
    /// # Errors
    ///
    /// When the server cannot be reached, or rejects the login.
    pub async fn open(settings: &Settings) -> Result<Inspector, Fault> {
        let login = Arc::new(CurrentLogin::new(settings.login.clone()));
        let address = resolve_once(settings, &login).await?;
        Inspector::open_at(&address, settings, &login).await
    }

    /// Connects as [`Inspector::open`] does, but to the server at this address.
    ///
    /// # Errors
    ///
    /// In the same cases as [`Inspector::open`].
    pub(crate) async fn open_at(
        address: &HostPort,
        settings: &Settings,
        login: &Arc<CurrentLogin>,
    ) -> Result<Inspector, Fault> {
        let opened = reach(settings, address, login).await?;
        tokio::spawn(opened.driver);
        Ok(Inspector { connection: opened.connection, prefix: settings.prefix.clone() })
    }

    /// Returns an inspector on the same connection, for buckets whose keys begin with this prefix.
    pub(crate) fn with_prefix(&self, prefix: &str) -> Inspector {
        Inspector { connection: self.connection.clone(), prefix: prefix.to_owned() }
    }

    /// Reads the states of these buckets. Returns the time at which they were read, and the states in the order of the
    /// keys. `None` means that the bucket is full.
    ///
    /// # Errors
    ///
    /// When Redis gives no answer, or refuses a command.
    pub async fn states(&mut self, keys: &[BucketKey]) -> Result<(Timestamp, Vec<Option<State>>), Fault> {
        self.each(keys, &[]).await
    }

    /// Removes these buckets, which makes them full. Returns the time and the states before the removal, as
    /// [`Inspector::states`] does.
    ///
    /// # Errors
    ///
    /// When Redis gives no answer, or refuses a command.
    pub async fn remove(&mut self, keys: &[BucketKey]) -> Result<(Timestamp, Vec<Option<State>>), Fault> {
        let forget = |key: &BucketKey| {
            let mut command = Cmd::new();
            command.arg("DEL").arg(key_name(&self.prefix, key));
            command
        };
        let commands: Vec<Cmd> = keys.iter().map(forget).collect();
        self.each(keys, &commands).await
    }

    /// Gives back up to `amount` of what is spent in each of these buckets. Returns the time, and the states before and
    /// after that.
    ///
    /// # Errors
    ///
    /// When Redis gives no answer, or refuses a command.
    pub async fn give_back(
        &mut self,
        buckets: &[(BucketKey, AlgorithmKind)],
        amount: Cost,
    ) -> Result<(Timestamp, Vec<GivenBack>), Fault> {
        let loaded = tokio::time::timeout(COMMAND_TIMEOUT, load(&mut self.connection, &script::give_back())).await;
        let sha = loaded.map_err(|_| overdue())??;
        let mut command = Cmd::new();
        command.arg("EVALSHA").arg(sha).arg(buckets.len());
        for (key, _) in buckets {
            command.arg(key_name(&self.prefix, key));
        }
        let mut text = Vec::with_capacity(18 * buckets.len());
        for (_, kind) in buckets {
            add_grant(&mut text, *kind, amount);
        }
        command.arg(text);
        let Value::Array(reply) = self.one(&command).await? else { return Err(unexpected_reply("EVALSHA")) };
        let Some((time, states)) = reply.split_first().filter(|(_, states)| states.len() == 2 * buckets.len()) else {
            return Err(unexpected_reply("EVALSHA"));
        };
        let pairs = states.as_chunks::<2>().0.iter().map(|[before, after]| {
            Ok(GivenBack { before: stored(Ok(before.clone()))?, after: stored(Ok(after.clone()))? })
        });
        Ok((moment(time)?, pairs.collect::<Result<_, Fault>>()?))
    }

    /// Changes each of these buckets. Returns the time, and the states before and after.
    ///
    /// # Errors
    ///
    /// When Redis gives no answer or refuses a command, or if a bucket changes too often.
    pub async fn change(
        &mut self,
        keys: &[BucketKey],
        change: &BucketChange<'_>,
    ) -> Result<(Timestamp, Vec<GivenBack>), Fault> {
        let loaded = tokio::time::timeout(COMMAND_TIMEOUT, load(&mut self.connection, script::REPLACE)).await;
        let sha = loaded.map_err(|_| overdue())??;
        let (mut latest, mut changed) = (Timestamp(0), Vec::with_capacity(keys.len()));
        for key in keys {
            let (now, states) = self.change_one(&sha, *key, change).await?;
            latest = latest.max(now);
            changed.push(states);
        }
        Ok((latest, changed))
    }

    async fn change_one(
        &mut self,
        sha: &str,
        key: BucketKey,
        change: &BucketChange<'_>,
    ) -> Result<(Timestamp, GivenBack), Fault> {
        for _ in 0..ATTEMPTS {
            let (now, mut states) = self.each(&[key], &[]).await?;
            let before = states.pop().flatten();
            let Some(Entry { state, kept_until }) = change(&key, before.as_deref(), now) else {
                return Ok((now, GivenBack { before: before.clone(), after: before }));
            };
            let mut command = Cmd::new();
            command.arg("EVALSHA").arg(sha).arg(1).arg(key_name(&self.prefix, &key));
            command.arg(bytes(before.as_deref().unwrap_or_default())).arg(bytes(&state));
            command.arg(kept_until.since(now).0 / 1_000 + 1);
            if self.one(&command).await? == Value::Int(1) {
                return Ok((now, GivenBack { before, after: Some(state) }));
            }
        }
        Err(Fault::new(StoreError::Timeout, format!("the bucket has changed {ATTEMPTS} times in between")))
    }

    /// Returns how many live gateways announce no format of states, or one older than `format`.
    ///
    /// # Errors
    ///
    /// When Redis gives no answer, or refuses a command.
    pub async fn count_older_gateways(&mut self, format: u8) -> Result<usize, Fault> {
        let answers = self.all(&gateway_heartbeat::lists(&self.prefix)).await?;
        gateway_heartbeat::count_older(answers, format)
    }

    /// Returns the keys of all buckets for which `is` returns true. Calls `progress` with the number of buckets visited
    /// so far.
    ///
    /// # Errors
    ///
    /// When Redis gives no answer, or refuses a command.
    pub async fn find(
        &mut self,
        is: &dyn Fn(&BucketKey) -> bool,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Vec<BucketKey>, Fault> {
        let prefix = self.prefix.clone();
        self.scan(&format!("{prefix}:*"), &|name| bucket_of(name, &prefix).filter(is), progress).await
    }

    /// Lists the running bans of the limit whose buckets have the keys for which `is` returns true. Calls `progress` with the
    /// number of buckets visited so far.
    ///
    /// # Errors
    ///
    /// When Redis gives no answer, or refuses a command.
    pub async fn list_bans(
        &mut self,
        limit: &Algorithm,
        is: &dyn Fn(&BucketKey) -> bool,
        progress: &mut dyn FnMut(u64),
    ) -> Result<BanList, Fault> {
        let (prefix, mut list) = (self.prefix.clone(), BanList::default());
        let bucket = |name: &[u8]| bucket_of(name, &prefix).filter(is);
        self.add_bans(&mut list, limit, &format!("{prefix}:*"), &bucket, progress).await?;
        Ok(list)
    }

    /// Adds to a list the running bans of the buckets whose names in Redis match a pattern. `bucket` parses a name.
    ///
    /// # Errors
    ///
    /// In the same cases as [`Inspector::list_bans`].
    pub async fn add_bans(
        &mut self,
        list: &mut BanList,
        limit: &Algorithm,
        pattern: &str,
        bucket: &dyn Fn(&[u8]) -> Option<BucketKey>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), Fault> {
        let mut cursor = b"0".to_vec();
        loop {
            let (next, names) = self.page(pattern, &cursor).await?;
            list.visited += names.len() as u64;
            let (keys, names): (Vec<BucketKey>, Vec<Vec<u8>>) =
                names.into_iter().filter_map(|name| Some((bucket(&name)?, name))).unzip();
            let (now, states) = self.each_named(&names, &[]).await?;
            // The nodes of a cluster have clocks of their own.
            list.at = list.at.now.max(now).into();
            for (key, state) in keys.into_iter().zip(states) {
                list.add(key, limit, state.as_deref(), now.into());
            }
            progress(list.visited);
            if next == b"0" {
                return Ok(());
            }
            cursor = next;
        }
    }

    /// Returns the buckets whose names in Redis match a pattern. `bucket` parses a name.
    ///
    /// # Errors
    ///
    /// In the same cases as [`Inspector::find`].
    pub async fn scan(
        &mut self,
        pattern: &str,
        bucket: &dyn Fn(&[u8]) -> Option<BucketKey>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Vec<BucketKey>, Fault> {
        let mut found = Vec::new();
        let (mut cursor, mut seen) = (b"0".to_vec(), 0);
        loop {
            let (next, names) = self.page(pattern, &cursor).await?;
            for name in names {
                // A key of another length is not a bucket. SCAN may return a key twice.
                if let Some(key) = bucket(&name).filter(|key| !found.contains(key)) {
                    found.push(key);
                }
                seen += 1;
            }
            progress(seen);
            if next == b"0" {
                return Ok(found);
            }
            cursor = next;
        }
    }

    /// Returns some names that match a pattern, and the cursor of the next ones. The last cursor is `0`, as the first.
    async fn page(&mut self, pattern: &str, cursor: &[u8]) -> Result<(Vec<u8>, Vec<Vec<u8>>), Fault> {
        let mut command = Cmd::new();
        command.arg("SCAN").arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(SCAN_COUNT);
        let Value::Array(mut parts) = self.one(&command).await? else { return Err(unexpected_reply("SCAN")) };
        let (Some(Value::Array(names)), Some(Value::BulkString(next))) = (parts.pop(), parts.pop()) else {
            return Err(unexpected_reply("SCAN"));
        };
        let name = |name| match name {
            Value::BulkString(name) => Ok(name),
            _ => Err(unexpected_reply("SCAN")),
        };
        Ok((next, names.into_iter().map(name).collect::<Result<_, _>>()?))
    }

    /// Reads the states of buckets, and runs the commands in `then`. The time is read after the states.
    async fn each(&mut self, keys: &[BucketKey], then: &[Cmd]) -> Result<(Timestamp, Vec<Option<State>>), Fault> {
        let names: Vec<Vec<u8>> = keys.iter().map(|key| key_name(&self.prefix, key)).collect();
        self.each_named(&names, then).await
    }

    /// Reads states as [`Inspector::each`] does, of buckets by their names in Redis.
    async fn each_named(&mut self, keys: &[Vec<u8>], then: &[Cmd]) -> Result<(Timestamp, Vec<Option<State>>), Fault> {
        let mut commands = bucket_reads::named(keys);
        commands.extend(then.iter().cloned());
        let mut answers = self.all(&commands).await?.into_iter();
        let ReadStates { now, states } = bucket_reads::parse(answers.by_ref().take(keys.len() + 1), keys.len())?;
        answers.try_for_each(|answer| answer.map(drop))?;
        Ok((now, states))
    }

    async fn one(&mut self, command: &Cmd) -> Result<Value, Fault> {
        let answer = tokio::time::timeout(COMMAND_TIMEOUT, send(&mut self.connection, command)).await;
        Ok(answer.map_err(|_| overdue())??)
    }

    /// Sends all commands in one pipeline.
    async fn all(&mut self, commands: &[Cmd]) -> Result<Vec<Result<Value, Fault>>, Fault> {
        let mut pipeline = Pipeline::with_capacity(commands.len());
        for command in commands {
            pipeline.add_command(command.clone());
        }
        let sent = self.connection.send_packed_commands(&pipeline, 0, commands.len());
        let answers = tokio::time::timeout(COMMAND_TIMEOUT, sent).await.map_err(|_| overdue())??;
        if answers.len() != commands.len() {
            return Err(unexpected_reply("a pipeline"));
        }
        Ok(answers.into_iter().map(|answer| answer.extract_error().map_err(Fault::from)).collect())
    }
}

/// Parses the name of a bucket in Redis. A key of another length is not a bucket.
fn bucket_of(name: &[u8], prefix: &str) -> Option<BucketKey> {
    Some(BucketKey(name.get(prefix.len() + 1..)?.try_into().ok()?))
}

/// Packs a state as Redis stores it.
fn bytes(state: &[u64]) -> Vec<u8> {
    state.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn overdue() -> Fault {
    Fault::new(StoreError::Timeout, format!("no answer within {COMMAND_TIMEOUT:?}"))
}

fn unexpected_reply(command: &str) -> Fault {
    Fault::new(StoreError::UnexpectedReply, format!("{command} was answered with something else"))
}
