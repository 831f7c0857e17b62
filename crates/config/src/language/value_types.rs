//! Defines, for the JSON Schema, the kinds of values that several keys have.
//!
//! A type here accepts everything that the reader accepts, in every spelling, and a reference to the environment where
//! that may stand for the value. It rejects as much of the rest as a schema can express.

use serde_json::{Value, json};

use crate::language::duration::UNITS;

/// An IP address with a port.
pub const SOCKET_ADDRESS_PATTERN: &str = r"^([0-9.]+|\[[0-9A-Fa-f:.]+(%[0-9]+)?\]):[0-9]+$";

/// A value that has a reference to the environment in it, which may become anything.
pub fn reference() -> Value {
    json!({"$ref": "#/definitions/reference"})
}

/// A text that matches a pattern. `must` is what an editor says of one that does not.
pub fn pattern(pattern: &str, must: &str) -> Value {
    json!({"type": "string", "pattern": pattern, "patternErrorMessage": must})
}

pub fn or_reference(value: Value) -> Value {
    json!({"anyOf": [value, reference()]})
}

/// The scalars that several keys have, by name.
pub fn scalars() -> Vec<(&'static str, Value)> {
    let any = json!(["string", "number", "boolean"]);
    let name = "must be 1 to 64 of letters, digits, _ . and -";
    let duration = "must be a duration like 250ms, 20s, 5m, 1h or 1d";
    let positive = "must be a duration above 0, like 250ms, 20s, 5m, 1h or 1d";
    let socket_address = "must be an IP address with a port, like 0.0.0.0:8080 or [::]:8080";
    let network = r"^([0-9]+(\.[0-9]+){3}(/0*([0-9]|[12][0-9]|3[0-2]))?|[0-9A-Fa-f]*:[0-9A-Fa-f:.]+(/0*([0-9]{1,2}|1[01][0-9]|12[0-8]))?)$";
    vec![
        ("reference", json!({"type": "string", "pattern": r"\$\{[A-Za-z_][A-Za-z0-9_]*(:-[^}]*)?\}"})),
        ("scalar", json!({"type": any})),
        ("path", json!({"type": any})),
        ("boolean", or_reference(json!({"type": "boolean"}))),
        ("name", or_reference(json!({"type": any, "pattern": "^[A-Za-z0-9_.-]{1,64}$", "patternErrorMessage": name}))),
        ("duration", or_reference(pattern(&format!("^[0-9]+(ms|{UNITS})$"), duration))),
        ("positive_duration", or_reference(pattern(&format!("^0*[1-9][0-9]*(ms|{UNITS})$"), positive))),
        ("size", or_reference(pattern("^[0-9]+(B|KiB|MiB|GiB)$", "must be a size like 512B, 64KiB, 10MiB or 1GiB"))),
        ("socket_address", or_reference(pattern(SOCKET_ADDRESS_PATTERN, socket_address))),
        ("network", or_reference(pattern(network, "must be a network like 10.0.0.0/8 or 2001:db8::/32"))),
    ]
}
