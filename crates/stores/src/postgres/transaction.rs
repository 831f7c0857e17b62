//! Runs one call as one transaction, which locks the buckets, reads the clock, decides, writes and commits.
//!
//! Missing rows are inserted first. Then all rows are locked in the order of their keys, so that gateways cannot
//! deadlock. The clock is read after that, so that the times of a bucket never go back.
//!
//! The commit does not wait for the disk, so that rows are locked only for a moment. If `durability` requires that
//! wait, a second commit follows. It waits for everything that was logged before it, and only then are requests
//! answered.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Error, Row};

use super::act_batch::ActBatch;
use super::batch::Batch;
use super::errors::{proves_rollback, unexpected_reply};
use super::session::{CallStatement, CallStatements, Session, Statement};
use super::settings::{Durability, Settings, TableName};
use super::work::{Decision, StoredBucket, Work, Writes};
use crate::error::{Fault, StoreError};
use crate::lease_acts::{ActResults, BucketAct};
use crate::remote::transport::Reply;
use base::time;
use base::time::{Clock, Micros, Timestamp};
use ledger::bucket_key::BucketKey;
use ledger::charge::Plan;
use ledger::holds;

pub(crate) const CLOCK: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";

/// How many times a row may vanish before the call is given up. A row vanishes if it is removed before it is locked.
const MOST_VANISHED: usize = 3;

const KEYS: &[Type] = &[Type::BYTEA_ARRAY];

/// The types of the written columns: keys, states, and the moments until which the rows are kept.
const ROWS: &[Type] = &[Type::BYTEA_ARRAY, Type::BYTEA_ARRAY, Type::INT8_ARRAY];

/// After this many transactions that found all rows, the next transaction does not insert rows.
const QUIET: u8 = 16;

/// Writes an empty log record. The commit of this transaction waits for everything that was logged before it.
const FLUSH: &str =
    "SELECT set_config('synchronous_commit', 'on', true), pg_logical_emit_message(true, 'tollgate', '')";

/// The SQL statements that decide the plans of a call.
#[derive(Debug)]
pub(crate) struct Statements {
    /// Begins a transaction whose commit waits for nothing.
    begin: String,
    /// Begins a transaction whose commit waits as long as `durability` requires.
    begin_durable: String,
    pub texts: Arc<CallStatements<Statement>>,
    durability: Durability,
    timeout: Micros,
    /// Whether a commit was unanswered for longer than `timeout`, and no later commit has succeeded. While this is
    /// set, calls that write nothing also commit.
    in_doubt: AtomicBool,
}

/// Whether transactions on one connection must insert rows. A transaction without inserts is shorter, but must be
/// repeated if a row is missing.
#[derive(Debug, Default)]
pub(crate) struct NewRows {
    /// The number of transactions since the last transaction that found a bucket without a row.
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

/// The reason why a transaction has no result.
enum TransactionError {
    /// A bucket has no row, and none was inserted. Nothing has changed.
    Absent,
    /// The row of a bucket was removed before it was locked. Nothing has changed.
    Vanished,
    /// Other transactions prevented this transaction. The server proves that nothing has changed.
    Conflict(Fault),
    Failed(Fault),
}

impl From<Error> for TransactionError {
    fn from(error: Error) -> TransactionError {
        if proves_rollback(&error) {
            TransactionError::Conflict(error.into())
        } else {
            TransactionError::Failed(error.into())
        }
    }
}

impl From<Fault> for TransactionError {
    fn from(fault: Fault) -> TransactionError {
        TransactionError::Failed(fault)
    }
}

impl Statements {
    pub(super) fn new(settings: &Settings) -> Statements {
        let table = settings.table.quoted();
        let remove = format!("DELETE FROM {table} WHERE key = ANY($1) AND state IS NULL");
        let texts = CallStatements {
            insert: Statement { text: insert(&settings.table), types: KEYS },
            lock: Statement { text: lock(&settings.table), types: KEYS },
            clock: Statement { text: CLOCK.to_owned(), types: &[] },
            write: Statement { text: write(&settings.table), types: ROWS },
            remove: Statement { text: remove, types: KEYS },
            flush: Statement { text: FLUSH.to_owned(), types: &[] },
        };
        Statements {
            begin: begin_until_committed(settings, Commit::AtOnce),
            begin_durable: begin(settings),
            texts: Arc::new(texts),
            durability: settings.durability,
            timeout: settings.timeout,
            in_doubt: AtomicBool::new(false),
        }
    }

