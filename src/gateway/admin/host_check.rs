//! Classifies the host name in a request to the admin listener, so that no page of another site can read the answer
//! through a browser.
//!
//! A site can point its own name at any address, even one that only the reader of its page can reach (DNS rebinding).
//! The browser then sends the site's name in `Host`. This name has a dot, and is never an address or the name of this
//! machine.
//!
//! Other clients send various names: Prometheus the name of its target, kubelet an address or the `host` of its probe.
//! So `/metrics`, `/livez` and `/readyz` accept any name.

use std::net::IpAddr;

use http::header::HOST;
use http::request::Parts;

use request::request::without_port;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HostKind {
    /// An IP address or `localhost`. No site can have such a name.
    Address,
    /// The name of this machine, or a name without a dot. Only a local network can resolve such a name to this address.
    Local,
    /// Any other name, or no name. It may be the name of another site.
    Foreign,
}

impl HostKind {
    /// Classifies the host name in a request. `host` is the name of this machine.
    pub(super) fn of(head: &Parts, host: &str) -> HostKind {
        let name = head.headers.get(HOST).map_or(&b""[..], |host| host.as_bytes());
        let name = std::str::from_utf8(without_port(name)).unwrap_or_default();
        let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
        let is = |known: &str| name.eq_ignore_ascii_case(known);
        match () {
            () if is("localhost") || bare.parse::<IpAddr>().is_ok() => HostKind::Address,
            () if name.is_empty() => HostKind::Foreign,
            () if is(host) || !name.contains('.') => HostKind::Local,
            () => HostKind::Foreign,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_name_but_that_of_this_host_is_foreign() {
        let of = |name: &str| {
            let (mut head, ()) = http::Request::new(()).into_parts();
            head.headers.insert(HOST, name.parse().unwrap());
            HostKind::of(&head, "gw-1.prod.example.com")
        };
        for name in ["127.0.0.1", "127.0.0.1:9901", "[::1]:9901", "localhost", "LOCALHOST:1", "10.0.0.5:80"] {
            assert_eq!(of(name), HostKind::Address, "{name}");
        }
        for name in ["gw-1", "tollgate-a:9090", "gw-1.prod.example.com", "GW-1.prod.example.com:9901"] {
            assert_eq!(of(name), HostKind::Local, "{name}");
        }
        for name in ["", "evil.example", "127.0.0.1.evil.example:9901", "localhost.evil.example", "gw-1.", "127.0.0.1."]
        {
            assert_eq!(of(name), HostKind::Foreign, "{name}");
        }
        let (head, ()) = http::Request::new(()).into_parts();
        assert_eq!(HostKind::of(&head, ""), HostKind::Foreign);
    }
}
