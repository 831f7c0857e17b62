//! Reads `threads`: how many threads proxy.

use serde_json::json;

use crate::language::reader::Field;
use crate::language::value_kind::{ReadField, ValueKind};
use crate::language::value_types::reference;

/// How many threads proxy. Each has a runtime of its own, and a socket of its own on every listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// One for each core that this process may use.
    Auto,
    Exactly(usize),
}

const MAX_THREADS: usize = 256;

pub const THREADS: ValueKind<ReadField<Threads>> = ValueKind {
    text: "`auto`, or 1 to 256",
    schema: || {
        json!({"anyOf": [
            {"const": "auto"},
            {"type": "integer", "minimum": 1, "maximum": MAX_THREADS},
            reference()
        ]})
    },
    read: threads,
};

fn threads(field: Field<'_>) -> Option<Threads> {
    if field.is_written("auto") {
        return Some(Threads::Auto);
    }
    match field.number().map(str::parse) {
        Some(Ok(threads @ 1..=MAX_THREADS)) => Some(Threads::Exactly(threads)),
        _ => {
            let hint = field.hint_for_number();
            field.must_hinting(format_args!("be auto or a whole number from 1 to {MAX_THREADS}"), hint);
            None
        }
    }
}