    /// Decides plans in one transaction. After a conflict, tries once more if there is time.
    ///
    /// # Errors
    ///
    /// Returns the reason why nothing was decided. After a lost connection, plans may have been charged.
    pub(super) async fn take(
        &self,
        session: &Session,
        new_rows: &mut NewRows,
        plans: &[&Plan],
        reports: Option<&holds::Call>,
        clock: &Clock,
    ) -> Result<Reply, Fault> {
        self.run(session, new_rows, &Batch::new(plans, reports), clock).await
    }

    /// Does acts of leases in one transaction. After a conflict, tries once more if there is time.
    ///
    /// # Errors
    ///
    /// Returns the reason why there is no result. After a lost connection, the acts may be done.
    pub(super) async fn act(
        &self,
        session: &Session,
        new_rows: &mut NewRows,
        acts: &[BucketAct],
        clock: &Clock,
    ) -> Result<ActResults, Fault> {
        self.run(session, new_rows, &ActBatch::new(acts), clock).await
    }

    async fn run<W: Work>(
        &self,
        session: &Session,
        new_rows: &mut NewRows,
        work: &W,
        clock: &Clock,
    ) -> Result<W::Reply, Fault> {
        let started = clock.now();
        let (mut conflicts, mut vanished) = (0, 0);
        loop {
            let fault = match self.attempt(session, new_rows, work, clock.injected()).await {
                Ok(reply) => return Ok(reply),
                Err(TransactionError::Failed(fault)) => return Err(fault),
                Err(TransactionError::Conflict(fault)) => {
                    conflicts += 1;
                    fault.rolled_back()
                }
                // The next attempt inserts the row.
                Err(TransactionError::Absent) => {
                    conflicts = 0;
                    continue;
                }
                Err(TransactionError::Vanished) => {
                    vanished += 1;
                    Fault::new(StoreError::Busy, "rows were removed before they were locked").rolled_back()
                }
            };
            // After a second wait for a lock, the answer would be late.
            if conflicts > 1 || vanished > MOST_VANISHED || clock.now().since(started) >= lock_wait(self.timeout) {
                return Err(fault);
            }
        }
    }

    async fn attempt<W: Work>(
        &self,
        session: &Session,
        new_rows: &mut NewRows,
        work: &W,
        injected: Option<Timestamp>,
    ) -> Result<W::Reply, TransactionError> {
        let undone = match self.locked(session, new_rows, work.keys()).await {
            Ok((rows, now)) => match work.decide(&rows, injected.unwrap_or(now)) {
                Ok(Decision { reply, writes }) => match self.finish(session, work, &writes).await {
                    // If an earlier statement had failed, COMMIT has rolled the transaction back.
                    Ok(()) => return Ok(reply),
                    // A refusal needs no room, although it would begin a ban.
                    Err(TransactionError::Failed(fault)) if is_out_of_room(&fault) => {
                        return work.refuse(&rows, injected.unwrap_or(now)).ok_or(fault.into());
                    }
                    Err(undone) => return Err(undone),
                },
                Err(fault) => fault.into(),
            },
            Err(undone) => undone,
        };
        // Without a COMMIT, the end of the connection also rolls back.
        match undone {
            TransactionError::Failed(fault) if fault.ends_connection() => Err(fault.rolled_back().into()),
            undone => {
                let rolled_back = session.client.batch_execute("ROLLBACK").await;
                rolled_back.map_err(|error| Fault::from(error).rolled_back())?;
                Err(match undone {
                    TransactionError::Failed(fault) => fault.rolled_back().into(),
                    undone => undone,
                })
            }
        }
    }

