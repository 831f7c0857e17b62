//! Runs one call as one transaction: lock the buckets, read the clock, decide, write, commit.
//!
//! It has two messages, each with several statements: the server answers a message once, and for a call of one bucket messages
//! are what takes the time. Each statement of a message begins when the one before has ended, and none runs after one that failed.
//!
//! Absent rows are inserted first and all are locked in the order of their keys, so no two gateways wait for each other. The
//! clock is read by a statement of its own after the locks: no earlier transaction on these buckets has a later time.

use std::time::Duration;

use tokio_postgres::{Client, Error, SimpleQueryMessage, SimpleQueryRow};

use super::batch::{Batch, BatchDecision, StoredBucket, Writes};
use super::errors::{proves_rollback, unexpected_reply};
use super::literals::{byte_strings, decoded, integers};
use super::settings::{Durability, Settings};
use crate::base::time::{Clock, Micros, Timestamp};
use crate::limit::bucket_key::BucketKey;
use crate::limit::charge::Plan;
use crate::store::error::{Fault, StoreError};
use crate::store::remote::transport::Reply;

pub const CLOCK: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";

/// How often a row may vanish between its insertion and its lock, because it is cleaned up, before the call gives up.
const MOST_VANISHED: usize = 3;

/// After so many transactions that found a row for every bucket, the next one does not insert any.
const QUIET: u8 = 16;

/// What the texts of the statements are made of. None is prepared by name: behind a pooler the next transaction can be on
/// another server process.
#[derive(Debug)]
pub struct Statements {
    begin: String,
    /// The table, quoted.
    table: String,
    timeout: Micros,
}

/// Whether buckets may have no row yet, as far as one connection knows. A transaction that does not insert rows is shorter;
/// one that finds a row missing is repeated with the insertion.
#[derive(Debug, Default)]
pub struct NewRows {
    /// Transactions since the last one that found a bucket without a row.
    quiet: u8,
}

impl NewRows {
    fn are_likely(&self) -> bool {
        self.quiet < QUIET
    }

    fn found(&mut self) {
        self.quiet = 0;
    }

    fn not_found(&mut self) {
        self.quiet = self.quiet.saturating_add(1);
    }
}

/// Why a transaction has no result.
enum Undone {
    /// A bucket had no row, and none was inserted. Nothing has changed.
    Absent,
    /// The row of a bucket was removed before it was locked. Nothing has changed.
    Vanished,
    /// The server proves that nothing has changed, because of other transactions.
    Conflict(Fault),
    Failed(Fault),
}

impl From<Error> for Undone {
    fn from(error: Error) -> Undone {
        if proves_rollback(&error) { Undone::Conflict(error.into()) } else { Undone::Failed(error.into()) }
    }
}

impl From<Fault> for Undone {
    fn from(fault: Fault) -> Undone {
        Undone::Failed(fault)
    }
}

impl Statements {
    pub fn new(settings: &Settings) -> Statements {
        Statements { begin: begin(settings), table: settings.table.quoted(), timeout: settings.timeout }
    }

    /// Begins a transaction, inserts the rows of these buckets where there is none and `insert` is set, locks them all, and reads
    /// the clock.
    fn lock(&self, keys: &[&[u8]], insert: bool) -> String {
        let Statements { begin, table, .. } = self;
        let keys = byte_strings(keys);
        let inserted = if insert {
            format!(
                "INSERT INTO {table} (key) SELECT key FROM unnest({keys}) AS key ORDER BY key ON CONFLICT DO NOTHING; "
            )
        } else {
            String::new()
        };
        format!(
            "{begin}; {inserted}SELECT encode(key, 'hex'), encode(state, 'hex') FROM {table} WHERE key = ANY({keys}) \
             ORDER BY key FOR UPDATE; {CLOCK}"
        )
    }

    /// Writes locked rows, removes those that stay without a state, and commits.
    fn write(&self, writes: &Writes) -> String {
        let table = &self.table;
        let Writes { keys, states, until, unused } = writes;
        let (keys, states, until) = (byte_strings(keys), byte_strings(states), integers(until));
        let removed = if unused.is_empty() {
            String::new()
        } else {
            format!("DELETE FROM {table} WHERE key = ANY({}) AND state IS NULL; ", byte_strings(unused))
        };
        // By its second condition few rows are read; to join all of them would look cheaper to the planner.
        format!(
            "UPDATE {table} AS bucket SET state = new.state, until = new.until \
             FROM unnest({keys}, {states}, {until}) AS new (key, state, until) \
             WHERE bucket.key = new.key AND bucket.key = ANY({keys}); {removed}COMMIT"
        )
    }

    /// Decides plans. A conflict that proves a rollback is tried once more, if there is time.
    ///
    /// # Errors
    ///
    /// Why nothing was decided; or that the connection ended, and it is unknown what was.
    pub async fn take(
        &self,
        client: &Client,
        new_rows: &mut NewRows,
        plans: &[&Plan],
        clock: &Clock,
    ) -> Result<Reply, Fault> {
        let started = clock.now();
        let batch = Batch::new(plans);
        let (mut conflicts, mut vanished) = (0, 0);
        loop {
            let fault = match self.attempt(client, new_rows, &batch, clock.injected()).await {
                Ok(reply) => return Ok(reply),
                Err(Undone::Failed(fault)) => return Err(fault),
                Err(Undone::Conflict(fault)) => {
                    conflicts += 1;
                    fault
                }
                // The next attempt inserts it.
                Err(Undone::Absent) => continue,
                Err(Undone::Vanished) => {
                    vanished += 1;
                    Fault::new(StoreError::Busy, "rows were removed before they were locked")
                }
            };
            if conflicts > 1 || vanished > MOST_VANISHED || clock.now().since(started) >= self.timeout {
                return Err(fault);
            }
        }
    }

