//! Builds the request to explain, from the bytes that a client would send.

use std::net::IpAddr;

use http::request::Parts;
use http::{HeaderName, HeaderValue, Method, Uri};

use super::answer::ExplainedRefusal;
use crate::cli::failure::Failure;
use crate::gateway::request_head::{Body, HeadParser, Size};
use config::{Config, Listener};
use decision::refusal::Refusal;
use request::path;
use request::request::{host, without_port};
use request::scheme::{Scheme, SchemeSource};

/// The request to explain.
#[derive(Debug)]
pub(super) struct SampleRequest {
    pub head: Parts,
    /// The target as a client would send it in the request line.
    pub target: String,
    pub peer: IpAddr,
    /// Whether the URL requires TLS. `None` if the URL has no scheme.
    pub encrypted: Option<bool>,
    /// The name in the TLS handshake, in lower case. `None` if the host is an IP address.
    pub server_name: Option<String>,
}

/// The parts of the request to explain, from the command line.
#[derive(Debug)]
pub(super) struct RequestArguments<'w> {
    pub url: &'w str,
    pub method: &'w str,
    /// The header fields, each as `name: value`.
    pub headers: Vec<String>,
    pub peer: IpAddr,
}

impl RequestArguments<'_> {
    /// Returns the host that the header fields name, or the host in the URL. Empty if the URL is invalid.
    pub(super) fn host(&self) -> &str {
        let fields = self.headers.iter().filter_map(|line| line.split_once(':'));
        let named = fields.filter(|(name, _)| name.eq_ignore_ascii_case("host")).map(|(_, value)| value.trim()).next();
        named.unwrap_or_else(|| split(self.url).map_or("", |(authority, _)| authority))
    }

    /// Returns the part of the URL for the request line. For an invalid URL, returns the whole text.
    pub(super) fn target(&self) -> &str {
        split(self.url).map_or(self.url, |(_, target)| target)
    }
}

impl SampleRequest {
    /// Makes the request from the arguments. The inner error is the gateway's refusal of the request head.
    ///
    /// # Errors
    /// If the arguments are no URL, method or headers that a client could send.
    pub(super) fn new(
        arguments: &RequestArguments<'_>,
        config: &Config,
    ) -> Result<Result<SampleRequest, ExplainedRefusal>, Failure> {
        let (authority, target) = split(arguments.url)?;
        let fields = arguments.headers.iter().map(|line| field(line)).collect::<Result<Vec<_>, _>>()?;
        let names_host = fields.iter().any(|(name, _)| name == "host");
        let mut text = format!("{} {target} HTTP/1.1\r\n", arguments.method);
        if !names_host {
            text += &format!("Host: {authority}\r\n");
        }
        for (name, value) in &fields {
            text += &format!("{name}: {value}\r\n");
        }
        text += "\r\n";
        if let Err(refusal) = check_head(text.as_bytes(), config) {
            return Ok(Err(refusal));
        }
        let mut head = http::Request::new(()).into_parts().0;
        head.method = Method::from_bytes(arguments.method.as_bytes())?;
        head.uri = target.parse::<Uri>().map_err(|error| format!("URL: {error}"))?;
        if !names_host {
            head.headers.append(http::header::HOST, HeaderValue::from_str(authority)?);
        }
        for (name, value) in fields {
            head.headers.append(HeaderName::from_bytes(name.as_bytes())?, HeaderValue::from_bytes(value.as_bytes())?);
        }
        let begins_with =
            |scheme: &str| arguments.url.get(..scheme.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(scheme));
        let encrypted = begins_with("https://").then_some(true).or(begins_with("http://").then_some(false));
        let mut sample =
            SampleRequest { head, target: target.to_owned(), peer: arguments.peer, encrypted, server_name: None };
        let asked = if arguments.url.starts_with(['/', '?', '*']) { sample.host() } else { authority.as_bytes() };
        sample.server_name = server_name(asked);
        Ok(Ok(sample))
    }

    /// Returns the host that the request asks for.
    pub(super) fn host(&self) -> &[u8] {
        host(&self.head)
    }

    /// Returns the scheme of the request on this listener, and where it comes from.
    pub(super) fn scheme(&self, listener: &Listener, config: &Config) -> SchemeSource {
        let scheme = if self.encrypted.unwrap_or(listener.tls.is_some()) { Scheme::Https } else { Scheme::Http };
        if listener.decide.is_some() {
            let scheme = if self.encrypted.unwrap_or(false) { Scheme::Https } else { Scheme::Http };
            return SchemeSource::Connection(scheme);
        }
        match config.client_ip.trusts(self.peer.to_canonical()) {
            true => SchemeSource::TrustedProxy(scheme),
            false => SchemeSource::Connection(scheme),
        }
    }

