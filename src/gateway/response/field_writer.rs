//! Defines where the gateway writes its fields, and how it reads the fields of an upstream's response.

use http::HeaderValue;

/// A response head to which the gateway adds fields. Neither names nor values contain a line end.
pub(crate) trait FieldWriter {
    fn field(&mut self, name: &'static str, value: &HeaderValue);

    fn number(&mut self, name: &'static str, number: u64);
}

/// The fields that a response already has when the gateway adds its own.
pub(crate) trait UpstreamFields {
    /// Returns whether `wanted` holds for the name of any field.
    fn any_name(&self, wanted: impl Fn(&[u8]) -> bool) -> bool;

    /// Returns the value of the first field of this name. Upper and lower case count as equal in names.
    fn first(&self, name: &str) -> Option<&[u8]>;

    fn remove(&mut self, name: &'static str);

    /// Returns whether `wanted` holds for the value of any field of this name. Upper and lower case count as equal in names.
    fn any_value(&self, name: &'static str, wanted: impl Fn(&[u8]) -> bool) -> bool;
}