    async fn attempt(
        &self,
        client: &Client,
        new_rows: &mut NewRows,
        batch: &Batch<'_>,
        injected: Option<Timestamp>,
    ) -> Result<Reply, Undone> {
        let undone = match self.locked(client, new_rows, batch).await {
            Ok((rows, now)) => match batch.decide(rows, injected.unwrap_or(now)) {
                Ok(BatchDecision { reply, writes }) => match self.finish(client, &writes).await {
                    Ok(()) => return Ok(reply),
                    Err(undone) => undone,
                },
                Err(fault) => fault.into(),
            },
            Err(undone) => undone,
        };
        match undone {
            Undone::Failed(fault) if fault.ends_connection() => Err(fault.into()),
            undone => {
                // Where COMMIT has failed, this is a warning in the log of the server, and nothing else.
                client.batch_execute("ROLLBACK").await?;
                Err(undone)
            }
        }
    }

    /// The rows of the batch, locked, and the time after that.
    async fn locked(
        &self,
        client: &Client,
        new_rows: &mut NewRows,
        batch: &Batch<'_>,
    ) -> Result<(Vec<StoredBucket>, Timestamp), Undone> {
        let insert = new_rows.are_likely();
        let answers = answers(client.simple_query(&self.lock(&batch.keys(), insert)).await?);
        let [.., locked, clock] = &answers[..] else { return Err(unexpected_reply("the lock of the buckets").into()) };
        let rows = locked.iter().map(locked_bucket).collect::<Result<Vec<_>, Fault>>()?;
        let now = clock.first().and_then(|row| row.try_get(0).ok()??.parse().ok()).map(Timestamp);
        let now = now.ok_or_else(|| unexpected_reply("the clock"))?;
        let all = rows.len() >= batch.len();
        // A row without a state has just been inserted.
        if !all || rows.iter().any(|row| row.packed.is_none()) {
            new_rows.found();
        } else {
            new_rows.not_found();
        }
        match (all, insert) {
            (true, _) => Ok((rows, now)),
            (false, true) => Err(Undone::Vanished),
            (false, false) => Err(Undone::Absent),
        }
    }

    async fn finish(&self, client: &Client, writes: &Writes) -> Result<(), Undone> {
        if writes.keys.is_empty() {
            // Unlike a commit it does not wait for the disk.
            return Ok(client.batch_execute("ROLLBACK").await?);
        }
        let messages = client.simple_query(&self.write(writes)).await?;
        match messages.first() {
            Some(SimpleQueryMessage::CommandComplete(written)) if *written == writes.keys.len() as u64 => Ok(()),
            _ => Err(unexpected_reply("the write of the buckets").into()),
        }
    }
}

/// Begins a transaction. The settings end with it, so that a pooler can give the connection to others.
///
/// `lock_timeout` bounds the wait for each row, `statement_timeout` that for all rows: those that are locked already must not be
/// held for longer. Neither bounds a COMMIT, nor does `transaction_timeout` of PostgreSQL 17: nothing interrupts the flush of its
/// log, and the wait for a synchronous replica only a cancel request, which is sent when the call is given up.
pub fn begin(settings: &Settings) -> String {
    let timeout = Duration::from(settings.timeout).as_millis().clamp(1, 2_147_483_647);
    let commit = match settings.durability {
        Durability::None | Durability::Async => "off",
        Durability::Sync => "on",
    };
    let timeout = timeout.to_string();
    let settings = [
        ("lock_timeout", &*timeout),
        ("statement_timeout", &timeout),
        ("idle_in_transaction_session_timeout", &timeout),
        ("synchronous_commit", commit),
        // A batch has few keys; of a small table the planner prefers to read all rows, which takes longer.
        ("enable_seqscan", "off"),
    ];
    // One statement takes less time than one for each.
    let settings = settings.map(|(name, value)| format!("set_config('{name}', '{value}', true)")).join(", ");
    format!("BEGIN ISOLATION LEVEL READ COMMITTED; SELECT {settings}")
}

/// The rows of each statement that has some.
fn answers(messages: Vec<SimpleQueryMessage>) -> Vec<Vec<SimpleQueryRow>> {
    let mut answers: Vec<Vec<SimpleQueryRow>> = Vec::new();
    for message in messages {
        match message {
            SimpleQueryMessage::RowDescription(_) => answers.push(Vec::new()),
            SimpleQueryMessage::Row(row) => {
                if let Some(rows) = answers.last_mut() {
                    rows.push(row);
                }
            }
            _ => {}
        }
    }
    answers
}

/// A row of key and state in hexadecimal digits.
fn locked_bucket(row: &SimpleQueryRow) -> Result<StoredBucket, Fault> {
    let read = || {
        let key = decoded(row.try_get(0).ok()??)?;
        let packed = match row.try_get(1).ok()? {
            None => None,
            Some(digits) => Some(decoded(digits)?),
        };
        Some(StoredBucket { key: BucketKey(key.try_into().ok()?), packed })
    };
    read().ok_or_else(|| unexpected_reply("the lock of the buckets"))
}
