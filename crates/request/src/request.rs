//! Defines a request as the rules see it.
//!
//! The request borrows the head from the proxy. Nothing is copied until an attribute needs it.

use super::body_values::BodyValues;
use super::client_address::ClientAddress;
use super::door::Door;
use super::identity::{Claims, Identity, KnownKey};
use super::model_request::ModelBody;
use super::scheme::{Scheme, SchemeSource};
use super::sent_descriptor::SentDescriptor;
use base::split::rsplit_once;
use base::tls::identity::TlsIdentity;

/// The name of the only listener, if the configuration does not name the listener.
pub const ONLY_LISTENER: &str = "http";

/// The parts of a request that rules may read.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    pub head: &'a http::request::Parts,
    pub client: ClientAddress,
    /// The claims of the verified token. `None` if the request has no valid token.
    pub claims: Option<&'a Claims>,
    /// The holder of the API key. `None` if the request has no known key.
    pub key: Option<&'a KnownKey>,
    /// The name of the request's route. Empty before a route is chosen.
    pub route: &'a str,
    /// The name of the request's upstream. Empty before an upstream is chosen.
    pub upstream: &'a str,
    pub scheme: SchemeSource,
    /// The name of the listener on which the request arrived.
    pub listener: &'a str,
    /// The way in which the request reaches the decision. Some doors have no request
    /// ([`Door::has_only_descriptors`]). The head and the client address are then empty.
    pub door: Door,
    /// The properties of the client's TLS connection. If another proxy asks about the request, that proxy reports them.
    /// `None` without encryption.
    pub tls: Option<&'a TlsIdentity>,
    /// The descriptor that another proxy has sent, in place of a request or together with a request.
    pub descriptor: Option<&'a SentDescriptor<'a>>,
    /// The known values of the body. Other values can still be read. `None` if the body cannot be read.
    pub body: Option<&'a BodyValues>,
    /// Whether a service holds what it takes, and says later what it has cost. So limits that hold something apply to it although
    /// it is not proxied.
    pub is_held: bool,
}

impl<'a> Request<'a> {
    /// Describes a request that a client sends without TLS to a gateway with one listener. The request has no
    /// credentials and no route yet.
    pub fn new(head: &'a http::request::Parts, client: ClientAddress) -> Request<'a> {
        let scheme = SchemeSource::Connection(Scheme::Http);
        let listener = ONLY_LISTENER;
        let (door, descriptor) = (Door::Proxy, None);
        let (claims, key, route, upstream, tls, body) = (None, None, "", "", None, None);
        let is_held = false;
        Request { head, client, claims, key, route, upstream, scheme, listener, tls, door, descriptor, body, is_held }
    }

    /// Returns the request with a descriptor that another proxy has sent.
    pub fn with_descriptor(&self, descriptor: Option<&'a SentDescriptor<'a>>) -> Request<'a> {
        Request { descriptor, ..*self }
    }

    /// Returns what the request asks of a language model. `Unread` if nothing is known of its body.
    pub fn model(&self) -> &'a ModelBody {
        self.body.map_or(&ModelBody::Unread, BodyValues::model)
    }

    pub fn with_body(&self, body: Option<&'a BodyValues>) -> Request<'a> {
        Request { body, ..*self }
    }

    /// Returns the request with this source of its scheme.
    pub fn with_scheme(&self, scheme: SchemeSource) -> Request<'a> {
        Request { scheme, ..*self }
    }

    /// Returns the request with the name of the listener on which it arrived.
    pub fn with_listener(&self, listener: &'a str) -> Request<'a> {
        Request { listener, ..*self }
    }

    /// Returns the request with this door (way to the decision).
    pub fn with_door(&self, door: Door) -> Request<'a> {
        Request { door, ..*self }
    }

    /// Returns the request of a service that holds what it takes, or takes it at once.
    pub fn with_hold(&self, is_held: bool) -> Request<'a> {
        Request { is_held, ..*self }
    }

    /// Returns the request with this TLS identity.
    pub fn with_tls(&self, tls: Option<&'a TlsIdentity>) -> Request<'a> {
        Request { tls, ..*self }
    }

    /// Returns the scheme with which the client sent the request.
    pub fn scheme(&self) -> Scheme {
        self.scheme.scheme(&self.head.headers)
    }

    /// Returns the request with this verified identity.
    pub fn with_identity(&self, identity: &'a Identity) -> Request<'a> {
        Request { claims: identity.claims.as_deref(), key: identity.key.as_deref(), ..*self }
    }

    /// Returns the request with its chosen route and upstream.
    pub fn with_destination(&self, route: &'a str, upstream: &'a str) -> Request<'a> {
        Request { route, upstream, ..*self }
    }

    /// Returns the requested host without a port, as sent: the authority of the target, or else the `Host` field.
    pub fn host(&self) -> &'a [u8] {
        host(self.head)
    }
}

/// Returns the host that a request with this head asks for, as in [`Request::host`].
pub fn host(head: &http::request::Parts) -> &[u8] {
    let authority = match head.uri.authority() {
        Some(authority) => authority.as_str().as_bytes(),
        None => head.headers.get(http::header::HOST).map_or(&b""[..], |host| host.as_bytes()),
    };
    let host = without_port(authority);
    // A final dot only marks a name as fully qualified.
    host.strip_suffix(b".").unwrap_or(host)
}

/// Removes the port from a host with a port: `host:8080` → `host`, `[::1]:8080` → `[::1]`.
pub fn without_port(authority: &[u8]) -> &[u8] {
    let Some((host, port)) = rsplit_once(authority, b':') else { return authority };
    let bracketed = host.first() == Some(&b'[') && host.last() == Some(&b']');
    let plain = !host.contains(&b':');
    if (bracketed || plain) && port.iter().all(u8::is_ascii_digit) { host } else { authority }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_no_part_of_a_host() {
        for (authority, host) in [
            ("example.com:8080", "example.com"),
            ("example.com", "example.com"),
            ("[::1]:80", "[::1]"),
            ("[::1]", "[::1]"),
            ("::1", "::1"),
            ("", ""),
        ] {
            assert_eq!(without_port(authority.as_bytes()), host.as_bytes(), "{authority}");
        }
    }
}
