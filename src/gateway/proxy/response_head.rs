//! Checks the heads of the upstream's responses, and removes the fields that are not for the client.

use http::header::{CONNECTION, CONTENT_LENGTH, HeaderName, TRANSFER_ENCODING};
use http::response::Parts;
use http::{HeaderMap, HeaderValue, StatusCode};
use pingora::http::ResponseHeader;
use pingora::{Error, ErrorType, Result};
use smallvec::SmallVec;

use crate::gateway::response::request_id;

/// Interim responses (1xx) to one request. An honest upstream sends one or two; nothing else bounds them.
const MOST_INTERIM: u8 = 32;

/// The names of our own fields begin with this.
const OURS: &str = "x-tollgate-";

/// Forgets how the upstream has spelt the names of fields, which HTTP/2 does not send. With it every change of a field is made
/// twice.
pub fn forget_spelling(response: &mut ResponseHeader) {
    if response.has_case() {
        let nothing = ResponseHeader::from(http::Response::new(()).into_parts().0);
        *response = ResponseHeader::from(Parts::from(std::mem::replace(response, nothing)));
    }
}

/// Removes the hop-by-hop fields (RFC 9110, section 7.6.1), except from the response to an upgrade, the id of the request, and
/// fields under our own names. Pingora adds the fields of the client's own connection later.
///
/// # Errors
/// If the head does not say in exactly one way where the response ends.
pub fn sanitise(response: &mut ResponseHeader) -> Result<()> {
    let is_upgrade = response.status == StatusCode::SWITCHING_PROTOCOLS;
    // Nearly every response has a `Connection`.
    let mut removed: SmallVec<[HeaderName; 2]> = SmallVec::new();
    let (mut framing, mut lengths, mut encodings) = (Framing::Valid, 0, 0);
    for (name, value) in &response.headers {
        match name.as_str() {
            "connection" if !is_upgrade => {
                removed.push(CONNECTION);
                removed.extend(nominated(value));
            }
            "keep-alive" | "proxy-connection" if !is_upgrade => removed.push(name.clone()),
            "content-length" => {
                lengths += 1;
                if !value.as_bytes().iter().all(u8::is_ascii_digit) {
                    framing = Framing::Invalid;
                }
            }
            "transfer-encoding" => {
                encodings += 1;
                if !value.as_bytes().eq_ignore_ascii_case(b"chunked") {
                    framing = Framing::Invalid;
                }
            }
            // The client gets its own.
            "x-request-id" => removed.push(request_id::NAME),
            other if other.starts_with(OURS) => removed.push(name.clone()),
            _ => {}
        }
    }
    if framing == Framing::Invalid || lengths > 1 || encodings > 1 {
        return Err(Error::new_up(ErrorType::InvalidHTTPHeader));
    }
    for name in removed {
        response.remove_header(&name);
    }
    Ok(())
}

/// Removes fields under our own names from an interim response (1xx), and counts it.
///
/// # Errors
/// If the upstream has sent too many to this request.
pub fn sanitise_interim(response: &mut ResponseHeader, interim: &mut u8) -> Result<()> {
    *interim += 1;
    while let Some(name) = of_ours(&response.headers) {
        response.remove_header(&name);
    }
    if *interim > MOST_INTERIM { Err(Error::new_up(ErrorType::InvalidHTTPHeader)) } else { Ok(()) }
}

/// Removes from the trailers of a response what does not belong there: fields of the connection, fields that say how the rest
/// of the response is to be read or used (RFC 9110, section 6.5.1), which a client that merges trailers would believe, and fields
/// that only the gateway writes.
pub fn sanitise_trailers(trailers: &mut HeaderMap) {
    while let Some(name) = trailers.keys().find(|name| is_no_trailer(name.as_str())).cloned() {
        trailers.remove(name);
    }
}

/// Whether a trailer of this name, in lower case, is removed.
pub fn is_no_trailer(name: &str) -> bool {
    const PREFIXES: [&str; 6] = [OURS, "ratelimit", "x-ratelimit", "access-control-", "if-", "proxy-"];
    const NAMES: [&str; 36] = [
        // Framing and the connection.
        "connection",
        "content-length",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        // Routing and request modifiers.
        "cache-control",
        "expect",
        "host",
        "max-forwards",
        "pragma",
        "range",
        // Authentication and state.
        "authorization",
        "cookie",
        "set-cookie",
        "set-cookie2",
        "www-authenticate",
        // How a response is used.
        "age",
        "allow",
        "alt-svc",
        "clear-site-data",
        "date",
        "expires",
        "location",
        "retry-after",
        "vary",
        "warning",
        "content-security-policy",
        "strict-transport-security",
        "refresh",
        // How its content is read.
        "content-encoding",
        "content-range",
        "content-type",
        "content-disposition",
        // Of the gateway.
        "x-request-id",
    ];
    PREFIXES.iter().any(|prefix| name.starts_with(prefix)) || NAMES.contains(&name)
}

