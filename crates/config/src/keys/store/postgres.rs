//! Reads `postgres` in `store`: the PostgreSQL server that has the buckets.

use serde_json::{Value, json};

use crate::keys::client_tls::CLIENT_TLS;
use crate::keys::store::store_login::{PASSWORD, PASSWORD_FILE, one_password, password, tls_of_any_host, wrong_url};
use crate::keys::store::store_role::StoreRole;
use crate::language::environment::Environment;
use crate::language::key::{Key, Mapping, POSITIVE_DURATION, Type, and_key, names};
use crate::language::reader::Field;
use crate::language::shape::{Scalars, Shape, Text};
use crate::language::value_kind::{ParseText, ValueKind};
use stores::breaker;
use stores::postgres::{Durability, InvalidUrl, Settings, TableName, Url};
use stores::redis::Login;

const URL: ValueKind<ParseText<Url>> = ValueKind::reporting(
    "URL",
    Shape::Text(Text::new(
        Scalars::Text,
        &["^postgres(ql)?://[^?#]+[?]?[^?#]*$"],
        "be a URL like postgres://tollgate@127.0.0.1/limits or postgres://tollgate@a,b:5433/limits",
    )),
    |url| Url::parse(url).ok(),
    no_url,
);

fn no_url(field: &Field<'_>, must: &str) {
    let must = match Url::parse(field.text_if_any().unwrap_or_default()) {
        Ok(_) | Err(InvalidUrl::Shape) => must,
        Err(InvalidUrl::SslMode) => "not have `sslmode` or its like: the key `tls` says whether and how to encrypt",
        Err(InvalidUrl::Parameter) => "have no parameter other than target_session_attrs=read-write",
        Err(InvalidUrl::NoUser) => "name the user, like postgres://tollgate@127.0.0.1/limits",
    };
    wrong_url(field, must);
}

const TABLE: ValueKind<ParseText<TableName>> = ValueKind::reporting(
    "name of a table, `table` or `schema.table`",
    Shape::Text(Text::new(
        Scalars::Written,
        &["^([a-z_][a-z0-9_]{0,62}[.])?[a-z_][a-z0-9_]{0,54}$"],
        "be 1 to 55 of lower-case letters, digits and `_`, not beginning with a digit; `SCHEMA.` may precede it",
    )),
    TableName::parse,
    |field, must| field.wrong(format_args!("must {must}"), None),
);

const DURABILITY: [(&str, Durability); 3] = [
    (Durability::None.name(), Durability::None),
    (Durability::Async.name(), Durability::Async),
    (Durability::Sync.name(), Durability::Sync),
];

/// The keys of a PostgreSQL, without `timeout`.
const KEYS: [Key; 6] = [
    Key::required(
        "url",
        URL.declared(),
        "`postgres://USER:PASSWORD@HOST:PORT/DATABASE`. Of several hosts, `a,b:5433`, the first that accepts \
         writes is used.",
    ),
    PASSWORD,
    PASSWORD_FILE,
    Key::default("tls", Type::Switch(&CLIENT_TLS), "false", "Encrypts the connection. `url` has no `sslmode`."),
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
];
const TIMEOUT: Key = Key::default("timeout", POSITIVE_DURATION, "50ms", "How long a decision waits for PostgreSQL.");
static KEYS_WITH_TIMEOUT: [Key; 7] = and_key(KEYS, TIMEOUT);

pub(crate) static POSTGRES: Mapping =
    Mapping { heading: Some("key in `postgres`"), definition: Some("postgres"), keys: &KEYS_WITH_TIMEOUT, constraints };

/// The PostgreSQL of `home`, beside which the `timeout` stands.
pub(crate) static HOME_POSTGRES: Mapping =
    Mapping { heading: None, definition: Some("home_postgres"), keys: &KEYS, constraints };

fn constraints() -> Value {
    json!({"dependencies": one_password()})
}

pub(crate) fn postgres(field: Field<'_>, environment: Environment<'_>, role: StoreRole) -> Option<Settings> {
    let section = field.section(role.of(&POSTGRES, &HOME_POSTGRES))?;
    // An unknown host becomes `localhost`, to avoid a warning that a password is sent without TLS.
    let url = section
        .need("url")
        .and_then(|field| field.known_or("postgres://tollgate@localhost/tollgate", |field| URL.read(field)));
    let password = password(&section, environment, url.as_ref().and_then(|url| url.password.clone()));
    // The URL may name several hosts, so the TLS client is made for any host.
    let tls = tls_of_any_host(&section, environment);
    let timeout = role.timeout(&section);
    let table = section.value("table", |field| TABLE.read(field));
    let durability = section.choice("durability", &DURABILITY);
    role.close(section, "postgres");
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
