//! Reads lists of hosts with ports: `nodes` of `sentinel` and of `cluster`.

use crate::language::reader::{Field, all};
use crate::language::shape::{Scalars, Shape, Text};
use crate::language::value_kind::{ParseText, ValueKind};
use base::host_port::HostPort;

/// Declares the kind of value for a host with a port. `report` reports an invalid value with the message `must`.
pub(crate) const fn host_port(
    must: &'static str,
    report: fn(&Field<'_>, &str),
    parse: ParseText<HostPort>,
) -> ValueKind<ParseText<HostPort>> {
    let patterns = &[r"^([A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?$"];
    ValueKind::reporting("`HOST:PORT`", Shape::Text(Text::new(Scalars::Text, patterns, must)), parse, report)
}

/// Reads a list of hosts, each with a port. An unknown host becomes `localhost`, to avoid a warning that a password is
/// sent without TLS.
pub(crate) fn host_ports(field: &Field<'_>, kind: ValueKind<ParseText<HostPort>>) -> Option<Vec<HostPort>> {
    all(field.list()?, |member| member.known_or("localhost", |field| kind.read(field)))
}

/// Reports an invalid host with a port. `no_database` is the hint if the value names a database, as a URL can.
pub(crate) fn wrong_host_port(field: &Field<'_>, must: &str, no_database: &str) {
    let text = field.text_if_any().unwrap_or_default();
    let (_, after_scheme) = text.split_once("://").unwrap_or(("", text));
    let has_database = after_scheme.split_once('/').is_some_and(|(_, database)| !database.is_empty());
    // The message does not show a text with an `@`, because it may be a URL with a password.
    let field = if text.contains('@') { field.clone().hidden() } else { field.clone() };
    field.must_hinting(must, has_database.then(|| no_database.to_owned()));
}
