//! Reads the address of a listener: an IP address with a port, or a Unix domain socket.

use serde_json::json;

use crate::keys::listeners::socket_path::{SOCKET_PATTERN, SOCKET_SHAPE, UNIX, socket_path};
use crate::language::reader::{Field, SOCKET_ADDRESS_SHAPE};
use crate::language::value_kind::{ReadField, ValueKind};
use crate::language::value_types::{SOCKET_ADDRESS_PATTERN, reference};
use base::endpoint_address::EndpointAddress;

pub const LISTEN_ADDRESS: ValueKind<ReadField<EndpointAddress>> = ValueKind {
    text: "IP address with port, or `unix:PATH`",
    schema: || {
        json!({"anyOf": [
            {
                "type": "string",
                "pattern": format!("{SOCKET_ADDRESS_PATTERN}|{SOCKET_PATTERN}"),
                "patternErrorMessage":
                    "must be an IP address with a port, like 0.0.0.0:8080 or [::]:8080, or a socket like unix:/run/tollgate.sock"
            },
            reference()
        ]})
    },
    read: listen_address,
};

fn listen_address(field: Field<'_>) -> Option<EndpointAddress> {
    let Some(text) = field.scalar().map(|scalar| &*scalar.text) else {
        return field.socket_address().map(EndpointAddress::Inet);
    };
    match text.strip_prefix(UNIX) {
        Some(path) => {
            let path = socket_path(path);
            if path.is_none() {
                field.must(SOCKET_SHAPE);
            }
            path.map(EndpointAddress::Unix)
        }
        None if socket_path(text).is_some() => {
            field.must_hinting(SOCKET_ADDRESS_SHAPE, Some(format!("did you mean `{UNIX}{text}`?")));
            None
        }
        None => field.socket_address().map(EndpointAddress::Inet),
    }
}
