//! Reads `upstream`: the server to which requests are sent.

use std::path::Path;
use std::sync::Arc;

use crate::keys::listeners::socket_path::{SOCKET_PATTERN, SOCKET_SHAPE, UNIX, socket_path};
use crate::keys::upstreams::Ejection;
use crate::keys::upstreams::balance::Balance;
use crate::keys::upstreams::health::Health;
use crate::keys::upstreams::retries::Retries;
use crate::keys::upstreams::upstream_timeouts::UpstreamTimeouts;
use crate::language::reader::Field;
use crate::language::shape::{Scalars, Shape, Text};
use crate::language::value_kind::{ParseText, ValueKind};
use base::tls::client::Client;

/// An upstream: the servers to which requests are sent, and the settings for sending requests to them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upstream {
    pub name: String,
    /// The servers of the upstream. There is at least one.
    pub endpoints: Vec<Endpoint>,
    pub protocol: Protocol,
    /// The TLS client for the endpoints. `None` if no endpoint has TLS.
    pub tls: Option<Arc<Client>>,
    pub balance: Balance,
    pub timeouts: UpstreamTimeouts,
    pub retries: Retries,
    /// The settings for ejecting endpoints after failures. `None`: no endpoint is ejected.
    pub ejection: Option<Ejection>,
    /// The settings of health checks. `None`: endpoints are not checked.
    pub health: Option<Health>,
    /// If the share of available endpoints is below this percentage, requests are sent to all endpoints.
    pub panic_below: u8,
    /// The largest number of requests under way at one endpoint. `None`: the number is not bounded.
    pub max_connections: Option<u32>,
}

impl Upstream {
    /// Makes the upstream of a file with `upstream: URL`. All its other settings have their defaults.
    pub fn of_one_name(
        name: &str,
        endpoint: Endpoint,
        tls: Option<Arc<Client>>,
        timeouts: UpstreamTimeouts,
    ) -> Upstream {
        Upstream {
            name: name.to_owned(),
            endpoints: vec![endpoint],
            protocol: Protocol::Http1,
            tls,
            balance: Balance::RoundRobin,
            timeouts,
            retries: Retries::DEFAULT,
            ejection: Some(Ejection::DEFAULT),
            health: None,
            panic_below: 0,
            max_connections: None,
        }
    }
}

/// A server of an upstream, to which the gateway sends requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    pub scheme: Scheme,
    /// The name or IP address of the server, without brackets. For a Unix domain socket, `localhost`.
    pub host: String,
    pub port: u16,
    /// The path of the Unix domain socket. `None`: the gateway connects to `host` and `port`.
    pub socket: Option<Arc<Path>>,
    pub weight: u32,
}

/// The scheme of a URL. It says whether connections to the server are encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    Http,
    Https,
}

impl Scheme {
    pub fn default_port(self) -> u16 {
        match self {
            Scheme::Http => 80,
            Scheme::Https => 443,
        }
    }
}

/// The version of HTTP that the gateway speaks to the servers of an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Http1,
    /// HTTP/2 over TLS.
    H2,
    /// HTTP/2 without TLS, begun without an upgrade from HTTP/1.1 (prior knowledge).
    H2c,
}

const SHAPE: &str = "be a URL like http://127.0.0.1:9000 or https://api.internal, without a path";

pub(crate) const UPSTREAM: ValueKind<ParseText<Endpoint>> = ValueKind::reporting(
    "URL",
    Shape::Text(Text::new(
        Scalars::Text,
        &[r"^https?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]+)?/?$", SOCKET_PATTERN],
        "be a URL like http://127.0.0.1:9000 or https://api.internal, without a path, or a socket like unix:/run/api.sock",
    )),
    parse,
    no_upstream,
);

fn no_upstream(field: &Field<'_>, _: &str) {
    let text = field.text_if_any().unwrap_or_default();
    // The message does not show a text with an `@`, because it may be a URL with a password.
    let field = if text.contains('@') { field.clone().hidden() } else { field.clone() };
    let url = format!("http://{text}");
    let hint =
        (!text.contains("://") && !text.contains('@') && parse(&url).is_some()).then(|| format!("write `{url}`"));
    match text.starts_with(UNIX) {
        true => field.must(SOCKET_SHAPE),
        false => field.must_hinting(SHAPE, hint),
    }
}

fn parse(text: &str) -> Option<Endpoint> {
    if let Some(path) = text.strip_prefix(UNIX) {
        return socket(path);
    }
    let (scheme, authority) = match text.strip_prefix("https://") {
        Some(authority) => (Scheme::Https, authority),
        None => (Scheme::Http, text.strip_prefix("http://")?),
    };
    let default_port = scheme.default_port().to_string();
    let authority = authority.strip_suffix('/').unwrap_or(authority);
    let (host, port) = match authority.strip_prefix('[') {
        Some(bracketed) => {
            let (address, rest) = bracketed.split_once(']')?;
            address.parse::<std::net::Ipv6Addr>().ok()?;
            let port = if rest.is_empty() { &*default_port } else { rest.strip_prefix(':')? };
            (address, port)
        }
        None => authority.split_once(':').unwrap_or((authority, &default_port)),
    };
    let named = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b':');
    let port = port.bytes().all(|byte| byte.is_ascii_digit()).then(|| port.parse().ok()).flatten();
    let port = port.filter(|port| *port > 0)?;
    (!host.is_empty() && host.bytes().all(named)).then(|| Endpoint {
        scheme,
        host: host.to_owned(),
        port,
        socket: None,
        weight: 1,
    })
}

fn socket(path: &str) -> Option<Endpoint> {
    socket_path(path).map(|path| Endpoint {
        scheme: Scheme::Http,
        host: "localhost".to_owned(),
        port: Scheme::Http.default_port(),
        socket: Some(path),
        weight: 1,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upstream_is_a_url_without_a_path() {
        use Scheme::{Http, Https};
        for (text, scheme, host, port) in [
            ("http://127.0.0.1:9000", Http, "127.0.0.1", 9000),
            ("http://api.internal", Http, "api.internal", 80),
            ("http://api.internal:81/", Http, "api.internal", 81),
            ("http://[::1]:9000", Http, "::1", 9000),
            ("http://[::1]", Http, "::1", 80),
            ("https://api.internal", Https, "api.internal", 443),
            ("https://[::1]", Https, "::1", 443),
            ("https://a:80", Https, "a", 80),
        ] {
            let expected = Endpoint { scheme, host: host.to_owned(), port, socket: None, weight: 1 };
            assert_eq!(parse(text), Some(expected), "{text}");
        }
        for text in [
            "ftp://a",
            "https:a",
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

    #[test]
    fn a_socket_is_an_absolute_path_of_plain_characters() {
        for path in ["/run/api.sock", "/a", "/run/a-b_c/d@1:2.sock"] {
            let socket = parse(&format!("unix:{path}")).and_then(|endpoint| endpoint.socket);
            assert_eq!(socket.as_deref(), Some(Path::new(path)));
        }
        let [longest, long] = [106, 107].map(|length| format!("unix:/{}", "a".repeat(length)));
        for text in ["unix:", "unix:/", "unix:api.sock", "unix:/a b", "unix:/a\"b", "unix:/\u{e9}", "unix://h/?", &long]
        {
            assert_eq!(parse(text), None, "{text}");
        }
        assert!(parse(&longest).is_some());
    }
}
