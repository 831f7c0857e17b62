//! Checks the head of an HTTP/2 request by the rules of HTTP/1.1, and converts it to the form of an HTTP/1.1 head.
//!
//! The h2 crate has already rejected heads that HTTP/2 forbids (RFC 9113, section 8.2). A converted head has its
//! authority only in `Host`, and at most one `Cookie` field.

use http::header::{CONTENT_LENGTH, COOKIE, HOST};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Uri};

use crate::gateway::server::http1::request_head::{HeadError, LONGEST_NAME, Size};
use crate::gateway::server::http1::syntax::{content_length, is_authority, is_disguised_framing, is_target};
use base::http_method;

/// The number of bytes in an HTTP/1.1 head that are not in the method, the target or a field.
const REQUEST_LINE: usize = " HTTP/1.1\r\n".len() + " ".len() + "\r\n".len();
const FIELD_LINE: usize = ": \r\n".len();

/// The separator of the cookies in one field.
const COOKIE_SEPARATOR: &str = "; ";

/// Checks a head and converts it to the form of an HTTP/1.1 head. Returns the length of the body if the head states it.
/// `size` is the maximum size of the head in the form of HTTP/1.1. `is_extra_method` is called only with a method that
/// is not registered.
///
/// # Errors
/// If the head is invalid. The head is then not converted.
pub(super) fn check(
    head: &mut Parts,
    size: &Size,
    is_extra_method: impl FnOnce(&[u8]) -> bool,
) -> Result<Option<u64>, HeadError> {
    let method = head.method.as_str().as_bytes();
    if http_method::is_never_forwarded(method) {
        return Err(HeadError::Method);
    }
    let is_known =
        http_method::is_registered(method) || (method.len() <= http_method::LONGEST && is_extra_method(method));
    if !is_known {
        return Err(HeadError::Malformed("method is neither registered nor in limits.extra_methods"));
    }
    if head.uri.scheme_str().is_some_and(|scheme| !matches!(scheme, "http" | "https")) {
        return Err(HeadError::Malformed("scheme other than http and https"));
    }
    let path_and_query = head.uri.path_and_query().ok_or(HeadError::Malformed("no target"))?;
    let target = path_and_query.as_str().as_bytes();
    if target.len() > size.target {
        return Err(HeadError::TargetTooLong);
    }
    let is_form = target.first() == Some(&b'/') || (target == b"*" && method == b"OPTIONS");
    if !is_form || !target.iter().copied().all(is_target) {
        return Err(HeadError::Malformed("bad target"));
    }
    let checked = check_fields(&head.headers);
    let has_host = !matches!(&checked, Ok(fields) if fields.hosts == 0);
    let host = host(&head.uri, &head.headers, has_host)?;
    let Fields { number: fields, bytes, cookies, lengths, .. } = checked?;
    // The authority counts as a field, as in HTTP/1.1.
    let host_line = host.as_ref().map_or(0, |host| HOST.as_str().len() + host.len() + FIELD_LINE);
    if fields + usize::from(host.is_some()) > size.fields {
        return Err(HeadError::TooLarge("too many fields"));
    }
    if method.len() + target.len() + REQUEST_LINE + bytes + host_line > size.bytes {
        return Err(HeadError::TooLarge("head too large"));
    }
    let length = if lengths > 0 { body_length(&head.headers)? } else { None };
    if let Some(path_and_query) = std::mem::take(&mut head.uri).into_parts().path_and_query {
        head.uri = Uri::from(path_and_query);
    }
    if let Some(host) = host {
        head.headers.insert(HOST, host);
    }
    if cookies > 1 {
        join_cookies(&mut head.headers);
    }
    Ok(length)
}

