//! Runs one SQL statement as a transaction of its own.

use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Error, Row};

use super::errors::is_serialization_failure;

/// The value of a statement's parameter, with its type.
pub(super) type Parameter<'p> = (&'p (dyn ToSql + Sync), Type);

/// Runs one statement in a transaction of its own, and returns the rows. `begin` begins the transaction. After a
/// serialization failure the statement is tried once more.
///
/// # Errors
/// When the connection ends, or the server refuses the transaction or the statement.
pub(crate) async fn single_statement(
    client: &Client,
    begin: &str,
    statement: &str,
    parameters: &[Parameter<'_>],
) -> Result<Vec<Row>, Error> {
    match run_statement(client, begin, statement, parameters).await {
        Err(error) if is_serialization_failure(&error) => run_statement(client, begin, statement, parameters).await,
        ran => ran,
    }
}

async fn run_statement(
    client: &Client,
    begin: &str,
    statement: &str,
    parameters: &[Parameter<'_>],
) -> Result<Vec<Row>, Error> {
    // The statements are sent in this order, without waiting for the answers.
    let (begun, rows, committed) = tokio::join!(
        biased;
        client.batch_execute(begin),
        client.query_typed(statement, parameters),
        client.batch_execute("COMMIT"),
    );
    begun?;
    let rows = rows?;
    committed?;
    Ok(rows)
}
