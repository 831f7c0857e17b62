//! Writes the end of a chunked body, and removes trailers that must not be forwarded.

use http::HeaderName;

use super::chunked::LAST_CHUNK;
use super::forged_fields::{Forgery, forgery};
use super::head_edit::{HeadEdit, Keep};
use super::hop_by_hop::is_hop_by_hop;
use crate::gateway::server::body_part::TrailerLines;
use request::attribute::is_alias;
use rules::route::forwarding::FieldChanges;

/// Fields that the gateway writes into the head of a request. Trailers with these names are removed, because an
/// upstream may merge trailers into the head.
const OF_REQUESTS: [&str; 6] =
    ["x-forwarded-for", "x-forwarded-proto", "x-forwarded-host", "x-request-id", "traceparent", "tracestate"];

/// Writes the end of a request's body in chunks. `trailers` are the lines of the trailers, each with its line end, and the
/// empty line after them. `of_route` are the names of fields that the route sets or removes, and trailers with these names are
/// left out.
pub(super) fn end_request(trailers: &[u8], of_route: &[HeaderName], out: &mut Vec<u8>) {
    let is_of_route = |name: &str| {
        let name = HeaderName::from_bytes(name.as_bytes());
        name.is_ok_and(|name| of_route.iter().any(|ours| *ours == name || is_alias(&name, ours)))
    };
    end(trailers, out, |name| {
        OF_REQUESTS.contains(&name)
            || name.starts_with("sec-")
            || forgery(name.as_bytes()) != Forgery::No
            || is_of_route(name)
    });
}

/// Returns the names of the request's fields that the route sets or removes. Trailers with these names are not forwarded.
pub(super) fn changed_fields(changes: Option<&FieldChanges>) -> Vec<HeaderName> {
    changes.map(|changes| changes.request.0.iter().map(|(name, _)| name.clone()).collect()).unwrap_or_default()
}

/// Writes the end of a response's body in chunks, with the trailers that may be forwarded.
pub(super) fn end_response(trailers: &[u8], out: &mut Vec<u8>) {
    end(trailers, out, |_| false);
}

/// Returns the trailers of a request, as lines. Leaves out trailers that must not be forwarded.
pub(super) fn request_lines(trailers: TrailerLines, changes: Option<&FieldChanges>) -> TrailerLines {
    lines(trailers, |trailers, out| end_request(trailers, &changed_fields(changes), out))
}

/// Returns the trailers of a response, as lines. Leaves out trailers that must not be forwarded.
pub(super) fn response_lines(trailers: TrailerLines) -> TrailerLines {
    lines(trailers, end_response)
}

fn lines(trailers: TrailerLines, end: impl Fn(&[u8], &mut Vec<u8>)) -> TrailerLines {
    if trailers.len() <= 2 {
        return TrailerLines::new();
    }
    let mut out = Vec::with_capacity(trailers.len());
    end(&trailers, &mut out);
    out.drain(..LAST_CHUNK.len());
    if out.len() <= 2 { TrailerLines::new() } else { out }
}

fn end(trailers: &[u8], out: &mut Vec<u8>, is_removed: impl Fn(&str) -> bool) {
    out.extend_from_slice(LAST_CHUNK);
    if trailers.len() <= 2 {
        out.extend_from_slice(b"\r\n");
        return;
    }
    // Trailers have the form of a head without its first line.
    let head = [b"\r\n", trailers].concat();
    let mut edit = HeadEdit::new(&head);
    edit.retain(|name, _| {
        let name = String::from_utf8_lossy(name).to_ascii_lowercase();
        if is_no_trailer(&name) || is_removed(&name) { Keep::No } else { Keep::Yes }
    });
    edit.write(out);
}

/// Whether a trailer with this name, in lower case, is removed. A recipient may merge trailers into the head. So
/// hop-by-hop fields, the gateway's own fields, and fields that say how the message is read or used are removed
/// (RFC 9110, section 6.5.1).
fn is_no_trailer(name: &str) -> bool {
    const PREFIXES: [&str; 6] = ["x-tollgate-", "ratelimit", "x-ratelimit", "access-control-", "if-", "proxy-"];
    const NAMES: [&str; 30] = [
        // The framing of the message.
        "content-length",
        // How a request is routed and handled.
        "cache-control",
        "expect",
        "host",
        "max-forwards",
        "pragma",
        "range",
        // Authentication and cookies.
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
        // The format of the content.
        "content-encoding",
        "content-range",
        "content-type",
        "content-disposition",
        // The gateway's own field.
        "x-request-id",
    ];
    is_hop_by_hop(name.as_bytes()) || PREFIXES.iter().any(|prefix| name.starts_with(prefix)) || NAMES.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trailers_pass_but_for_what_belongs_into_a_head() {
        let sent = b"X-Sum: 1\r\nContent-Length: 5\r\nX-Forwarded-For: 1\r\nset-cookie: a\r\ngrpc-status: 0\r\n\r\n";
        let mut out = Vec::new();
        end_request(sent, &[], &mut out);
        assert_eq!(String::from_utf8(out).unwrap(), "0\r\nX-Sum: 1\r\ngrpc-status: 0\r\n\r\n");
        let mut out = Vec::new();
        end_response(b"\r\n", &mut out);
        assert_eq!(out, b"0\r\n\r\n");
    }

    #[test]
    fn trailers_say_nothing_of_framing_routing_or_use_and_have_no_names_of_ours() {
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
        assert!(!kept.iter().any(|name| is_no_trailer(name)));
        let passing: Vec<_> = removed.iter().filter(|name| !is_no_trailer(name)).collect();
        assert!(passing.is_empty(), "{passing:?}");
    }
}