/// Returns the authority as a value for `Host`. `None` if the head already has a field `Host`. `may_be_there` says
/// whether the head may have this field.
fn host(uri: &Uri, headers: &HeaderMap, may_be_there: bool) -> Result<Option<HeaderValue>, HeadError> {
    let authority = uri.authority().map(|authority| authority.as_str().as_bytes());
    let hosts = may_be_there.then(|| headers.get_all(HOST).iter()).into_iter().flatten();
    let mut hosts = hosts.map(HeaderValue::as_bytes);
    let (missing, host) = match (authority, hosts.next(), hosts.next()) {
        (_, _, Some(_)) | (None, None, None) => return Err(HeadError::Malformed("not exactly one Host")),
        (Some(authority), Some(host), None) if authority != host => {
            return Err(HeadError::Malformed("authority and Host differ"));
        }
        (_, Some(host), None) => (None, host),
        (Some(authority), None, None) => {
            (Some(HeaderValue::from_bytes(authority).map_err(|_| HeadError::Malformed("bad authority"))?), authority)
        }
    };
    if is_authority(host) { Ok(missing) } else { Err(HeadError::Malformed("bad Host")) }
}

/// The results of one pass over all fields. A separate search for each name would take longer.
#[derive(Debug, Default)]
struct Fields {
    /// The number of fields, and the number of bytes that they take in an HTTP/1.1 head.
    number: usize,
    bytes: usize,
    /// The number of `Host` fields.
    hosts: usize,
    /// The number of `Cookie` fields.
    cookies: usize,
    /// The number of `Content-Length` fields.
    lengths: usize,
}

/// Checks all fields in one pass.
fn check_fields(headers: &HeaderMap) -> Result<Fields, HeadError> {
    let mut fields = Fields::default();
    for (name, value) in headers {
        let (name, value) = (name.as_str().as_bytes(), value.as_bytes());
        if name.len() > LONGEST_NAME {
            return Err(HeadError::TooLarge("field name too long"));
        }
        // HTTP/1.1 strips these spaces, so an upstream would read another value than our rules.
        if [value.first(), value.last()].into_iter().flatten().any(|byte| matches!(byte, b' ' | b'\t')) {
            return Err(HeadError::Malformed("space around the value of a field"));
        }
        if matches!(name.len(), 14 | 17) && name != b"content-length" && is_disguised_framing(name) {
            return Err(HeadError::Malformed("framing field in another spelling"));
        }
        match name {
            b"host" => fields.hosts += 1,
            b"cookie" => fields.cookies += 1,
            b"content-length" => fields.lengths += 1,
            _ => {}
        }
        fields.bytes += name.len() + value.len() + FIELD_LINE;
    }
    // The cookies will be joined to one field.
    let joined = fields.cookies.saturating_sub(1);
    fields.bytes -= joined * (COOKIE.as_str().len() + FIELD_LINE - COOKIE_SEPARATOR.len());
    fields.number = headers.len() - joined;
    Ok(fields)
}

fn body_length(headers: &HeaderMap) -> Result<Option<u64>, HeadError> {
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
    let length = lengths.next().map(|length| content_length(length.as_bytes()));
    match (length, lengths.next()) {
        (_, Some(_)) => Err(HeadError::Malformed("repeated Content-Length")),
        (Some(None), None) => Err(HeadError::Malformed("bad Content-Length")),
        (length, None) => Ok(length.flatten()),
    }
}

