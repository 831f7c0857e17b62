//! Tells by what name the admin listener was asked, so that no page of another site reads it by way of a browser.
//!
//! A site can have its own name lead to any address, also to one that only the reader of its page can reach (DNS rebinding).
//! The browser takes our answers for that site's then, but it names the site in `Host`. Such a name is one that can be
//! registered, so it has a dot; it is never an address, and never what this machine is called.
//!
//! Whoever is no browser has no such page, and asks by any name: Prometheus by that of its target, kubelet by an address or
//! the `host` of its probe. So `/metrics`, `/livez` and `/readyz` do not ask for it.

use std::net::IpAddr;

use http::header::HOST;
use http::request::Parts;

use crate::limit::request::without_port;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostKind {
    /// By an IP address or `localhost`: no site can have that for a name.
    Address,
    /// By this machine's name, or one without a dot, which only the network that it is asked in makes lead here.
    Local,
    /// By any other name, or none.
    Foreign,
}

impl HostKind {
    /// `host` is what this machine is called.
    pub fn of(head: &Parts, host: &str) -> HostKind {
        let asked = head.headers.get(HOST).map_or(&b""[..], |host| host.as_bytes());
        let asked = std::str::from_utf8(without_port(asked)).unwrap_or_default();
        let bare = asked.strip_prefix('[').and_then(|asked| asked.strip_suffix(']')).unwrap_or(asked);
        let is = |name: &str| asked.eq_ignore_ascii_case(name);
        match () {
            () if is("localhost") || bare.parse::<IpAddr>().is_ok() => HostKind::Address,
            () if asked.is_empty() => HostKind::Foreign,
            () if is(host) || !asked.contains('.') => HostKind::Local,
            () => HostKind::Foreign,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_a_site_can_have_is_foreign() {
        let of = |asked: &str| {
            let (mut head, ()) = http::Request::new(()).into_parts();
            head.headers.insert(HOST, asked.parse().unwrap());
            HostKind::of(&head, "gw-1.prod.example.com")
        };
        for asked in ["127.0.0.1", "127.0.0.1:9901", "[::1]:9901", "localhost", "LOCALHOST:1", "10.0.0.5:80"] {
            assert_eq!(of(asked), HostKind::Address, "{asked}");
        }
        for asked in ["gw-1", "tollgate-a:9090", "gw-1.prod.example.com", "GW-1.prod.example.com:9901"] {
            assert_eq!(of(asked), HostKind::Local, "{asked}");
        }
        for asked in
            ["", "evil.example", "127.0.0.1.evil.example:9901", "localhost.evil.example", "gw-1.", "127.0.0.1."]
        {
            assert_eq!(of(asked), HostKind::Foreign, "{asked}");
        }
        let (head, ()) = http::Request::new(()).into_parts();
        assert_eq!(HostKind::of(&head, ""), HostKind::Foreign);
    }
}
