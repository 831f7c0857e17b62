//! Reads `upstream`: where requests go.

use serde_json::json;

use super::reader::Field;
use super::upstream_timeouts::UpstreamTimeouts;
use super::upstreams::{Balance, Ejection, Retries};
use super::value_kind::{ReadField, ValueKind};
use super::value_types::reference;

/// Where requests go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upstream {
    pub name: String,
    /// At least one.
    pub endpoints: Vec<Endpoint>,
    pub balance: Balance,
    pub timeouts: UpstreamTimeouts,
    pub retries: Retries,
    /// `None`: no endpoint is ejected.
    pub ejection: Option<Ejection>,
}

impl Upstream {
    /// The upstream that `upstream` names.
    pub fn of_one_name(name: &str, endpoint: Endpoint, timeouts: UpstreamTimeouts) -> Upstream {
        Upstream {
            name: name.to_owned(),
            endpoints: vec![endpoint],
            balance: Balance::RoundRobin,
            timeouts,
            retries: Retries::DEFAULT,
            ejection: Some(Ejection::DEFAULT),
        }
    }
}

/// A server that answers requests over plain HTTP/1.1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// A name, or an address (IPv6 without brackets).
    pub host: String,
    pub port: u16,
    pub weight: u32,
}

const SHAPE: &str = "be a URL like http://127.0.0.1:9000 or http://api.internal, without a path";

pub const UPSTREAM: ValueKind<ReadField<Endpoint>> = ValueKind {
    text: "URL",
    schema: || {
        json!({"anyOf": [
            {
                "type": "string",
                "pattern": r"^http://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]+)?/?$",
                "patternErrorMessage": format!("must {SHAPE}")
            },
            reference()
        ]})
    },
    read: upstream,
};

fn upstream(field: Field<'_>) -> Option<Endpoint> {
    let text = field.text()?;
    let upstream = parse(text);
    if upstream.is_none() {
        // A user may come with a password.
        let field = if text.contains('@') { field.hidden() } else { field };
        field.must(SHAPE);
    }
    upstream
}

fn parse(text: &str) -> Option<Endpoint> {
    let authority = text.strip_prefix("http://")?;
    let authority = authority.strip_suffix('/').unwrap_or(authority);
    let (host, port) = match authority.strip_prefix('[') {
        Some(bracketed) => {
            let (address, rest) = bracketed.split_once(']')?;
            address.parse::<std::net::Ipv6Addr>().ok()?;
            let port = if rest.is_empty() { "80" } else { rest.strip_prefix(':')? };
            (address, port)
        }
        None => authority.split_once(':').unwrap_or((authority, "80")),
    };
    let named = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b':');
    let port = port.bytes().all(|byte| byte.is_ascii_digit()).then(|| port.parse().ok()).flatten();
    let port = port.filter(|port| *port > 0)?;
    (!host.is_empty() && host.bytes().all(named)).then(|| Endpoint { host: host.to_owned(), port, weight: 1 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upstream_is_a_plain_http_url_without_a_path() {
        for (text, host, port) in [
            ("http://127.0.0.1:9000", "127.0.0.1", 9000),
            ("http://api.internal", "api.internal", 80),
            ("http://api.internal:81/", "api.internal", 81),
            ("http://[::1]:9000", "::1", 9000),
            ("http://[::1]", "::1", 80),
        ] {
            assert_eq!(parse(text), Some(Endpoint { host: host.to_owned(), port, weight: 1 }), "{text}");
        }
        for text in [
            "https://a",
            "127.0.0.1:9000",
            "http://",
            "http://a/b",
            "http://a:b",
            "http://a:0",
            "http://a:99999",
            "http://u@a",
            "http://[::1",
            "http://[a]:1",
            "http://a?b",
            "http://::1",
            "http://a:+1",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
