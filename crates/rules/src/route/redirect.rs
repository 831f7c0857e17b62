//! Builds the address to which a route redirects a request.

use http::HeaderValue;

use super::prefix_replacement::PrefixReplacement;
use request::request::without_port;

/// A redirection to another address. Parts of the address that the redirection does not set stay as in the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redirect {
    pub code: u16,
    pub scheme: Option<&'static str>,
    /// The new host, without a port.
    pub host: Option<String>,
    /// The new port. `None` keeps the request's port. With a new scheme or host, `None` means the default port of the
    /// scheme.
    pub port: Option<u16>,
    pub path: Option<PrefixReplacement>,
}

/// The original address of a request that is redirected.
#[derive(Clone, Copy, Debug)]
pub struct RedirectedRequest<'r> {
    pub scheme: &'r str,
    /// The host with its port; empty for a request without `Host`.
    pub authority: &'r [u8],
    /// The path as it was sent, without the query.
    pub path: &'r [u8],
    /// The query as it was sent, with its question mark; empty without a query.
    pub query: &'r [u8],
}

impl Redirect {
    /// Returns whether the new address has the host and the scheme of the request.
    pub fn stays_at_host(&self) -> bool {
        self.scheme.is_none() && self.host.is_none() && self.port.is_none()
    }

    /// Returns the value of `Location` for a request. Path and query stay as they were sent, except for a replaced
    /// prefix. `None` if the request has no `Host`, or if its path does not begin with the prefix.
    pub fn location(&self, request: RedirectedRequest<'_>) -> Option<HeaderValue> {
        let replaced = match &self.path {
            Some(replacement) => Some(replacement.replace(request.path)?),
            None => None,
        };
        let path = replaced.as_deref().unwrap_or(request.path);
        let mut location = Vec::with_capacity(path.len() + request.query.len() + 64);
        if !self.stays_at_host() {
            location.extend_from_slice(self.scheme.unwrap_or(request.scheme).as_bytes());
            location.extend_from_slice(b"://");
            match &self.host {
                Some(host) => location.extend_from_slice(host.as_bytes()),
                None if request.authority.is_empty() => return None,
                None => location.extend_from_slice(without_port(request.authority)),
            }
            if let Some(port) = self.port {
                location.extend_from_slice(format!(":{port}").as_bytes());
            }
        }
        // The target of `OPTIONS *` is not a path, so `/` takes its place.
        location.extend_from_slice(if path == b"*" { b"/" } else { path });
        location.extend_from_slice(request.query);
        HeaderValue::from_bytes(&location).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Redirect = Redirect { code: 308, scheme: None, host: None, port: None, path: None };

    #[track_caller]
    fn check(redirect: &Redirect, path: &str, query: &str, expected: &str) {
        let (path, query) = (path.as_bytes(), query.as_bytes());
        let request = RedirectedRequest { scheme: "http", authority: b"api.example.com:8080", path, query };
        assert_eq!(redirect.location(request).unwrap(), expected);
    }

    #[test]
    fn what_a_redirection_does_not_name_stays() {
        let tls = Redirect { scheme: Some("https"), ..NONE };
        check(&tls, "/a%20b", "?c=d&e", "https://api.example.com/a%20b?c=d&e");
        check(&tls, "//evil.example", "", "https://api.example.com//evil.example");
        check(&tls, "*", "", "https://api.example.com/");
        check(&Redirect { port: Some(8443), ..tls }, "/", "", "https://api.example.com:8443/");
        let host = Redirect { host: Some("www.example.com".to_owned()), ..NONE };
        check(&host, "/", "", "http://www.example.com/");
        check(&Redirect { port: Some(81), ..host }, "/", "", "http://www.example.com:81/");
        let path = Some(PrefixReplacement::new(vec![b"/old".to_vec()], "/v1"));
        check(&Redirect { path, ..NONE }, "/old/x", "?", "/v1/x?");
    }

    #[test]
    fn a_request_without_what_the_address_needs_has_none() {
        let request = RedirectedRequest { scheme: "http", authority: b"", path: b"/b", query: b"" };
        assert_eq!(Redirect { scheme: Some("https"), ..NONE }.location(request), None);
        assert!(Redirect { host: Some("a".to_owned()), ..NONE }.location(request).is_some());
        let path = Some(PrefixReplacement::new(vec![b"/old".to_vec()], "/v1"));
        assert_eq!(Redirect { path, ..NONE }.location(request), None);
    }
}
