//! Writes fields of a response in one of two forms: as lines of text, or as entries of a header map.

use std::convert::Infallible;

use http::header::InvalidHeaderName;
use http::{HeaderMap, HeaderName, HeaderValue};
use pingora::http::ResponseHeader;
use pingora::{ErrorType, OrErr};

use super::pending_fields::RawFields;
use super::request_id;

/// The place to which fields are written. Names are from our sources, and values were checked when they were made: neither has a
/// line end.
pub trait FieldWriter {
    type Error;

    fn field(&mut self, name: &'static str, value: &HeaderValue) -> Result<(), Self::Error>;

    fn number(&mut self, name: &'static str, number: u64) -> Result<(), Self::Error>;

    /// The field that every response has.
    fn request_id(&mut self, value: &HeaderValue) -> Result<(), Self::Error> {
        self.field("X-Request-Id", value)
    }
}

/// The fields of an upstream's response, to which ours are added.
pub trait UpstreamFields {
    /// Whether `wanted` holds for any name, in lower case.
    fn any_name(&self, wanted: impl Fn(&[u8]) -> bool) -> bool;

    /// The value of the first field of this name, in any spelling.
    fn first(&self, name: &str) -> Option<&[u8]>;

    fn remove(&mut self, name: &'static str);

    /// Whether `wanted` holds for any value of this field. The name may have any spelling.
    fn any_value(&self, name: &'static str, wanted: impl Fn(&[u8]) -> bool) -> bool;
}

impl UpstreamFields for HeaderMap {
    fn any_name(&self, wanted: impl Fn(&[u8]) -> bool) -> bool {
        self.keys().any(|name| wanted(name.as_str().as_bytes()))
    }

    fn first(&self, name: &str) -> Option<&[u8]> {
        self.get(name).map(HeaderValue::as_bytes)
    }

    fn remove(&mut self, name: &'static str) {
        HeaderMap::remove(self, name);
    }

    fn any_value(&self, name: &'static str, wanted: impl Fn(&[u8]) -> bool) -> bool {
        self.get_all(name).iter().any(|value| wanted(value.as_bytes()))
    }
}

impl UpstreamFields for ResponseHeader {
    fn any_name(&self, wanted: impl Fn(&[u8]) -> bool) -> bool {
        self.headers.any_name(wanted)
    }

    fn first(&self, name: &str) -> Option<&[u8]> {
        self.headers.first(name)
    }

    fn remove(&mut self, name: &'static str) {
        self.remove_header(name);
    }

    fn any_value(&self, name: &'static str, wanted: impl Fn(&[u8]) -> bool) -> bool {
        self.headers.any_value(name, wanted)
    }
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

/// Appends fields, as text does: a list field of the upstream stays beside ours.
impl FieldWriter for ResponseHeader {
    type Error = pingora::BError;

    fn field(&mut self, name: &'static str, value: &HeaderValue) -> pingora::Result<()> {
        self.append_header(name, value.clone()).map(drop)
    }

    fn number(&mut self, name: &'static str, number: u64) -> pingora::Result<()> {
        self.append_header(name, HeaderValue::from(number)).map(drop)
    }
}

/// Appends fields likewise. The spelling of names is not kept.
impl FieldWriter for HeaderMap {
    type Error = pingora::BError;

    fn field(&mut self, name: &'static str, value: &HeaderValue) -> pingora::Result<()> {
        append(self, HeaderName::from_bytes(name.as_bytes()), value.clone())
    }

    fn number(&mut self, name: &'static str, number: u64) -> pingora::Result<()> {
        append(self, HeaderName::from_bytes(name.as_bytes()), HeaderValue::from(number))
    }

    fn request_id(&mut self, value: &HeaderValue) -> pingora::Result<()> {
        append(self, Ok(request_id::NAME), value.clone())
    }
}

fn append(
    fields: &mut HeaderMap,
    name: Result<HeaderName, InvalidHeaderName>,
    value: HeaderValue,
) -> pingora::Result<()> {
    let name = name.or_err(ErrorType::InvalidHTTPHeader, "invalid name of a field")?;
    fields.try_append(name, value).map(drop).or_err(ErrorType::InvalidHTTPHeader, "too many fields")
}
