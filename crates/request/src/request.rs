//! Defines a request as the rules see it.
//!
//! The request borrows the head from the proxy. Nothing is copied until an attribute needs it.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use super::door::Door;
use super::identity::{Claims, Identity, KnownKey};
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
    /// The way in which the request reaches the decision. At [`Door::Rls`] there is no request: the head and the client address
    /// are empty placeholders.
    pub door: Door,
    /// The properties of the client's TLS connection. `None` without encryption. If another proxy asks about the request, these
    /// are the properties that the proxy reports.
    pub tls: Option<&'a TlsIdentity>,
    /// The descriptor that another proxy has sent, in place of a request or together with one.
    pub descriptor: Option<&'a SentDescriptor<'a>>,
}

impl<'a> Request<'a> {
    /// Describes a request that a client sends without TLS to a gateway with one listener. The request has no credentials, and
    /// no route is chosen yet.
    pub fn new(head: &'a http::request::Parts, client: ClientAddress) -> Request<'a> {
        let scheme = SchemeSource::Connection(Scheme::Http);
        let listener = ONLY_LISTENER;
        let (door, descriptor) = (Door::Proxy, None);
        let (claims, key, route, upstream, tls) = (None, None, "", "", None);
        Request { head, client, claims, key, route, upstream, scheme, listener, tls, door, descriptor }
    }

    /// Returns the request with a descriptor that another proxy has sent.
    pub fn with_descriptor(&self, descriptor: Option<&'a SentDescriptor<'a>>) -> Request<'a> {
        Request { descriptor, ..*self }
    }

    /// Returns the request with this source of its scheme.
    pub fn with_scheme(&self, scheme: SchemeSource) -> Request<'a> {
        Request { scheme, ..*self }
    }

    /// Returns the request with the name of the listener on which it arrived.
    pub fn with_listener(&self, listener: &'a str) -> Request<'a> {
        Request { listener, ..*self }
    }

    /// Returns the request with another `door`: the interface through which the decision is asked for, such as the proxy or
    /// `/decide`.
    pub fn with_door(&self, door: Door) -> Request<'a> {
        Request { door, ..*self }
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

    /// Returns the requested host: the authority of the target, or else the `Host` field. The host has no port, and is not
    /// converted to lower case.
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
    // A final dot marks a fully qualified name. The name is treated as fully qualified anyway.
    host.strip_suffix(b".").unwrap_or(host)
}

/// Removes the port from a host with a port: `host:8080` → `host`, `[::1]:8080` → `[::1]`.
pub fn without_port(authority: &[u8]) -> &[u8] {
    let Some((host, port)) = rsplit_once(authority, b':') else { return authority };
    let bracketed = host.first() == Some(&b'[') && host.last() == Some(&b']');
    let plain = !host.contains(&b':');
    if (bracketed || plain) && port.iter().all(u8::is_ascii_digit) { host } else { authority }
}

/// The address of a client, with the length of the IPv6 prefix that identifies one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientAddress {
    /// An IPv4-mapped IPv6 address is stored as IPv4.
    address: IpAddr,
    ipv6_prefix: u8,
}

impl ClientAddress {
    /// Makes a client address. `ipv6_prefix` is in bits, from 1 to 128.
    pub fn new(address: IpAddr, ipv6_prefix: u8) -> ClientAddress {
        ClientAddress { address: address.to_canonical(), ipv6_prefix }
    }

    /// Returns the whole address, to compare it with networks.
    pub fn address(self) -> IpAddr {
        self.address
    }
}

/// Displays the client as one identity: a whole IPv4 address, or the prefix of an IPv6 address.
impl fmt::Display for ClientAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text())
    }
}

impl ClientAddress {
    /// Returns the same text as `Display`, but avoids the cost of formatting, because every request needs the text.
    pub fn text(self) -> String {
        match self.identity() {
            IpAddr::V6(address) if self.ipv6_prefix < 128 => format!("{address}/{}", self.ipv6_prefix),
            address => address_text(address),
        }
    }

    /// Returns the address with only the bits that identify one client. The other bits are zero.
    pub fn identity(self) -> IpAddr {
        match self.address {
            IpAddr::V6(address) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.ipv6_prefix)).unwrap_or(0);
                Ipv6Addr::from(u128::from(address) & mask).into()
            }
            address => address,
        }
    }
}

/// Returns the usual text form of an address.
pub fn address_text(address: IpAddr) -> String {
    let IpAddr::V4(address) = address else { return address.to_string() };
    let mut text = String::with_capacity(15);
    let mut digits = itoa::Buffer::new();
    for octet in address.octets() {
        if !text.is_empty() {
            text.push('.');
        }
        text.push_str(digits.format(octet));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(address: &str, prefix: u8, identity: &str) {
        assert_eq!(ClientAddress::new(address.parse().unwrap(), prefix).to_string(), identity);
    }

    #[test]
    fn an_ipv6_client_is_its_prefix_and_a_mapped_one_is_ipv4() {
        check("203.0.113.7", 64, "203.0.113.7");
        check("2001:db8:1:2:3:4:5:6", 64, "2001:db8:1:2::/64");
        check("2001:db8:1:2:3:4:5:6", 48, "2001:db8:1::/48");
        check("2001:db8:1:2:3:4:5:6", 128, "2001:db8:1:2:3:4:5:6");
        check("::ffff:203.0.113.7", 64, "203.0.113.7");
        check("::ffff:cb00:7107", 64, "203.0.113.7");
    }

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
