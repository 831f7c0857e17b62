//! Measures the table of the buckets.

use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row};

use super::errors::unexpected_reply;
use super::settings::TableName;
use super::single_statement::Parameter;
use crate::error::Fault;
use crate::events::TableSize;

/// Queries the sizes of the table and its indexes, and the server's estimates of live and dead rows.
const STATEMENT: &str = "SELECT pg_table_size(relid), pg_indexes_size(relid), n_live_tup, n_dead_tup \
                         FROM pg_stat_user_tables WHERE relid = to_regclass($1)";

/// Measures the table with the buckets: its size, the size of its indexes, and its live and dead rows.
///
/// # Errors
///
/// When the connection ends, or the server refuses the statement or answers with something else.
pub(super) async fn measure(client: &Client, table: &TableName) -> Result<TableSize, Fault> {
    let name = table.quoted();
    let parameters: [Parameter<'_>; 1] = [(&name, Type::TEXT)];
    let rows = client.query_typed(STATEMENT, &parameters).await?;
    rows.first().and_then(size).ok_or_else(|| unexpected_reply("the size of the table"))
}

fn size(row: &Row) -> Option<TableSize> {
    let number = |index: usize| u64::try_from(row.try_get::<_, i64>(index).ok()?).ok();
    Some(TableSize { table_bytes: number(0)?, index_bytes: number(1)?, live_rows: number(2)?, dead_rows: number(3)? })
}
