//! Declares a kind of value: how the reference names it, the shape that its schema and its check are made of, and the function
//! that reads a value of this shape.

use crate::language::key::Type;
use crate::language::reader::{Field, ReportMismatch};
use crate::language::shape::Shape;

/// A kind of value. `Read` is the type of the function that reads one: [`ReadField`], [`ParseText`], or a function that needs
/// more than the value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ValueKind<Read> {
    /// The name of the kind in the reference, in Markdown.
    pub text: &'static str,
    pub shape: Shape,
    /// Private: only [`ValueKind::checked`] returns it, so that nothing is read that the schema rejects.
    read: Read,
    /// Reports a text that does not match its pattern: without the value if that may be a secret, or with a hint.
    report: ReportMismatch,
}

/// Reads a value that depends on nothing but itself. Returns `None` after it has reported that the value is invalid.
pub(crate) type ReadField<T> = fn(Field<'_>) -> Option<T>;

/// Parses the text of a single value. `None` if it is invalid, which is reported with the message of the shape.
pub(crate) type ParseText<T> = fn(&str) -> Option<T>;

impl<Read: Copy> ValueKind<Read> {
    pub(crate) const fn new(text: &'static str, shape: Shape, read: Read) -> ValueKind<Read> {
        ValueKind::reporting(text, shape, read, |field, must| field.must(must))
    }

    /// Makes a kind of value. `report` reports texts that are invalid.
    pub(crate) const fn reporting(
        text: &'static str,
        shape: Shape,
        read: Read,
        report: ReportMismatch,
    ) -> ValueKind<Read> {
        ValueKind { text, shape, read, report }
    }

    /// The type of a key with such values.
    pub(crate) const fn declared(&self) -> Type {
        Type::Own { text: self.text, shape: self.shape }
    }

    /// Checks the shape of the value and returns the function that reads it. `None` after reporting a problem.
    pub(crate) fn checked(&self, field: &Field<'_>) -> Option<Read> {
        field.check_reporting(&self.shape, self.report).map(|()| self.read)
    }
}

impl<T> ValueKind<ReadField<T>> {
    /// Reads a value. `None` after reporting that it is invalid.
    pub(crate) fn read(&self, field: Field<'_>) -> Option<T> {
        (self.checked(&field)?)(field)
    }
}

impl<T> ValueKind<ParseText<T>> {
    /// Reads a value. `None` after reporting that it is invalid.
    pub(crate) fn read(&self, field: Field<'_>) -> Option<T> {
        let parsed = (self.checked(&field)?)(field.text_if_any()?);
        if parsed.is_none() {
            (self.report)(&field, &self.shape.must());
        }
        parsed
    }
}