    /// Locks the rows of these buckets. Returns the rows, and the server's time after they were locked.
    async fn locked(
        &self,
        session: &Session,
        new_rows: &mut NewRows,
        keys: &[BucketKey],
    ) -> Result<(Vec<StoredBucket>, Timestamp), TransactionError> {
        let packed: Vec<&[u8]> = keys.iter().map(|key| &key.0[..]).collect();
        let parameters: [&(dyn ToSql + Sync); 1] = [&packed];
        let insert = new_rows.are_likely();
        let inserted = async { if insert { session.execute(CallStatement::Insert, &parameters).await } else { Ok(0) } };
        // The statements are sent in this order, without waiting for the answers.
        let begin = if session.can_flush() { &self.begin } else { &self.begin_durable };
        let (begun, inserted, locked, clock) = tokio::join!(
            biased;
            session.client.batch_execute(begin),
            inserted,
            session.query(CallStatement::Lock, &parameters),
            session.query(CallStatement::Clock, &[]),
        );
        begun?;
        let inserted = inserted?;
        let rows = locked?.iter().map(stored).collect::<Result<Vec<_>, Fault>>()?;
        let now = moment(&clock?)?;
        let all = rows.len() >= keys.len();
        if inserted > 0 || !all {
            new_rows.found();
        } else {
            new_rows.not_found();
        }
        match (all, insert) {
            (true, _) => Ok((rows, now)),
            (false, true) => Err(TransactionError::Vanished),
            (false, false) => Err(TransactionError::Absent),
        }
    }

