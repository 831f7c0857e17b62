//! Announces a gateway in the table of heartbeats, and reads the announcements of the other gateways there.

use std::time::Duration;

use tokio_postgres::types::Type;
use tokio_postgres::{Client, Error, Row};

use super::errors::unexpected_reply;
use super::settings::{Settings, TableName};
use super::single_statement::{Parameter, single_statement};
use super::transaction;
use crate::error::Fault;
use crate::events::{RunningGateway, gateway_ttl};
use crate::remote::heartbeat::STATE_FORMAT;
use crate::remote::transport::LiveGateways;

/// The maximum length of an announced host name, or of the hash of a configuration, in bytes.
const MAX_LENGTH: usize = 64;

/// Returns the SQL statement of a heartbeat. It announces this gateway, removes announcements that are old or from the
/// future, and returns the other gateways.
pub(super) fn statement(table: &TableName) -> String {
    let gateways = table.gateways_quoted();
    format!(
        "\
WITH now AS (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now),
old AS (
  SELECT name FROM {gateways} WHERE abs(seen - (SELECT now FROM now)) > $4 FOR UPDATE SKIP LOCKED
),
gone AS (DELETE FROM {gateways} WHERE name IN (SELECT name FROM old) AND name <> $1),
beat AS (
  INSERT INTO {gateways} (name, host, configuration, seen) SELECT $1, $2, $3, now FROM now
  ON CONFLICT (name) DO UPDATE SET host = excluded.host, configuration = excluded.configuration, seen = excluded.seen
)
SELECT host, configuration, name FROM {gateways} WHERE name <> $1 AND abs(seen - (SELECT now FROM now)) <= $4"
    )
}

/// Returns the SQL statement that reads the names of the live gateways. Its parameter is [`ttl`].
pub(super) fn names(table: &TableName) -> String {
    let gateways = table.gateways_quoted();
    format!(
        "SELECT name FROM {gateways} WHERE abs(seen - (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) <= $1"
    )
}

/// Returns for how many microseconds a heartbeat counts.
pub(super) fn ttl() -> i64 {
    i64::try_from(gateway_ttl().0).unwrap_or(i64::MAX)
}

/// Returns how many of the gateways with these names announce no format of states, or one older than `format`. An older gateway
/// has a name of 8 bytes.
///
/// # Errors
/// When the rows have other columns.
pub(super) fn count_older(rows: &[Row], format: u8) -> Result<usize, Fault> {
    let names = rows.iter().map(|row| row.try_get("name")).collect::<Result<Vec<&[u8]>, _>>();
    let names = names.map_err(|_| unexpected_reply("the list of gateways"))?;
    Ok(names.iter().filter(|name| name.get(8) < Some(&format)).count())
}

/// Runs the statement of a heartbeat once, to test that the server accepts it. The caller rolls the transaction back.
///
/// # Errors
///
/// Returns the error of the server.
pub(crate) async fn try_statement(client: &Client, table: &TableName) -> Result<(), Error> {
    let (name, text) = (&[1_u8; 8][..], "trial");
    let parameters: [Parameter<'_>; 4] =
        [(&name, Type::BYTEA), (&text, Type::TEXT), (&text, Type::TEXT), (&1_i64, Type::INT8)];
    client.query_typed(&statement(table), &parameters).await?;
    Ok(())
}

/// Returns the SQL statement that begins the transaction of a heartbeat. Requests on the same connection wait for this
/// transaction, so it waits only briefly for a lock.
pub(super) fn begin(settings: &Settings) -> String {
    let timeout = Duration::from(settings.timeout).as_millis().clamp(2, 2_147_483_647);
    let begin = transaction::begin(settings);
    format!("{begin}; SET LOCAL lock_timeout = {}; SET LOCAL statement_timeout = {timeout}", timeout / 2)
}

/// Sends one heartbeat, and returns the live gateways.
///
/// # Errors
///
/// When the connection ends, or the server refuses the statement or answers with something else.
pub(crate) async fn beat(
    client: &Client,
    begin: &str,
    statement: &str,
    name: [u8; 8],
    this_gateway: &RunningGateway,
) -> Result<LiveGateways, Fault> {
    let RunningGateway { host, configuration } = this_gateway;
    let cut = |text: &str| text.get(..MAX_LENGTH).unwrap_or(text).to_owned();
    let ttl = ttl();
    // The name ends with the format. So the table needs no column for it, and older gateways accept the name.
    let name = [&name[..], &[STATE_FORMAT]].concat();
    let parameters: [Parameter<'_>; 4] =
        [(&name, Type::BYTEA), (&cut(host), Type::TEXT), (&cut(configuration), Type::TEXT), (&ttl, Type::INT8)];
    let rows = single_statement(client, begin, statement, &parameters).await?;
    let mut others = Vec::new();
    for row in &rows {
        let read = || Some(RunningGateway { host: row.try_get(0).ok()?, configuration: row.try_get(1).ok()? });
        let other = read().ok_or_else(|| unexpected_reply("the heartbeat"))?;
        // Anybody with access to the table can write to it, so only plausible values are shown.
        let is_plain = |text: &str| text.len() <= MAX_LENGTH && text.bytes().all(|byte| byte.is_ascii_graphic());
        if is_plain(&other.host) && is_plain(&other.configuration) && !other.configuration.is_empty() {
            others.push(other);
        }
    }
    let older = count_older(&rows, STATE_FORMAT)? as u64;
    Ok(LiveGateways { alive: rows.len() as u64 + 1, older, others })
}