/// Joins the cookies to one field. An HTTP/2 client may send each in a field of its own (RFC 9113, section 8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    let mut cookies = headers.get_all(COOKIE).iter();
    let (Some(first), Some(second)) = (cookies.next(), cookies.next()) else { return };
    let mut joined = first.as_bytes().to_vec();
    for cookie in std::iter::once(second).chain(cookies) {
        joined.extend_from_slice(COOKIE_SEPARATOR.as_bytes());
        joined.extend_from_slice(cookie.as_bytes());
    }
    // Valid values are joined, so the result is valid.
    if let Ok(joined) = HeaderValue::from_bytes(&joined) {
        headers.insert(COOKIE, joined);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: Size = Size { bytes: 1024, fields: 5, target: 100 };

    fn head(method: &str, uri: &str, fields: &[(&str, &str)]) -> Parts {
        let request = http::Request::builder().method(method).uri(uri);
        let request = fields.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        request.body(()).unwrap().into_parts().0
    }

    fn checked(head: &mut Parts) -> Result<Option<u64>, u16> {
        check(head, &SIZE, |method| method == b"PURGE").map_err(HeadError::status)
    }

    #[track_caller]
    fn rejected(method: &str, uri: &str, fields: &[(&str, &str)], status: u16) {
        assert_eq!(checked(&mut head(method, uri, fields)), Err(status), "{method} {uri} {fields:?}");
    }

    #[test]
    fn a_valid_head_has_the_form_of_http1() {
        let fields = [("cookie", "a=1"), ("x-a", ""), ("cookie", "b=2; c=3"), ("content-length", "7")];
        let mut sent = head("PURGE", "https://a.test:443/b?c=/d", &fields);
        assert_eq!(checked(&mut sent), Ok(Some(7)));
        assert_eq!(sent.uri, "/b?c=/d");
        assert_eq!(sent.headers.get(HOST).unwrap(), "a.test:443");
        let cookies: Vec<_> = sent.headers.get_all(COOKIE).iter().collect();
        assert_eq!(cookies, ["a=1; b=2; c=3"]);
        let crumbs: Vec<_> = (0..20).map(|_| ("cookie", "a=1")).collect();
        assert_eq!(checked(&mut head("GET", "http://a/", &crumbs)), Ok(None), "they are one field");
        for fields in [&[("host", "a.test")][..], &[]] {
            let mut sent = head("OPTIONS", "http://a.test/", fields);
            assert_eq!((checked(&mut sent), sent.headers.len()), (Ok(None), 1));
        }
        let mut only_host = head("GET", "/", &[("host", "[::1]:80")]);
        assert_eq!(
            (checked(&mut only_host), &only_host.headers[HOST]),
            (Ok(None), &HeaderValue::from_static("[::1]:80"))
        );
    }

    #[test]
    fn what_http1_refuses_is_refused() {
        rejected("TRACE", "http://a/", &[], 405);
        rejected("CONNECT", "a:443", &[], 405);
        rejected("BREW", "http://a/", &[], 400);
        rejected("get", "http://a/", &[], 400);
        rejected("GET", "ftp://a/", &[], 400);
        rejected("GET", "*", &[("host", "a")], 400);
        rejected("GET", "/", &[], 400);
        rejected("GET", "/", &[("host", "a"), ("host", "a")], 400);
        rejected("GET", "http://a/", &[("host", "b")], 400);
        rejected("GET", "http://a/", &[("host", "A")], 400);
        rejected("GET", "http://user@a/", &[], 400);
        rejected("GET", "/", &[("host", "user@a")], 400);
        rejected("GET", "/", &[("host", "")], 400);
        for name in ["content_length", "transfer_encoding", "transfer.encoding", "transfer-encoding"] {
            rejected("POST", "http://a/", &[(name, "5")], 400);
        }
        rejected("POST", "http://a/", &[("content-length", "5"), ("content-length", "5")], 400);
        rejected("POST", "http://a/", &[("content-length", "5, 5")], 400);
        for value in [" a", "a\t"] {
            rejected("GET", "http://a/", &[("x-a", value)], 400);
        }
    }

    #[test]
    fn a_head_is_as_large_as_in_http1() {
        let target = |length: usize| format!("http://a/{}", "x".repeat(length - 1));
        assert_eq!(checked(&mut head("GET", &target(100), &[])), Ok(None));
        rejected("GET", &target(101), &[], 414);
        let text = |length: usize| "x".repeat(length - "GET / HTTP/1.1\r\nhost: a\r\nx: \r\n\r\n".len());
        assert_eq!(checked(&mut head("GET", "http://a/", &[("x", &text(1024))])), Ok(None));
        rejected("GET", "http://a/", &[("x", &text(1025))], 431);
        let fields = [("a", "b"); 5];
        assert_eq!(checked(&mut head("GET", "http://a/", &fields[..4])), Ok(None));
        rejected("GET", "http://a/", &fields, 431);
        rejected("GET", "http://a/", &[(&"x".repeat(LONGEST_NAME + 1), "")], 431);
    }
}