    /// Returns the path as rules see it. `None` if the path can be read in more than one way.
    pub(super) fn path(&self) -> Option<String> {
        let path = path::normalise(self.head.uri.path().as_bytes()).ok()?;
        Some(String::from_utf8_lossy(&path).into_owned())
    }
}

/// Returns the server name in TLS for a connection to this host.
fn server_name(authority: &[u8]) -> Option<String> {
    let host = std::str::from_utf8(without_port(authority)).ok()?;
    let is_name = host.parse::<IpAddr>().is_err() && !host.starts_with('[') && !host.is_empty();
    is_name.then(|| host.trim_end_matches('.').to_ascii_lowercase())
}

fn check_head(bytes: &[u8], config: &Config) -> Result<(), ExplainedRefusal> {
    let bounds = &config.bounds;
    let size = Size { bytes: bounds.header_bytes, fields: bounds.headers, target: bounds.target_bytes };
    let refuse = |status, detail: &str| Err(ExplainedRefusal::new(Refusal::bad_request(status), detail.to_owned()));
    match HeadParser::default().parse(bytes, &size, |method| config.has_extra_method(method)) {
        Ok(Some(head)) => match (head.body, bounds.body_bytes) {
            (Body::Length(length), Some(most)) if length > most => refuse(413, "body too long"),
            _ => Ok(()),
        },
        Ok(None) => refuse(400, "head not whole"),
        Err(error) => refuse(error.status(), error.detail()),
    }
}

/// Splits a URL into its authority and its target.
fn split(url: &str) -> Result<(&str, &str), Failure> {
    if url == "*" {
        return Ok(("localhost", url));
    }
    // A client never sends the fragment.
    let url = url.split('#').next().unwrap_or_default();
    let rest = ["http://", "https://"].iter().find_map(|scheme| {
        let (begin, rest) = url.split_at_checked(scheme.len())?;
        begin.eq_ignore_ascii_case(scheme).then_some(rest)
    });
    let rest = match rest {
        None if url.contains("://") => {
            return Err(format!("URL: must begin with http://, https://, a host or a path, is {url:?}").into());
        }
        rest => rest.unwrap_or(url),
    };
    let (authority, target) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    if authority.contains('@') {
        return Err("URL: must have no user in it; send one with -H 'Authorization: Basic …'".into());
    }
    match (authority, target) {
        ("", "") => Err("URL: must not be empty".into()),
        ("", target) => Ok(("localhost", target)),
        (authority, "") => Ok((authority, "/")),
        (authority, target) => Ok((authority, target)),
    }
}

/// Checks the form of a header field on the command line, and returns the text unchanged.
///
/// # Errors
/// If the text does not have the form `name: value`.
pub(super) fn header_argument(line: &str) -> Result<String, String> {
    match field(line) {
        Ok(_) => Ok(line.to_owned()),
        Err(_) => Err("must be 'name: value'".to_owned()),
    }
}

/// Splits `name: value`, in the form that curl accepts.
fn field(line: &str) -> Result<(String, &str), Failure> {
    let wrong = || format!("-H: must be 'name: value', is {line:?}");
    let (name, value) = line.split_once(':').ok_or_else(wrong)?;
    if HeaderName::try_from(name).is_err() || value.contains(['\r', '\n', '\0']) {
        return Err(wrong().into());
    }
    Ok((name.to_ascii_lowercase(), value.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(url: &str, expected: Result<(&str, &str), &str>) {
        let found = split(url).map_err(|error| error.to_string());
        match (found, expected) {
            (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{url}"),
            (Err(found), Err(expected)) => assert!(found.contains(expected), "{found}"),
            (found, expected) => panic!("{url}: {found:?}, not {expected:?}"),
        }
    }

    #[test]
    fn a_url_is_taken_as_it_is_typed() {
        check("https://api.example.com/v1/./x?a=b%20c#d", Ok(("api.example.com", "/v1/./x?a=b%20c")));
        check("HTTP://api.example.com", Ok(("api.example.com", "/")));
        check("localhost:8080/", Ok(("localhost:8080", "/")));
        check("localhost:8080", Ok(("localhost:8080", "/")));
        check("[::1]:80/a", Ok(("[::1]:80", "/a")));
        check("/a//b", Ok(("localhost", "/a//b")));
        check("*", Ok(("localhost", "*")));
        check("", Err("empty"));
        check("#a", Err("empty"));
        check("ftp://a/", Err("must begin with http://"));
        check("http://ann:secret@a/", Err("no user"));
    }

    #[test]
    fn a_header_is_a_name_and_a_value() {
        assert_eq!(field("X-Key:  a: b ").unwrap(), ("x-key".to_owned(), "a: b"));
        assert_eq!(field("X-Key:").unwrap(), ("x-key".to_owned(), ""));
        for line in ["X-Key", "x key: a", ": a", "a: b\r\nc: d"] {
            assert!(field(line).is_err(), "{line:?}");
        }
    }
}
