//! Reads `socket_mode` of a listener: who may connect to a Unix domain socket.

use serde_json::{Value, json};

use crate::keys::listeners::socket_path::UNIX;
use crate::language::key::{Key, names};
use crate::language::reader::Section;
use crate::language::shape::Shape;
use crate::language::value_kind::{ReadField, ValueKind};
use base::endpoint_address::EndpointAddress;

/// The permissions of a Unix domain socket's file. To connect, a process needs the permission to write to this file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketMode {
    User,
    Group,
    Everyone,
}

impl SocketMode {
    pub fn bits(self) -> u32 {
        match self {
            SocketMode::User => 0o600,
            SocketMode::Group => 0o660,
            SocketMode::Everyone => 0o666,
        }
    }
}

const MODES: [(&str, SocketMode); 3] =
    [("600", SocketMode::User), ("660", SocketMode::Group), ("666", SocketMode::Everyone)];

const SOCKET_MODE: ValueKind<ReadField<SocketMode>> =
    ValueKind::new("`600`, `660`, `666`", Shape::Numerals(&names(&MODES)), |field| field.choice(&MODES));

pub(crate) const SOCKET_MODE_KEY: Key = Key::depends(
    "socket_mode",
    SOCKET_MODE.declared(),
    "what the umask leaves",
    "With `unix:PATH`: who may connect. `600`: the gateway's own user, `660`: its group as well, `666`: everyone.",
);

/// Returns the key `socket_mode`, and the constraint that the schema puts on it: the address of the listener must be a path.
pub(crate) fn constraints() -> (&'static str, Value) {
    let path = json!({"anyOf": [{"pattern": format!("^{UNIX}")}, {"$ref": "#/definitions/reference"}]});
    ("socket_mode", json!({"properties": {"address": path}}))
}

/// Reads `socket_mode` of a listener. `Some(None)`: the key is missing. `None` after reporting a problem.
pub(crate) fn socket_mode(section: &Section<'_>, address: Option<&EndpointAddress>) -> Option<Option<SocketMode>> {
    let mode = section.optional("socket_mode", |field| SOCKET_MODE.read(field));
    let has_path = section.is_unknown("address") || address.is_none_or(|address| address.inet().is_none());
    if section.has("socket_mode") && !has_path {
        section.unwanted("socket_mode", "needs an `address` that is a path, like `unix:/run/tollgate.sock`");
        return None;
    }
    mode
}
