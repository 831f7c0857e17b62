//! Gives the upstream the path and the host that a route has for it.

use http::header::{HOST, HeaderName};
use http::{HeaderMap, HeaderValue};
use pingora::http::RequestHeader;
use pingora::{Error, ErrorType, Result};

use super::forwarded_headers::Client;
use super::request_target::RequestTarget;
use rules::route::forwarding::Rewrite;

const FORWARDED_PREFIX: HeaderName = HeaderName::from_static("x-forwarded-prefix");

/// Changes the fields of a request to which the forwarding fields have been added: `X-Forwarded-Host` keeps what was sent.
pub fn rewrite_fields(rewrite: &Rewrite, headers: &mut HeaderMap, client: Client<'_>) {
    if let Some(host) = &rewrite.host {
        headers.insert(HOST, host.clone());
    }
    if let Some(stripped) = &rewrite.stripped {
        headers.insert(FORWARDED_PREFIX, forwarded_prefix(headers, client, stripped));
    }
}

/// What is taken off the path, after what a trusted peer has taken off it before.
fn forwarded_prefix(headers: &HeaderMap, client: Client<'_>, stripped: &HeaderValue) -> HeaderValue {
    let mut values = headers.get_all(&FORWARDED_PREFIX).iter();
    match (values.next(), values.next()) {
        (Some(before), None) if client.trusted_peer && before.as_bytes().starts_with(b"/") => {
            let before = before.as_bytes();
            let joined = [before.strip_suffix(b"/").unwrap_or(before), stripped.as_bytes()].concat();
            HeaderValue::from_bytes(&joined).unwrap_or_else(|_| stripped.clone())
        }
        _ => stripped.clone(),
    }
}

/// Gives a request another path. Its query stays as it was sent.
///
/// # Errors
/// If the path does not have the prefix that is replaced, which the rules have seen.
pub fn rewrite_target(rewrite: &Rewrite, request: &mut RequestHeader) -> Result<()> {
    let Some(replacement) = &rewrite.path else { return Ok(()) };
    let RequestTarget { path, query } = RequestTarget::of(request);
    let Some(mut target) = replacement.replace(path) else {
        return Err(Error::explain(ErrorType::HTTPStatus(400), "the path has two readings"));
    };
    target.extend_from_slice(query);
    request.set_raw_path(&target)
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use request::scheme::Scheme;

    /// The prefix that is forwarded where `/v1` is taken off.
    fn prefix(sent: &[&'static str], trusted_peer: bool) -> HeaderValue {
        let mut headers = HeaderMap::new();
        for sent in sent {
            headers.append(FORWARDED_PREFIX, HeaderValue::from_static(sent));
        }
        let request_id = &HeaderValue::from_static("a");
        let client = Client {
            peer: IpAddr::from([192, 0, 2, 1]),
            trusted_peer,
            scheme: Scheme::Http,
            request_id,
            connection: None,
        };
        let rewrite = Rewrite { stripped: Some(HeaderValue::from_static("/v1")), ..Rewrite::default() };
        rewrite_fields(&rewrite, &mut headers, client);
        assert_eq!(headers.len(), 1);
        headers.remove(FORWARDED_PREFIX).unwrap()
    }

    #[test]
    fn only_a_trusted_peer_has_taken_off_a_prefix_before() {
        for (sent, trusted_peer, expected) in [
            (&[][..], true, "/v1"),
            (&["/api"], true, "/api/v1"),
            (&["/api/"], true, "/api/v1"),
            (&["/api"], false, "/v1"),
            (&["/a", "/b"], true, "/v1"),
            (&["api"], true, "/v1"),
        ] {
            assert_eq!(prefix(sent, trusted_peer), expected, "{sent:?} {trusted_peer}");
        }
    }
}
