//! Holds the changes that a route makes to the requests that it forwards, and to their responses.

use http::HeaderValue;

use super::header_changes::{HeaderChanges, ResolvedChanges};
use super::overrides::Overrides;
use super::prefix_replacement::PrefixReplacement;
use request::attribute::Attribute;
use request::request::Request;

/// The changes that a route makes to its requests and responses.
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

/// The host and path that replace those of the client's request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rewrite {
    pub path: Option<PrefixReplacement>,
    /// The prefix that is removed from the path without a replacement; `X-Forwarded-Prefix` tells the upstream.
    pub stripped: Option<HeaderValue>,
    pub host: Option<HeaderValue>,
}

/// The changes of header fields for one request.
#[derive(Clone, Debug, Default)]
pub struct FieldChanges {
    pub request: ResolvedChanges,
    pub response: ResolvedChanges,
}

impl Forwarding {
    /// The attributes that the changes depend on.
    pub fn attributes(&self) -> impl Iterator<Item = &Attribute> {
        self.request_headers.attributes().chain(self.response_headers.attributes())
    }

    /// The changes of header fields for a request, if there are any.
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
