//! Declares a kind of value that one key has: what the reference and the schema say of it, and the function that reads it,
//! in one place, so that none of them can change without the others in view.

use serde_json::Value;

use crate::language::key::Type;
use crate::language::reader::Field;

/// A kind of value. `Read` is the type of the function that reads one: [`ReadField`], or a function that needs more than
/// the value.
#[derive(Debug)]
pub struct ValueKind<Read> {
    /// How the reference names it, in Markdown.
    pub text: &'static str,
    pub schema: fn() -> Value,
    /// Returns `None` after it has reported that the value is invalid.
    pub read: Read,
}

/// Reads a value that depends on nothing but itself.
pub type ReadField<T> = fn(Field<'_>) -> Option<T>;

impl<Read> ValueKind<Read> {
    /// What a key declares that has such values.
    pub const fn declared(&self) -> Type {
        Type::Own { text: self.text, schema: self.schema }
    }
}
