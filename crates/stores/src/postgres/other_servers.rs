//! Tries the statements of a gateway on a server that is not PostgreSQL 14 or later, such as YugabyteDB.

use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Error};

use super::session::Statement;
use super::settings::Settings;
use super::single_statement::Parameter;
use super::transaction::{self, Statements};
use super::{cleaner_statements, gateway_heartbeat};
use crate::error::{Fault, StoreError};

/// The codes with which a server rejects a statement that it does not know.
const UNKNOWN: [SqlState; 4] =
    [SqlState::SYNTAX_ERROR, SqlState::UNDEFINED_FUNCTION, SqlState::UNDEFINED_OBJECT, SqlState::FEATURE_NOT_SUPPORTED];

/// Sets longer timeouts for the trial, which has more round trips than a call.
const PATIENCE: &str = "SET LOCAL idle_in_transaction_session_timeout = '2s'; SET LOCAL statement_timeout = '2s'; \
                        SET LOCAL lock_timeout = '2s'";

/// Tests that the server accepts the statements of a gateway, in a transaction that is rolled back. `server` is the
/// version of the server, for the message.
///
/// # Errors
///
/// When the server cannot run one of the statements.
pub(crate) async fn try_statements(client: &Client, settings: &Settings, server: &str) -> Result<(), Fault> {
    let tried = run_all(client, settings).await;
    client.batch_execute("ROLLBACK").await?;
    tried.map_err(|error| match error.code() {
        Some(code) if UNKNOWN.contains(code) => {
            let what = Fault::from(error).detail;
            Fault::new(StoreError::Refused, format!("the server, {server}, must do what PostgreSQL 14 does: {what}"))
        }
        _ => error.into(),
    })
}

async fn run_all(client: &Client, settings: &Settings) -> Result<(), Error> {
    client.batch_execute(&format!("{}; {PATIENCE}", transaction::begin(settings))).await?;
    let texts = Statements::new(settings).texts;
    // No bucket has this key.
    let (keys, states, until) = ([&b"trial"[..]], [&[0_u8; 8][..]], [i64::MAX]);
    let rows: [&(dyn ToSql + Sync); 3] = [&&keys[..], &&states[..], &&until[..]];
    for Statement { text, types } in [&texts.insert, &texts.lock, &texts.clock, &texts.write, &texts.remove] {
        let parameters: Vec<Parameter<'_>> = rows.into_iter().zip(types.iter().cloned()).collect();
        client.query_typed(text, &parameters).await?;
    }
    cleaner_statements::try_statements(client, &settings.table).await?;
    gateway_heartbeat::try_statement(client, &settings.table).await
}
