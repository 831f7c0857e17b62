//! Parses a valid head into its parts, and finds out whether the client wants to keep the connection open.

use bytes::Bytes;
use http::header::CONNECTION;
use http::request::Parts;
use http::{HeaderName, HeaderValue, Method, Uri, Version};

use base::split::split_once;

/// The error for a head that the `http` crate cannot represent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InvalidHead;

/// Parses a valid head into the parts that the `http` crate defines.
///
/// # Errors
/// If the `http` crate cannot represent the head.
pub(crate) fn parse(head: &Bytes) -> Result<Parts, InvalidHead> {
    let (mut parts, ()) = http::Request::new(()).into_parts();
    let (line, mut rest) = split_once(head, b'\n').unwrap_or_default();
    let line = line.trim_ascii_end();
    let method = line.split(|byte| *byte == b' ').next().unwrap_or_default();
    parts.method = Method::from_bytes(method).map_err(|_| InvalidHead)?;
    let target = target(head);
    let uri = if target.is_ascii() { Uri::from_maybe_shared(head.slice_ref(target)) } else { Uri::try_from(target) };
    parts.uri = uri.map_err(|_| InvalidHead)?;
    parts.version = if line.ends_with(b"HTTP/1.0") { Version::HTTP_10 } else { Version::HTTP_11 };
    while let Some((line, next)) = split_once(rest, b'\n') {
        rest = next;
        // The last line is empty, and no field follows it.
        let Some((name, value)) = split_once(line, b':') else { break };
        let name = HeaderName::from_bytes(name).map_err(|_| InvalidHead)?;
        let value = HeaderValue::from_maybe_shared(head.slice_ref(value.trim_ascii())).map_err(|_| InvalidHead)?;
        parts.headers.try_append(name, value).map_err(|_| InvalidHead)?;
    }
    Ok(parts)
}

/// Returns the target in the request line of a valid head.
pub(crate) fn target(head: &[u8]) -> &[u8] {
    head.split(|byte| matches!(byte, b' ' | b'\r')).nth(1).unwrap_or_default()
}

/// Whether the client wants the connection kept after the request. This is the default in HTTP/1.1, but not in
/// HTTP/1.0.
pub(crate) fn wants_connection_kept(head: &Parts) -> bool {
    let has = |wanted: &[u8]| {
        let values = head.headers.get_all(CONNECTION).iter();
        let mut options = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
        options.any(|option| option.trim_ascii().eq_ignore_ascii_case(wanted))
    };
    if head.version == Version::HTTP_11 { !has(b"close") } else { has(b"keep-alive") && !has(b"close") }
}
