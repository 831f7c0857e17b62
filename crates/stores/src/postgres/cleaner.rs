//! Removes the rows of buckets that are full again, in small pieces, by one gateway at a time, and measures the table.
//!
//! Nothing that changes is indexed, so all rows are visited in the order of their keys. A gateway that stops, because another
//! one is at it or because of an error, goes on from the same key the next time: otherwise large tables would never be
//! visited as a whole.

use std::time::Duration;

use sha2::{Digest, Sha256};
use tokio::time::{sleep, timeout};
use tokio_postgres::Client;
use tokio_postgres::types::Type;

use super::connect::{Checks, connect};
use super::errors::unexpected_reply;
use super::settings::{Settings, TableName};
use super::table_size;
use super::transaction::{Parameter, single_statement};
use crate::error::Fault;
use crate::events::{Event, EventSink, TableSize};
use crate::remote::login::CurrentLogin;
use base::interval::fixed_interval;

const EVERY: Duration = Duration::from_secs(30);
/// Between two pieces, so that requests do not wait behind them.
const PAUSE: Duration = Duration::from_millis(5);
/// How long one piece may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Begins a piece. Its locks are in the way of requests, so it waits neither for a synchronous replica, which may stay away
/// and whose absence no timeout of the server ends, nor long for a lock: a server process would go on to wait for it when the
/// gateway no longer does. A removal that a crash undoes is repeated. At another isolation level, which may be the default of
/// the database, it would conflict with requests.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL synchronous_commit = off; \
                     SET LOCAL lock_timeout = '1s'; SET LOCAL statement_timeout = '10s'";

/// How many rows are visited in one transaction.
const PIECE: i64 = 2_000;

/// What became of one piece.
enum Piece {
    /// Another gateway is at it.
    Taken,
    /// The key of the last row visited.
    Visited(Vec<u8>),
    End,
}

/// Visits all rows again and again, for ever, and reports how large the table then is. What fails is tried again the next
/// time: requests report the same causes.
pub async fn run(settings: &Settings, login: &CurrentLogin, events: &EventSink) {
    // Random, so that gateways do not all visit the same rows.
    let mut after = fastrand::u128(..).to_be_bytes().to_vec();
    loop {
        let every = fixed_interval("store_clean", EVERY);
        // Jittered, so that gateways that started together do not all try at the same time.
        sleep(every.mul_f64(0.75 + fastrand::f64() / 2.0)).await;
        let Ok(connected) = connect(settings, login, Checks::Schema, events).await else { continue };
        tokio::select! {
            measured = clean_and_measure(&connected.client, &settings.table, &mut after) => {
                if let Ok(size) = measured {
                    events.send(Event::TableMeasured(size));
                }
            }
            _ = connected.driver => {}
        }
    }
}

async fn clean_and_measure(client: &Client, table: &TableName, after: &mut Vec<u8>) -> Result<TableSize, Fault> {
    clean(client, table, after).await?;
    let measured = timeout(PATIENCE, table_size::measure(client, table)).await;
    measured.map_err(|_| unexpected_reply("the size of the table"))?
}

/// Visits the rows with keys after this one, and then those from the first key up to it: all of them once, unless another
/// gateway is at it. `after` is then the key of the row that was visited last.
async fn clean(client: &Client, table: &TableName, after: &mut Vec<u8>) -> Result<(), Fault> {
    let (statement, lock) = (statement(table), lock_number(table));
    let (begin, mut is_past_end) = (after.clone(), false);
    loop {
        let piece = timeout(PATIENCE, clean_piece(client, &statement, lock, after)).await;
        match piece.map_err(|_| unexpected_reply("the removal of old rows"))?? {
            Piece::Visited(key) => *after = key,
            Piece::End if is_past_end => return Ok(()),
            Piece::End => {
                after.clear();
                is_past_end = true;
            }
            Piece::Taken => return Ok(()),
        }
        if is_past_end && *after >= begin {
            return Ok(());
        }
        sleep(PAUSE).await;
    }
}

/// One transaction: the lock ends with it, also behind a pooler.
async fn clean_piece(client: &Client, statement: &str, lock: i64, after: &[u8]) -> Result<Piece, Fault> {
    let parameters: [Parameter<'_>; 3] = [(&lock, Type::INT8), (&after, Type::BYTEA), (&PIECE, Type::INT8)];
    let rows = single_statement(client, BEGIN, statement, &parameters).await?;
    let row = rows.first().ok_or_else(|| unexpected_reply("the removal of old rows"))?;
    let read = || Some((row.try_get::<_, bool>(0).ok()?, row.try_get::<_, Option<Vec<u8>>>(1).ok()?));
    match read().ok_or_else(|| unexpected_reply("the removal of old rows"))? {
        (false, _) => Ok(Piece::Taken),
        (true, Some(key)) => Ok(Piece::Visited(key)),
        (true, None) => Ok(Piece::End),
    }
}

/// A row that a request has locked is skipped: it is about to be written.
fn statement(table: &TableName) -> String {
    let table = table.quoted();
    format!(
        "\
WITH turn AS MATERIALIZED (SELECT pg_try_advisory_xact_lock($1) AS mine),
now AS MATERIALIZED (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now),
piece AS MATERIALIZED (
  SELECT key, until FROM {table} WHERE (SELECT mine FROM turn) AND key > $2 ORDER BY key LIMIT $3
),
old AS MATERIALIZED (
  SELECT key FROM {table} WHERE key = ANY(ARRAY(SELECT key FROM piece WHERE until < (SELECT now FROM now)))
  AND until < (SELECT now FROM now) FOR UPDATE SKIP LOCKED
),
gone AS (DELETE FROM {table} WHERE key = ANY(ARRAY(SELECT key FROM old)))
SELECT (SELECT mine FROM turn), (SELECT key FROM piece ORDER BY key DESC LIMIT 1)"
    )
}

/// The number of the lock that gateways of this table share.
fn lock_number(table: &TableName) -> i64 {
    let hash = Sha256::digest(format!("tollgate clean {}", table.as_str()));
    hash.first_chunk().map_or(0, |first| i64::from_be_bytes(*first))
}
