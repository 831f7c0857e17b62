//! Removes the rows of buckets that are full again, in small pieces. One gateway does this at a time. Also measures the
//! table.
//!
//! All rows are visited in the order of their keys. A row with an empty key records which gateway is cleaning, and the
//! last visited key. It also has the time at which the next removal may begin. After an error, the next removal
//! continues from the last visited key.

use std::time::Duration;

use tokio::time::{sleep, timeout};
use tokio_postgres::Client;
use tokio_postgres::types::Type;

use super::cleaner_statements::{begin_statement, piece_statement};
use super::connect::{Checks, STEP, connect};
use super::errors::unexpected_reply;
use super::primary_watch::PrimaryWatch;
use super::settings::{Settings, TableName};
use super::single_statement::{Parameter, single_statement};
use super::table_size;
use crate::error::Fault;
use crate::events::{Event, EventSink, TableSize};
use crate::remote::login::CurrentLogin;
use base::interval::fixed_interval;

const EVERY: Duration = Duration::from_secs(30);
/// The shortest pause between two removals, as a fraction of [`every`].
const SHORTEST_PAUSE: f64 = 0.75;
/// The pause between two pieces of a removal. Requests can run in this time.
const PAUSE: Duration = Duration::from_millis(5);
/// The longest time that one piece may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Begins the transaction of one piece of a removal. The transaction waits only briefly, because its locks block
/// requests. The commit does not wait for a replica, because a lost removal is repeated. A stricter isolation level
/// would cause conflicts with requests.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL synchronous_commit = off; \
                     SET LOCAL lock_timeout = '1s'; SET LOCAL statement_timeout = '10s'";

/// The number of rows that one transaction visits.
const PIECE: i64 = 2_000;

/// A random name of a gateway that removes rows.
type CleanerName = [u8; 16];

/// The name that is stored when no gateway is cleaning.
const NOBODY: CleanerName = [0; 16];

/// The result of one piece.
enum Piece {
    /// Another gateway is cleaning.
    Taken,
    /// Rows were visited, up to this key.
    Visited(Vec<u8>),
    End,
}

/// Removes the rows of full buckets at intervals, and reports the size of the table. Never returns. A failure is not
/// reported, because requests report the same causes.
pub(super) async fn run(settings: &Settings, login: &CurrentLogin, primary: &PrimaryWatch, events: &EventSink) {
    let name = fastrand::u128(1..).to_be_bytes();
    loop {
        // The pause is jittered, so that gateways do not all try at the same time.
        sleep(every().mul_f64(SHORTEST_PAUSE + fastrand::f64() / 2.0)).await;
        let Some(endpoint) = primary.last_primary() else { continue };
        let Ok(credentials) = login.read(STEP).await else { continue };
        let Ok(connected) = connect(settings, &endpoint, &credentials, Checks::Schema, events).await else { continue };
        tokio::select! {
            measured = clean_and_measure(&connected.client, &settings.table, name) => {
                if let Ok(size) = measured {
                    events.send(Event::TableMeasured(size));
                }
            }
            _ = connected.driver => {}
        }
    }
}

fn every() -> Duration {
    fixed_interval("store_clean", EVERY)
}

async fn clean_and_measure(client: &Client, table: &TableName, name: CleanerName) -> Result<TableSize, Fault> {
    clean(client, table, name).await?;
    patiently(table_size::measure(client, table)).await
}

/// Visits all rows once, if it is the turn of this gateway.
async fn clean(client: &Client, table: &TableName, name: CleanerName) -> Result<(), Fault> {
    let pause = i64::try_from(every().mul_f64(SHORTEST_PAUSE).as_micros()).unwrap_or(i64::MAX);
    let begun = patiently(begin(client, &begin_statement(table), name, pause)).await?;
    let Some(mut after) = begun else { return Ok(()) };
    let statement = piece_statement(table);
    while let Piece::Visited(key) = patiently(clean_piece(client, &statement, name, pause, &after)).await? {
        after = key;
        sleep(PAUSE).await;
    }
    Ok(())
}

async fn patiently<T>(work: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
    timeout(PATIENCE, work).await.map_err(|_| unexpected_reply("the removal of old rows"))?
}

/// Returns the key after which this gateway must begin. `None` if it is not this gateway's turn.
async fn begin(client: &Client, statement: &str, name: CleanerName, pause: i64) -> Result<Option<Vec<u8>>, Fault> {
    let parameters: [Parameter<'_>; 2] = [(&&name[..], Type::BYTEA), (&pause, Type::INT8)];
    let rows = single_statement(client, BEGIN, statement, &parameters).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    row.try_get(0).map(Some).map_err(|_| unexpected_reply("the removal of old rows"))
}

/// Visits one piece of the table in one transaction, which also works through a pooler.
async fn clean_piece(
    client: &Client,
    statement: &str,
    name: CleanerName,
    pause: i64,
    after: &[u8],
) -> Result<Piece, Fault> {
    let parameters: [Parameter<'_>; 5] = [
        (&&name[..], Type::BYTEA),
        (&pause, Type::INT8),
        (&after, Type::BYTEA),
        (&PIECE, Type::INT8),
        (&&NOBODY[..], Type::BYTEA),
    ];
    let rows = single_statement(client, BEGIN, statement, &parameters).await?;
    let row = rows.first().ok_or_else(|| unexpected_reply("the removal of old rows"))?;
    let read = || Some((row.try_get::<_, bool>(0).ok()?, row.try_get::<_, Option<Vec<u8>>>(1).ok()?));
    match read().ok_or_else(|| unexpected_reply("the removal of old rows"))? {
        (false, _) => Ok(Piece::Taken),
        (true, Some(key)) => Ok(Piece::Visited(key)),
        (true, None) => Ok(Piece::End),
    }
}
