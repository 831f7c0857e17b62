//! Reads `threads`: how many threads proxy.

use serde_json::json;

use super::reader::Field;
use super::value_kind::{ReadField, ValueKind};
use super::value_types::reference;

/// How many threads proxy. Each has a runtime of its own, and a socket of its own on every listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// One for each core that this process may use.
    Auto,
    Exactly(usize),
}

const MOST: usize = 256;

pub const THREADS: ValueKind<ReadField<Threads>> = ValueKind {
    text: "`auto`, or 1 to 256",
    schema: || {
        json!({"anyOf": [
            {"const": "auto"},
            {"type": "integer", "minimum": 1, "maximum": MOST},
            {"type": "string", "pattern": r"^\+?[0-9]+$"},
            reference()
        ]})
    },
    read: threads,
};

fn threads(field: Field<'_>) -> Option<Threads> {
    if field.written()? == "auto" {
        return Some(Threads::Auto);
    }
    match field.written()?.parse() {
        Ok(threads @ 1..=MOST) => Some(Threads::Exactly(threads)),
        _ => {
            field.must(format_args!("be auto or a whole number from 1 to {MOST}"));
            None
        }
    }
}
