//! Defines the changes that a route makes to the requests that it forwards, and to their responses.

use http::HeaderValue;

use super::header_changes::{HeaderChanges, ResolvedChanges};
use super::overrides::Overrides;
use super::prefix_replacement::PrefixReplacement;
use request::attribute::Attribute;
use request::request::Request;

/// The changes that a route makes to the requests that it forwards, and to their responses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Forwarding {
    pub rewrite: Rewrite,
    pub request_headers: HeaderChanges,
    pub response_headers: HeaderChanges,
    pub overrides: Overrides,
    pub client_certificate: ForwardedCertificate,
}

/// Whether the upstream gets the properties of the client's verified certificate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ForwardedCertificate {
    #[default]
    No,
    Yes,
}

/// The host and path with which a request is forwarded. `None` keeps what the client has sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rewrite {
    pub path: Option<PrefixReplacement>,
    /// The prefix that is removed from the path without a replacement. The upstream gets it in `X-Forwarded-Prefix`.
    pub stripped: Option<HeaderValue>,
    pub host: Option<HeaderValue>,
}

/// The changes of header fields in one request and in its response.
#[derive(Clone, Debug, Default)]
pub struct FieldChanges {
    pub request: ResolvedChanges,
    pub response: ResolvedChanges,
}

impl Forwarding {
    /// Returns the attributes that the changes of header fields contain.
    pub fn attributes(&self) -> impl Iterator<Item = &Attribute> {
        self.request_headers.attributes().chain(self.response_headers.attributes())
    }

    /// Returns the changes of header fields for a request. `None` if the route changes no header fields.
    pub fn field_changes(&self, request: &Request<'_>) -> Option<Box<FieldChanges>> {
        if self.request_headers.is_empty() && self.response_headers.is_empty() {
            return None;
        }
        let (request_headers, response_headers) = (&self.request_headers, &self.response_headers);
        Some(Box::new(FieldChanges {
            request: request_headers.resolve(request),
            response: response_headers.resolve(request),
        }))
    }
}
