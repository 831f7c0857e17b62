//! Declares a kind of value: its name in the reference (docs/configuration), its shape, and the function that reads it.

use crate::language::key::Type;
use crate::language::reader::{Field, ReportMismatch};
use crate::language::shape::Shape;

/// A kind of value. `Read` is the type of the function that reads it: [`ReadField`], [`ParseText`], or a function with
/// more parameters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ValueKind<Read> {
    /// The name of the kind as the reference (docs/configuration) prints it, in Markdown.
    pub text: &'static str,
    pub shape: Shape,
    /// Reads a value. [`ValueKind::checked`] checks the shape first.
    read: Read,
    /// Reports a text that does not match the pattern of the shape. The report may add a hint, or leave out a secret.
    report: ReportMismatch,
}

/// Reads a value that depends on nothing else in the file. Returns `None` after reporting that the value is invalid.
pub(crate) type ReadField<T> = fn(Field<'_>) -> Option<T>;

/// Parses the text of a single value. Returns `None` if the text is invalid. The caller then reports the message of the shape.
pub(crate) type ParseText<T> = fn(&str) -> Option<T>;

impl<Read: Copy> ValueKind<Read> {
    pub(crate) const fn new(text: &'static str, shape: Shape, read: Read) -> ValueKind<Read> {
        ValueKind::reporting(text, shape, read, |field, must| field.must(must))
    }

    /// Makes a kind of value. `report` reports a text that does not match the pattern of the shape or cannot be read.
    pub(crate) const fn reporting(
        text: &'static str,
        shape: Shape,
        read: Read,
        report: ReportMismatch,
    ) -> ValueKind<Read> {
        ValueKind { text, shape, read, report }
    }

    /// Returns the type for the declaration of a key with values of this kind.
    pub(crate) const fn declared(&self) -> Type {
        Type::Own { text: self.text, shape: self.shape }
    }

    /// Checks the shape of the value, and returns the function that reads the value. `None` after reporting a problem.
    pub(crate) fn checked(&self, field: &Field<'_>) -> Option<Read> {
        field.check_reporting(&self.shape, self.report).map(|()| self.read)
    }
}

impl<T> ValueKind<ReadField<T>> {
    /// Reads a value of this kind. `None` after reporting that the value is invalid.
    pub(crate) fn read(&self, field: Field<'_>) -> Option<T> {
        (self.checked(&field)?)(field)
    }
}

impl<T> ValueKind<ParseText<T>> {
    /// Parses a value of this kind. `None` after reporting that the value is invalid.
    pub(crate) fn read(&self, field: Field<'_>) -> Option<T> {
        let parsed = (self.checked(&field)?)(field.text_if_any()?);
        if parsed.is_none() {
            (self.report)(&field, &self.shape.must());
        }
        parsed
    }
}
