//! A host with a port, to which connections are made. The host is a name or an IP address.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostPort {
    /// The host: a name, or an IP address. An IPv6 address has no brackets here.
    pub host: String,
    pub port: u16,
}

impl HostPort {
    pub fn new(host: impl Into<String>, port: u16) -> HostPort {
        HostPort { host: host.into(), port }
    }

    /// Parses `name:port`, `192.0.2.1:port` or `[2001:db8::1]:port`. If the text has no port, the port is `default_port`.
    /// Returns `None` for a text of another form, and for port 0.
    pub fn parse(text: &str, default_port: u16) -> Option<HostPort> {
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, after) = rest.split_once(']')?;
                host.parse::<Ipv6Addr>().ok()?;
                (host, if after.is_empty() { None } else { Some(after.strip_prefix(':')?) })
            }
            None => match text.rsplit_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            },
        };
        // This check also rejects parts of a URL: a scheme, a user, a path.
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
        if host.is_empty() || !(text.starts_with('[') || host.bytes().all(is_name)) {
            return None;
        }
        let port = match port {
            // A port has no sign before the number.
            Some(port) if port.bytes().all(|byte| byte.is_ascii_digit()) => port.parse().ok()?,
            Some(_) => return None,
            None => default_port,
        };
        (port != 0).then(|| HostPort::new(host, port))
    }

    /// Returns the host as an IP address. `None` if the host is a name.
    pub fn ip(&self) -> Option<IpAddr> {
        self.host.parse().ok()
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_a_name_or_an_address_and_may_have_a_port() {
        for (text, host, port, shown) in [
            ("s1", "s1", 26379, "s1:26379"),
            ("s1.internal:1", "s1.internal", 1, "s1.internal:1"),
            ("192.0.2.1:6379", "192.0.2.1", 6379, "192.0.2.1:6379"),
            ("[::1]", "::1", 26379, "[::1]:26379"),
            ("[2001:db8::1]:7", "2001:db8::1", 7, "[2001:db8::1]:7"),
        ] {
            let parsed = HostPort::parse(text, 26379).unwrap();
            assert_eq!((&*parsed.host, parsed.port, &*parsed.to_string()), (host, port, shown));
        }
        for text in [
            "",
            ":1",
            "a:",
            "a:x",
            "a:0",
            "a:65536",
            "a:+1",
            "::1",
            "[::1",
            "[a]:1",
            "[::1]1",
            "a b:1",
            "redis://a:1",
            "u@a",
        ] {
            assert_eq!(HostPort::parse(text, 26379), None, "{text}");
        }
    }
}
