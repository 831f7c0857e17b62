//! Reads `postgres` in `store`: which PostgreSQL has the buckets.

use serde_json::json;

use crate::keys::client_tls::CLIENT_TLS;
use crate::keys::store::store_login::{
    PASSWORD, PASSWORD_FILE, name_schema, one_password, password, tls_of_any_host, url_schema, wrong_url,
};
use crate::language::environment::Environment;
use crate::language::key::{Key, Mapping, POSITIVE_DURATION, Type, names};
use crate::language::reader::Field;
use crate::language::value_kind::{ReadField, ValueKind};
use stores::breaker;
use stores::postgres::{Durability, InvalidUrl, Settings, TableName, Url};
use stores::redis::Login;

const URL_SHAPE: &str =
    "must be a URL like postgres://tollgate@127.0.0.1/limits or postgres://tollgate@a,b:5433/limits";

const URL: ValueKind<ReadField<Url>> =
    ValueKind { text: "URL", schema: || url_schema("^postgres(ql)?://[^?#]+[?]?[^?#]*$", URL_SHAPE), read: url };

const TABLE: ValueKind<ReadField<TableName>> = ValueKind {
    text: "name of a table, `table` or `schema.table`",
    schema: || name_schema("^([a-z_][a-z0-9_]{0,62}[.])?[a-z_][a-z0-9_]{0,54}$", TABLE_SHAPE),
    read: table,
};

const TABLE_SHAPE: &str =
    "must be 1 to 55 of lower-case letters, digits and `_`, not beginning with a digit; `SCHEMA.` may precede it";

const DURABILITY: [(&str, Durability); 3] = [
    (Durability::None.name(), Durability::None),
    (Durability::Async.name(), Durability::Async),
    (Durability::Sync.name(), Durability::Sync),
];

pub static POSTGRES: Mapping = Mapping {
    heading: Some("key in `postgres`"),
    definition: None,
    keys: &[
        Key::required(
            "url",
            URL.declared(),
            "`postgres://USER:PASSWORD@HOST:PORT/DATABASE`. Of several hosts, `a,b:5433`, the first that accepts \
             writes is used.",
        ),
        PASSWORD,
        PASSWORD_FILE,
        Key::default("tls", Type::Switch(&CLIENT_TLS), "false", "Encrypts the connection. `url` has no `sslmode`."),
        Key::default("timeout", POSITIVE_DURATION, "50ms", "How long a decision waits for PostgreSQL."),
        Key::default(
            "table",
            TABLE.declared(),
            "tollgate_bucket",
            "The table with the buckets. `tollgate store init` creates it.",
        ),
        Key::default(
            "durability",
            Type::Choice(&names(&DURABILITY)),
            "async",
            "What a crash or a failover may forget: `none`: everything; `async`: what was granted in the last \
             moments; `sync`: nothing.",
        ),
    ],
    constraints: || json!({"dependencies": one_password()}),
};

pub fn postgres(field: Field<'_>, environment: Environment<'_>) -> Option<Settings> {
    let section = field.section(&POSTGRES)?;
    // In place of an unknown host, one to which every password may be sent.
    let url = section.need("url").and_then(|field| field.known_or("postgres://tollgate@localhost/tollgate", URL.read));
    let password = password(&section, environment, url.as_ref().and_then(|url| url.password.clone()));
    // Each host has a certificate for its own name.
    let tls = tls_of_any_host(&section, environment);
    let timeout = section.positive_duration("timeout");
    let table = section.value("table", TABLE.read);
    let durability = section.choice("durability", &DURABILITY);
    section.close();
    let (url, password) = (url?, password?);
    Some(Settings {
        hosts: url.hosts,
        database: url.database,
        login: Login { username: Some(url.username), password, tls: tls? },
        timeout: timeout?,
        table: table?,
        durability: durability?,
        breaker: breaker::Settings::default(),
        gateways: 1,
    })
}

fn url(field: Field<'_>) -> Option<Url> {
    let what = match Url::parse(field.text()?) {
        Ok(url) => return Some(url),
        Err(InvalidUrl::Shape) => URL_SHAPE,
        Err(InvalidUrl::SslMode) => {
            "must not have `sslmode` or its like: the key `tls` says whether and how to encrypt"
        }
        Err(InvalidUrl::Parameter) => "must have no parameter other than target_session_attrs=read-write",
        Err(InvalidUrl::NoUser) => "must name the user, like postgres://tollgate@127.0.0.1/limits",
    };
    wrong_url(&field, what);
    None
}

fn table(field: Field<'_>) -> Option<TableName> {
    let table = TableName::parse(field.written()?);
    if table.is_none() {
        field.wrong(TABLE_SHAPE, None);
    }
    table
}
