//! Defines the tables, their version, and the permissions of the gateway's role. Checks whether a database has
//! them.

use std::fmt::Write;

use tokio_postgres::Client;
use tokio_postgres::types::Type;

use super::errors::unexpected_reply;
use super::other_servers::try_statements;
use super::settings::{Settings, TableName};
use crate::error::{Fault, StoreError};

/// The version of the schema. It changes whenever the tables or the meaning of their contents change.
pub const VERSION: u32 = 1;

/// The oldest version of PostgreSQL that has all functions that Tollgate uses, as in `server_version_num`.
const OLDEST_SERVER: i32 = 140_000;

/// The part of a version text that identifies YugabyteDB, as in 11.2-YB-2.25 and 15.2-YB-2025.1.
const YUGABYTE: &str = "-YB-";

/// The beginning of the comment on the table. The version of the schema follows in the comment.
const COMMENT: &str = "Tollgate's buckets, schema ";

/// The permissions that the gateway's role needs on the tables of buckets and of heartbeats.
const PERMISSIONS: [&str; 4] = ["SELECT", "INSERT", "UPDATE", "DELETE"];

/// Returns the SQL statements that create or update the tables and the role that these settings name. They can be run
/// again.
pub fn statements(settings: &Settings) -> String {
    let Settings { table, durability, .. } = settings;
    let (buckets, gateways) = (table.quoted(), table.gateways_quoted());
    let user = identifier(settings.user());
    let mut text = format!("-- Tollgate, schema {VERSION}, durability {}.\nBEGIN;\n", durability.name());
    if let Some(schema) = table.schema_quoted() {
        let _ = writeln!(text, "CREATE SCHEMA IF NOT EXISTS {schema};");
    }
    let _ = write!(
        text,
        "\
DO $$ BEGIN
  IF substring(obj_description(to_regclass({name}), 'pg_class') FROM {pattern})::int > {VERSION} THEN
    RAISE EXCEPTION 'the tables are of a newer Tollgate than this one, whose schema is {VERSION}';
  END IF;
  IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = {user_name}) THEN
    CREATE ROLE {user} LOGIN;
  END IF;
END $$;

-- Only the key is indexed, and pages keep room: so an update stays on its page and changes no index.
CREATE {unlogged}TABLE IF NOT EXISTS {buckets} (
  key bytea PRIMARY KEY,
  -- Integers of eight bytes, little-endian; NULL for a full bucket.
  state bytea,
  -- The row can be removed from this moment on, in microseconds since 1970.
  until bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);
DO $$ BEGIN
  IF (SELECT relpersistence FROM pg_class WHERE oid = to_regclass({name})) <> '{persistence}' THEN
    ALTER TABLE {buckets} SET {logged};
  END IF;
END $$;
DO $$ BEGIN
  ALTER TABLE {buckets} SET (
    autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_insert_scale_factor = 0.2, autovacuum_vacuum_cost_delay = 0
  );
-- YugabyteDB and PostgreSQL before 13 do not have all of them.
EXCEPTION WHEN feature_not_supported OR invalid_parameter_value THEN
  RAISE NOTICE 'the server has no such settings of autovacuum';
END $$;
DO $$ BEGIN
  CREATE UNLOGGED TABLE IF NOT EXISTS {gateways} {heartbeats};
-- YugabyteDB before 2024.2 has none.
EXCEPTION WHEN feature_not_supported THEN
  CREATE TABLE IF NOT EXISTS {gateways} {heartbeats};
END $$;
COMMENT ON TABLE {buckets} IS {comment};

-- All that a gateway may do.
GRANT {permissions} ON {buckets}, {gateways} TO {user};
",
        name = literal(&buckets),
        pattern = literal(&format!("^{COMMENT}([0-9]+)$")),
        user_name = literal(settings.user()),
        unlogged = if durability.is_logged() { "" } else { "UNLOGGED " },
        logged = if durability.is_logged() { "LOGGED" } else { "UNLOGGED" },
        persistence = if durability.is_logged() { "p" } else { "u" },
        heartbeats = "(
    name bytea PRIMARY KEY, host text NOT NULL, configuration text NOT NULL, seen bigint NOT NULL
  ) WITH (fillfactor = 50)",
        comment = literal(&format!("{COMMENT}{VERSION}")),
        permissions = PERMISSIONS.join(", "),
    );
    if let Some(schema) = table.schema_quoted() {
        let _ = writeln!(text, "GRANT USAGE ON SCHEMA {schema} TO {user};");
    }
    text.push_str("COMMIT;\n");
    text
}

