//! Defines where the gateway's fields are written, and what is asked of the fields beside which they are written.

use http::HeaderValue;

/// A response to which fields are added. Names come from our sources, and values were checked when they were made: neither
/// contains a line end.
pub(crate) trait FieldWriter {
    fn field(&mut self, name: &'static str, value: &HeaderValue);

    fn number(&mut self, name: &'static str, number: u64);
}

/// The fields of a response to which the gateway's are added.
pub(crate) trait UpstreamFields {
    /// Whether `wanted` holds for any name.
    fn any_name(&self, wanted: impl Fn(&[u8]) -> bool) -> bool;

    /// The value of the first field of this name, in any spelling.
    fn first(&self, name: &str) -> Option<&[u8]>;

    fn remove(&mut self, name: &'static str);

    /// Whether `wanted` holds for any value of this field. The name may have any spelling.
    fn any_value(&self, name: &'static str, wanted: impl Fn(&[u8]) -> bool) -> bool;
}