    async fn finish(&self, session: &Session, work: &impl Work, writes: &Writes) -> Result<(), TransactionError> {
        let Writes { keys, states, until, unused } = writes;
        let must_wait = self.durability == Durability::Sync && work.shows_what_others_wrote();
        // If there is nothing to write, a rollback is faster than a commit. While `in_doubt` is set, a commit shows
        // that commits succeed.
        if keys.is_empty() && !must_wait && !self.in_doubt.load(Ordering::Relaxed) {
            return Ok(session.client.batch_execute("ROLLBACK").await?);
        }
        let parameters: [&(dyn ToSql + Sync); 3] = [keys, states, until];
        let written = async {
            if keys.is_empty() {
                return Ok(0);
            }
            session.execute(CallStatement::Write, &parameters).await
        };
        // Rows that were inserted only for refused requests are removed.
        let removed = async {
            if unused.is_empty() {
                return Ok(0);
            }
            session.execute(CallStatement::Remove, &[unused]).await
        };
        let all = async {
            tokio::join!(
                biased;
                written,
                removed,
                session.client.batch_execute("COMMIT"),
                self.flush(session),
            )
        };
        let (written, removed, committed, flushed) = self.committed(all).await;
        // After an error of a statement, COMMIT rolls back.
        let written = written.map_err(refused_statement)?;
        removed.map_err(refused_statement)?;
        committed?;
        // The charge is committed, so the call must not be tried again.
        flushed.map_err(Fault::from)?;
        if written != keys.len() as u64 {
            return Err(unexpected_reply("the write of the buckets").into());
        }
        self.in_doubt.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Waits until everything that was logged is durable.
    async fn flush(&self, session: &Session) -> Result<(), Error> {
        if self.durability == Durability::Sync && session.can_flush() {
            session.query(CallStatement::Flush, &[]).await?;
        }
        Ok(())
    }

    /// Waits for commits, and sets `in_doubt` if they take longer than `timeout`.
    async fn committed<T>(&self, commits: impl Future<Output = T>) -> T {
        let mut commits = std::pin::pin!(commits);
        let answered = time::timeout(self.timeout.into(), &mut commits).await;
        match answered {
            Ok(committed) => committed,
            Err(_) => {
                self.in_doubt.store(true, Ordering::Relaxed);
                commits.await
            }
        }
    }
}

/// Returns the error of a statement before the COMMIT of its transaction. After an error that the server has sent, the
/// transaction will not commit.
fn refused_statement(error: Error) -> TransactionError {
    let is_answer = error.as_db_error().is_some();
    match TransactionError::from(error) {
        TransactionError::Failed(fault) if is_answer => fault.rolled_back().into(),
        undone => undone,
    }
}

/// Whether the server has written nothing, because its disk or memory is full.
fn is_out_of_room(fault: &Fault) -> bool {
    fault.error == StoreError::OutOfMemory && fault.proves_no_effect()
}

/// When the server answers a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Commit {
    /// Before the commit is on disk.
    AtOnce,
    /// When the commit is as durable as `durability` requires.
    Durable,
}

/// How long a transaction waits for rows: half of `timeout`. The other half is left for the rest of the transaction.
fn lock_wait(timeout: Micros) -> Micros {
    Micros(timeout.0 / 2)
}

/// Returns the SQL statement that begins a transaction whose commit is as durable as `durability` says. The settings
/// in the statement end with the transaction.
///
/// `lock_timeout` bounds the wait for each row, and `statement_timeout` the wait for all rows. No timeout bounds a
/// COMMIT: only a cancel request interrupts its wait for a synchronous replica.
pub(super) fn begin(settings: &Settings) -> String {
    begin_until_committed(settings, Commit::Durable)
}

fn begin_until_committed(settings: &Settings, commit: Commit) -> String {
    let milliseconds = |micros: Micros| Duration::from(micros).as_millis().clamp(1, 2_147_483_647);
    let (timeout, wait) = (milliseconds(settings.timeout), milliseconds(lock_wait(settings.timeout)));
    let commit = if commit == Commit::Durable && settings.durability == Durability::Sync { "on" } else { "off" };
    // For a small table the planner prefers to read all rows, which takes longer. So other plans than index scans are
    // disabled. JIT is off, because it takes longer than `timeout`.
    let planner = ["seqscan", "hashjoin", "mergejoin"].map(|way| format!("; SET LOCAL enable_{way} = off")).concat();
    format!(
        "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = {wait}; SET LOCAL statement_timeout = {wait}; \
         SET LOCAL idle_in_transaction_session_timeout = {timeout}; SET LOCAL synchronous_commit = {commit}; SET LOCAL jit = off{planner}"
    )
}

/// Returns the SQL statement that inserts rows for buckets without a row, so that they can be locked.
pub(super) fn insert(table: &TableName) -> String {
    let table = table.quoted();
    format!("INSERT INTO {table} (key) SELECT key FROM unnest($1::bytea[]) AS key ORDER BY key ON CONFLICT DO NOTHING")
}

/// Returns the SQL statement that locks the rows with the given keys, in their order, and reads their states.
pub(super) fn lock(table: &TableName) -> String {
    format!("SELECT key, state FROM {} WHERE key = ANY($1) ORDER BY key FOR UPDATE", table.quoted())
}

/// Returns the SQL statement that writes the locked rows.
pub(super) fn write(table: &TableName) -> String {
    format!(
        "UPDATE {} AS bucket SET state = new.state, until = new.until \
         FROM unnest($1::bytea[], $2::bytea[], $3::bigint[]) AS new (key, state, until) WHERE bucket.key = new.key",
        table.quoted()
    )
}

/// Reads the key and the state of a bucket from a row.
///
/// # Errors
/// When the row has other columns.
pub(super) fn stored(row: &Row) -> Result<StoredBucket, Fault> {
    let read = || {
        let key: &[u8] = row.try_get(0).ok()?;
        Some(StoredBucket { key: BucketKey(key.try_into().ok()?), packed: row.try_get(1).ok()? })
    };
    read().ok_or_else(|| unexpected_reply("the lock of the buckets"))
}

/// Reads the time from the answer to [`CLOCK`].
///
/// # Errors
/// When the answer is not a time.
pub(super) fn moment(rows: &[Row]) -> Result<Timestamp, Fault> {
    let micros: Option<i64> = rows.first().and_then(|row| row.try_get(0).ok());
    let micros = micros.and_then(|micros| u64::try_from(micros).ok());
    micros.map(Timestamp).ok_or_else(|| unexpected_reply("the clock"))
}
