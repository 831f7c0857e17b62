//! Reads the address of a listener: an IP address with a port, or a Unix domain socket.

use crate::keys::listeners::socket_path::{SOCKET_PATTERN, SOCKET_SHAPE, UNIX, socket_path};
use crate::language::reader::Field;
use crate::language::shape::{Scalars, Shape, Text};
use crate::language::value_kind::{ParseText, ValueKind};
use crate::language::value_types::{SOCKET_ADDRESS, SOCKET_ADDRESS_PATTERN};
use base::endpoint_address::EndpointAddress;

pub(crate) const LISTEN_ADDRESS: ValueKind<ParseText<EndpointAddress>> = ValueKind::reporting(
    "IP address with port, or `unix:PATH`",
    Shape::Text(Text::new(
        Scalars::Spelling,
        &[SOCKET_ADDRESS_PATTERN, SOCKET_PATTERN],
        "be an IP address with a port, like 0.0.0.0:8080 or [::]:8080, or a socket like unix:/run/tollgate.sock",
    )),
    |text| match text.strip_prefix(UNIX) {
        Some(path) => socket_path(path).map(EndpointAddress::Unix),
        None => text.parse().ok().map(EndpointAddress::Inet),
    },
    no_address,
);

fn no_address(field: &Field<'_>, _: &str) {
    let text = field.text_if_any().unwrap_or_default();
    if text.starts_with(UNIX) {
        return field.must(SOCKET_SHAPE);
    }
    let hint = socket_path(text).map(|_| format!("did you mean `{UNIX}{text}`?"));
    field.must_hinting(SOCKET_ADDRESS.must(), hint);
}
