//! Writes the end of a body in chunks, with those of its trailers that may pass.

use http::HeaderName;

use super::field_names::{Forgery, forgery};
use super::head_edit::{HeadEdit, Keep};
use crate::gateway::proxy::response_head::is_no_trailer;
use request::attribute::is_alias;

/// Fields that say who a client is, or what it may do: an upstream that merges trailers must not find them there.
const OF_REQUESTS: [&str; 6] =
    ["x-forwarded-for", "x-forwarded-proto", "x-forwarded-host", "x-request-id", "traceparent", "tracestate"];

/// Ends a request. `trailers` are lines of fields, each with its line end, and the empty line after them; `of_route` are the fields
/// that the route sets or removes.
pub fn end_request(trailers: &[u8], of_route: &[HeaderName], out: &mut Vec<u8>) {
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

/// Ends a response.
pub fn end_response(trailers: &[u8], out: &mut Vec<u8>) {
    end(trailers, out, |_| false);
}

fn end(trailers: &[u8], out: &mut Vec<u8>, is_removed: impl Fn(&str) -> bool) {
    out.extend_from_slice(b"0\r\n");
    if trailers.len() <= 2 {
        out.extend_from_slice(b"\r\n");
        return;
    }
    // Trailers are as a head without its first line.
    let head = [b"\r\n", trailers].concat();
    let mut edit = HeadEdit::new(&head);
    edit.retain(|name, _| {
        let name = String::from_utf8_lossy(name).to_ascii_lowercase();
        if is_no_trailer(&name) || is_removed(&name) { Keep::No } else { Keep::Yes }
    });
    edit.write(out);
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
}
