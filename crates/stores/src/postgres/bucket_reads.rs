//! Reads buckets and the server's clock in one statement, which changes nothing.

use tokio_postgres::Row;

use super::batch::unpack;
use super::errors::unexpected_reply;
use super::settings::TableName;
use super::transaction::CLOCK;
use crate::error::Fault;
use crate::remote::transport::ReadStates;
use base::time::Timestamp;
use ledger::algorithm::State;
use ledger::bucket_key::BucketKey;

/// Returns the statement that reads the buckets of its parameter. It reads the clock after its snapshot was taken, so no state
/// is later than the time. At least one row has the time, even if no bucket is stored.
pub(super) fn statement(table: &TableName) -> String {
    format!(
        "SELECT at.moment, b.key, b.state FROM ({CLOCK} AS moment) AS at LEFT JOIN {} AS b ON b.key = ANY($1)",
        table.quoted()
    )
}

/// Decodes the rows of [`statement`].
///
/// # Errors
///
/// When the rows are not those of this statement.
pub(super) fn parse(rows: &[Row], keys: &[BucketKey]) -> Result<ReadStates, Fault> {
    let unexpected = || unexpected_reply("the read of the buckets");
    let (mut now, mut stored) = (Timestamp(0), Vec::with_capacity(rows.len()));
    for row in rows {
        let moment: i64 = row.try_get(0).map_err(|_| unexpected())?;
        now = now.max(Timestamp(u64::try_from(moment).map_err(|_| unexpected())?));
        let key: Option<&[u8]> = row.try_get(1).map_err(|_| unexpected())?;
        let packed: Option<Vec<u8>> = row.try_get(2).map_err(|_| unexpected())?;
        if let (Some(key), Some(packed)) = (key, packed) {
            // An invalid state counts as an empty bucket.
            stored.push((BucketKey(key.try_into().map_err(|_| unexpected())?), unpack(&packed).unwrap_or_default()));
        }
    }
    if now == Timestamp(0) {
        return Err(unexpected());
    }
    let state = |key: &BucketKey| -> Option<State> {
        stored.iter().find(|(stored, _)| stored == key).map(|(_, state)| state.clone())
    };
    Ok(ReadStates { now, states: keys.iter().map(state).collect() })
}
