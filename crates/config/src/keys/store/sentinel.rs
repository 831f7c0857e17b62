//! Reads `sentinel` of `redis`: the sentinels that name the server with the buckets, and the login for them.

use serde_json::json;

use crate::keys::client_tls::CLIENT_TLS;
use crate::keys::store::host_ports::{host_port, host_ports, wrong_host_port};
use crate::keys::store::store_login::{one_password, password, tls_of_any_host};
use crate::language::environment::Environment;
use crate::language::key::{Key, Mapping, PATH, TEXT, Type};
use crate::language::reader::Field;
use crate::language::shape::{List, Scalars, Shape, Text};
use crate::language::value_kind::{ParseText, ReadField, ValueKind};
use base::host_port::HostPort;
use stores::redis::Login;
use stores::redis::sentinel::{DEFAULT_PORT, Settings};

const MASTER: ValueKind<ParseText<String>> = ValueKind::new(
    "text",
    Shape::Text(Text::new(
        Scalars::Written,
        &["^[A-Za-z0-9_.-]+$"],
        "be the name of a master: letters, digits, `_`, `.` and `-`",
    )),
    |name| Some(name.to_owned()),
);

const NODE: ValueKind<ParseText<HostPort>> = host_port(
    "be a host with a port, like s1.internal:26379 or [2001:db8::1]:26379",
    |field, must| wrong_host_port(field, must, "sentinels have no databases: nothing follows the port"),
    |text| HostPort::parse(text, DEFAULT_PORT),
);

const NODES: ValueKind<ReadField<Vec<HostPort>>> = ValueKind::new(
    "list of `HOST:PORT`",
    Shape::List(List::non_empty(&NODE.shape, "name at least one sentinel")),
    |field| host_ports(&field, NODE),
);

pub(crate) static SENTINEL: Mapping = Mapping {
    heading: Some("key in `sentinel`"),
    definition: None,
    keys: &[
        Key::required("master", MASTER.declared(), "The name of the master."),
        Key::required("nodes", NODES.declared(), "The sentinels to ask; port 26379 by default. They name the others."),
        Key::optional("username", TEXT, "The user of the sentinels."),
        Key::optional("password", TEXT, "The password for the sentinels; an empty one does not count."),
        Key::optional("password_file", PATH, "A file that holds this password."),
        Key::default("tls", Type::Switch(&CLIENT_TLS), "false", "Encrypts connections to the sentinels."),
    ],
    constraints: || json!({"dependencies": one_password()}),
};

pub(crate) fn sentinel(field: Field<'_>, environment: Environment<'_>) -> Option<Settings> {
    let section = field.section(&SENTINEL)?;
    // Unknown values are replaced by values that cause no warning.
    let master = section.need("master").and_then(|field| field.known_or("unknown", |field| MASTER.read(field)));
    let nodes = section.need("nodes").and_then(|field| NODES.read(field));
    let username = section.optional("username", |field| Some(field.written()?.to_owned()));
    let password = password(&section, environment, None);
    let tls = tls_of_any_host(&section, environment);
    section.close();
    let username = username?.filter(|name| !name.is_empty());
    let login = Login { username, password: password?, tls: tls? };
    Some(Settings { master: master?, nodes: nodes?, login })
}
