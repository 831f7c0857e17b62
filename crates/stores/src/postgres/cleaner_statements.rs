//! The statements that remove the rows of full buckets, for `cleaner`.

use tokio_postgres::types::Type;
use tokio_postgres::{Client, Error};

use super::settings::TableName;
use super::single_statement::Parameter;

/// Returns the SQL statement with which a gateway takes or keeps the turn to clean. It takes the turn of another
/// gateway only after that gateway has not reported for a while. The statement returns the last visited key.
pub(crate) fn begin_statement(table: &TableName) -> String {
    format!(
        "INSERT INTO {} AS cleaning (key, state, until) \
         VALUES (''::bytea, $1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + $2) \
         ON CONFLICT (key) DO UPDATE SET state = $1 || coalesce(substring(cleaning.state FROM 17), ''::bytea), until = excluded.until \
         WHERE cleaning.until NOT BETWEEN excluded.until - $2 AND excluded.until OR substring(cleaning.state FOR 16) = $1 \
         RETURNING substring(state FROM 17)",
        table.quoted()
    )
}

/// Returns the SQL statement that visits the next rows, and notes the last visited key. It does nothing if it is not
/// this gateway's turn any more. It skips rows that a request has locked.
pub(crate) fn piece_statement(table: &TableName) -> String {
    let table = table.quoted();
    format!(
        "\
WITH now AS (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now),
piece AS (SELECT key, until FROM {table} WHERE key > $3 ORDER BY key LIMIT $4),
last AS (SELECT key FROM piece ORDER BY key OFFSET $4 - 1),
turn AS (
  UPDATE {table} AS cleaning SET state = coalesce($1 || (SELECT key FROM last), $5), until = now + $2 FROM now
  WHERE key = ''::bytea AND substring(state FOR 16) = $1 RETURNING true
),
old AS (
  SELECT key FROM {table} WHERE EXISTS (SELECT FROM turn)
  AND key = ANY(ARRAY(SELECT key FROM piece WHERE until < (SELECT now FROM now)))
  AND until < (SELECT now FROM now) FOR UPDATE SKIP LOCKED
),
gone AS (DELETE FROM {table} WHERE key = ANY(ARRAY(SELECT key FROM old)))
SELECT EXISTS (SELECT FROM turn), (SELECT key FROM last)"
    )
}

/// Runs each of these statements once, to test that the server accepts them. The caller rolls the transaction back.
///
/// # Errors
///
/// Returns the error of the server.
pub(crate) async fn try_statements(client: &Client, table: &TableName) -> Result<(), Error> {
    let name = &[1_u8; 16][..];
    let parameters: [Parameter<'_>; 5] =
        [(&name, Type::BYTEA), (&1_i64, Type::INT8), (&name, Type::BYTEA), (&1_i64, Type::INT8), (&name, Type::BYTEA)];
    client.query_typed(&begin_statement(table), &parameters[..2]).await?;
    client.query_typed(&piece_statement(table), &parameters).await?;
    Ok(())
}
