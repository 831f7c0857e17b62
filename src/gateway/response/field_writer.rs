//! The two forms in which fields are added to a response: lines of text, or entries of a header map.

use std::convert::Infallible;

use http::HeaderValue;
use pingora::http::ResponseHeader;

use super::pending_fields::RawFields;

/// Where fields are written. Names are from our sources, and a value was checked when it became one: neither has a line end.
pub trait FieldWriter {
    type Error;

    fn field(&mut self, name: &'static str, value: &HeaderValue) -> Result<(), Self::Error>;

    fn number(&mut self, name: &'static str, number: u64) -> Result<(), Self::Error>;
}

impl FieldWriter for RawFields {
    type Error = Infallible;

    fn field(&mut self, name: &'static str, value: &HeaderValue) -> Result<(), Infallible> {
        self.push(name, value.as_bytes());
        Ok(())
    }

    fn number(&mut self, name: &'static str, number: u64) -> Result<(), Infallible> {
        self.push(name, itoa::Buffer::new().format(number).as_bytes());
        Ok(())
    }
}

/// Appends, as text does: a list field of the upstream stays next to ours.
impl FieldWriter for ResponseHeader {
    type Error = pingora::BError;

    fn field(&mut self, name: &'static str, value: &HeaderValue) -> pingora::Result<()> {
        self.append_header(name, value.clone()).map(drop)
    }

    fn number(&mut self, name: &'static str, number: u64) -> pingora::Result<()> {
        self.append_header(name, HeaderValue::from(number)).map(drop)
    }
}