fn of_ours(fields: &HeaderMap) -> Option<HeaderName> {
    fields.keys().find(|name| name.as_str().starts_with(OURS)).cloned()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    Valid,
    Invalid,
}

/// The fields that the options of `Connection` name. Those that say where the response ends must stay.
fn nominated(options: &HeaderValue) -> impl Iterator<Item = HeaderName> {
    let options = options.as_bytes().split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
    // Nearly every response has one of these and no other option.
    let others =
        options.filter(|option| !option.eq_ignore_ascii_case(b"keep-alive") && !option.eq_ignore_ascii_case(b"close"));
    let names = others.filter_map(|option| HeaderName::from_bytes(option).ok());
    names.filter(|name| ![CONTENT_LENGTH, TRANSFER_ENCODING].contains(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sanitised(status: u16, fields: &[(&'static str, &'static str)]) -> Option<Vec<String>> {
        let mut response = ResponseHeader::build(status, None).unwrap();
        for (name, value) in fields {
            response.append_header(*name, *value).unwrap();
        }
        sanitise(&mut response).ok()?;
        Some(response.headers.keys().map(ToString::to_string).collect())
    }

    #[test]
    fn one_length_or_one_chunked_is_the_only_valid_framing() {
        for fields in [&[("Content-Length", "5")][..], &[("Transfer-Encoding", "Chunked")], &[]] {
            assert!(sanitised(200, fields).is_some(), "{fields:?}");
        }
        for fields in [
            &[("Content-Length", "5"), ("content-length", "5")][..],
            &[("Content-Length", "5, 5")],
            &[("Transfer-Encoding", "gzip, chunked")],
            &[("Transfer-Encoding", "chunked"), ("Transfer-Encoding", "chunked")],
            &[("Transfer-Encoding", "identity")],
            &[("Transfer-Encoding", "")],
        ] {
            assert!(sanitised(200, fields).is_none() && sanitised(101, fields).is_none(), "{fields:?}");
        }
    }

    #[test]
    fn fields_of_the_hop_and_under_our_names_are_removed() {
        let fields = [
            ("Connection", "x-a"),
            ("X-A", "1"),
            ("Keep-Alive", "1"),
            ("X-Tollgate-Reason", "1"),
            ("X-Request-Id", "1"),
            ("X-B", "1"),
        ];
        assert_eq!(sanitised(200, &fields).unwrap(), ["x-b"]);
        assert_eq!(sanitised(101, &fields).unwrap(), ["connection", "x-a", "keep-alive", "x-b"]);
    }

    #[test]
    fn trailers_say_nothing_of_framing_routing_or_use_and_have_no_names_of_ours() {
        let mut trailers = HeaderMap::new();
        let kept =
            ["grpc-status", "grpc-message", "grpc-status-details-bin", "digest", "server-timing", "etag", "x-own"];
        let removed = [
            "content-length",
            "transfer-encoding",
            "connection",
            "trailer",
            "te",
            "host",
            "authorization",
            "set-cookie",
            "www-authenticate",
            "proxy-authenticate",
            "cache-control",
            "if-match",
            "range",
            "age",
            "date",
            "expires",
            "location",
            "retry-after",
            "vary",
            "content-type",
            "content-encoding",
            "content-range",
            "access-control-allow-origin",
            "x-request-id",
            "x-tollgate-reason",
            "ratelimit",
            "ratelimit-policy",
            "x-ratelimit-limit",
        ];
        for name in kept.into_iter().chain(removed) {
            trailers.append(HeaderName::from_static(name), HeaderValue::from_static("1"));
            trailers.append(HeaderName::from_static(name), HeaderValue::from_static("2"));
        }
        sanitise_trailers(&mut trailers);
        let mut left: Vec<&str> = trailers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        let mut expected = kept;
        expected.sort_unstable();
        assert_eq!((left, trailers.len()), (expected.to_vec(), 2 * kept.len()));
    }
}