/// What one query has found out about the server and the tables.
struct Findings {
    server: String,
    version: i32,
    read_only: bool,
    persistence: Option<i8>,
    comment: Option<String>,
    missing: Vec<String>,
}

/// Checks that the server accepts writes, that it has the tables of this version and `durability`, and that the user
/// may use them.
///
/// # Errors
///
/// Returns which of these conditions is not met, and how to meet it.
pub async fn check(client: &Client, settings: &Settings) -> Result<(), Fault> {
    let Settings { table, durability, .. } = settings;
    let Findings { server, version, read_only, persistence, comment, missing } = query(client, table).await?;
    let name = table.as_str();
    if read_only {
        return Err(Fault::new(StoreError::Replica, "the server accepts no writes"));
    }
    let wrong = |what: String| Err(Fault::new(StoreError::WrongSchema, what));
    let Some(persistence) = persistence else {
        return wrong(format!("there is no table `{name}`: run `tollgate store init`"));
    };
    let schema = comment.as_deref().and_then(|comment| comment.strip_prefix(COMMENT)?.parse::<u32>().ok());
    match schema {
        Some(VERSION) => {}
        Some(newer @ VERSION..) => {
            return wrong(format!("the schema of `{name}` is {newer}, newer than {VERSION}: update this gateway"));
        }
        Some(older) => {
            return wrong(format!(
                "the schema of `{name}` is {older}, older than {VERSION}: run `tollgate store init`"
            ));
        }
        None => return wrong(format!("`{name}` is not a table of Tollgate's: name another in `table`")),
    }
    let is_logged = persistence != i8::try_from(b'u').unwrap_or_default();
    if is_logged != durability.is_logged() {
        let (is, durability) = (if is_logged { "logged" } else { "unlogged" }, durability.name());
        return wrong(format!(
            "`{name}` is {is}, which is not what `durability: {durability}` wants: run `tollgate store init`"
        ));
    }
    if !missing.is_empty() {
        let what = format!("the user lacks {}: run `tollgate store init`", missing.join(", "));
        return Err(Fault::new(StoreError::Forbidden, what));
    }
    if version < OLDEST_SERVER || server.contains(YUGABYTE) {
        try_statements(client, settings, &server).await
    } else {
        Ok(())
    }
}

async fn query(client: &Client, table: &TableName) -> Result<Findings, Fault> {
    let (buckets, gateways) = (table.quoted(), table.gateways_quoted());
    let permissions = PERMISSIONS.map(str::to_owned).to_vec();
    let text = "\
SELECT current_setting('server_version'), current_setting('server_version_num')::int,
  pg_is_in_recovery() OR current_setting('transaction_read_only')::bool,
  (SELECT relpersistence FROM pg_class WHERE oid = to_regclass($1)),
  obj_description(to_regclass($1), 'pg_class'),
  ARRAY(
    SELECT permission || ' on ' || replace(name, '\"', '')
    FROM unnest(ARRAY[$1, $2]) AS name, unnest($3::text[]) AS permission
    WHERE NOT coalesce(has_table_privilege(to_regclass(name), permission), false)
    ORDER BY name, permission
  )";
    let rows = client
        .query_typed(text, &[(&buckets, Type::TEXT), (&gateways, Type::TEXT), (&permissions, Type::TEXT_ARRAY)])
        .await?;
    let row = rows.first().ok_or_else(|| unexpected_reply("the query of the schema"))?;
    let read = || {
        Ok::<_, tokio_postgres::Error>(Findings {
            server: row.try_get(0)?,
            version: row.try_get(1)?,
            read_only: row.try_get(2)?,
            persistence: row.try_get(3)?,
            comment: row.try_get(4)?,
            missing: row.try_get(5)?,
        })
    };
    read().map_err(|_| unexpected_reply("the query of the schema"))
}

/// Returns a name as an identifier in SQL, in quotes.
pub fn identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

fn literal(text: &str) -> String {
    // With the prefix E, a backslash is an escape under all settings of the server.
    format!("E'{}'", text.replace('\\', "\\\\").replace('\'', "''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted_whatever_they_contain() {
        assert_eq!(identifier("a\"b"), "\"a\"\"b\"");
        assert_eq!(literal("a'b\\"), "E'a''b\\\\'");
    }
}
