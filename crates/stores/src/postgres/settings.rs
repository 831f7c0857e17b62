//! The settings of a PostgreSQL store.

use crate::breaker;
use crate::remote::login::Login;
use base::host_port::HostPort;
use base::time::Micros;

pub(super) const DEFAULT_PORT: u16 = 5432;

/// The largest length of an object's name in PostgreSQL, in bytes.
const LONGEST_NAME: usize = 63;

/// The table of heartbeats has the name of the table of buckets with this suffix.
const GATEWAYS: &str = "_gateway";

/// The largest number of connections of one gateway. Each runs one transaction at a time. More connections would not
/// decide more, because transactions on the same bucket wait for each other.
const MOST_CONNECTIONS: usize = 2;

/// Returns the number of connections that a gateway with this many workers makes.
pub(crate) fn connections(workers: usize) -> usize {
    workers.min(MOST_CONNECTIONS)
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The servers of the database, at least one. One of them accepts writes.
    pub hosts: Vec<HostPort>,
    pub database: String,
    pub login: Login,
    /// The longest time that a request waits for a decision.
    pub timeout: Micros,
    pub table: TableName,
    pub durability: Durability,
    pub breaker: breaker::Settings,
    /// During an outage, the limits are divided among at least this number of gateways.
    pub gateways: u64,
}

/// Which changes the database keeps after a crash or a failover.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// No changes are kept, because the tables are not logged.
    None,
    /// All changes but the last ones are kept, because a commit does not wait for the disk.
    #[default]
    Async,
    /// All grants are kept, because a commit waits for the disk.
    Sync,
}

/// The table with the buckets, as gateway.yaml names it: `table` or `schema.table`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableName {
    text: String,
}

impl Settings {
    /// Returns the name of the user who logs in.
    pub fn user(&self) -> &str {
        self.login.username.as_deref().unwrap_or_default()
    }
}

impl Durability {
    pub const ALL: [Durability; 3] = [Durability::None, Durability::Async, Durability::Sync];

    /// Returns the value of `durability` in gateway.yaml.
    pub const fn name(self) -> &'static str {
        match self {
            Durability::None => "none",
            Durability::Async => "async",
            Durability::Sync => "sync",
        }
    }

    /// Whether changes of the tables are written to the write-ahead log, so that they survive a crash.
    pub fn is_logged(self) -> bool {
        self != Durability::None
    }
}

impl TableName {
    /// Parses the name of a table, which may begin with the name of a schema. Each name must consist of lower-case
    /// letters, digits and `_`, must not begin with a digit, and must not be too long. Returns `None` for any other
    /// name.
    pub fn parse(text: &str) -> Option<TableName> {
        let is_name = |name: &str, longest: usize| {
            let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
            let begins = name.bytes().next().is_some_and(|byte| !byte.is_ascii_digit());
            begins && name.len() <= longest && name.bytes().all(plain)
        };
        let (schema, table) = match text.split_once('.') {
            Some((schema, table)) => (Some(schema), table),
            None => (None, text),
        };
        let valid =
            is_name(table, LONGEST_NAME - GATEWAYS.len()) && schema.is_none_or(|schema| is_name(schema, LONGEST_NAME));
        valid.then(|| TableName { text: text.to_owned() })
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the name of the table in quotes.
    pub fn quoted(&self) -> String {
        format!("\"{}\"", self.text.replace('.', "\".\""))
    }

    /// Returns the name of the table with the heartbeats, in quotes.
    pub(crate) fn gateways_quoted(&self) -> String {
        TableName { text: format!("{}{GATEWAYS}", self.text) }.quoted()
    }

    /// Returns the name of the schema, in quotes. `None` if gateway.yaml names no schema.
    pub(crate) fn schema_quoted(&self) -> Option<String> {
        self.text.split_once('.').map(|(schema, _)| format!("\"{schema}\""))
    }
}

impl Default for TableName {
    fn default() -> TableName {
        TableName { text: "tollgate_bucket".to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_a_name_that_means_the_same_with_and_without_quotes() {
        let quoted = |text| TableName::parse(text).map(|table| (table.quoted(), table.gateways_quoted()));
        let names = |a: &str, b: &str| Some((a.to_owned(), b.to_owned()));
        assert_eq!(quoted("tollgate_bucket"), names("\"tollgate_bucket\"", "\"tollgate_bucket_gateway\""));
        assert_eq!(quoted("limits.user"), names("\"limits\".\"user\"", "\"limits\".\"user_gateway\""));
        assert_eq!(TableName::parse("limits.user").unwrap().schema_quoted().as_deref(), Some("\"limits\""));
        assert_eq!(TableName::parse(&"a".repeat(55)).unwrap().schema_quoted(), None);
        let long = "a".repeat(56);
        for wrong in ["", "A", "1a", "a-b", "a b", "a\"b", "a.b.c", ".a", "a.", "é", &*long] {
            assert_eq!(TableName::parse(wrong), None, "{wrong}");
        }
    }
}
