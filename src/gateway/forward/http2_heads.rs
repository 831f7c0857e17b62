//! Converts heads between the form of HTTP/1.1, in which they are edited, and the form of the h2 crate.

use bytes::{BufMut, BytesMut};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HOST};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Uri, Version, response};

use super::exchange::{ForwardedRequest, ReceivedExchange};
use super::fault::{Fault, UpstreamFault};
use super::head_edit::HeadEdit;
use super::http1_response_head::{Content, Persistence, ResponseBody, ResponseHead};
use super::request_head::{self, ReceivedHead, Wire};
use crate::gateway::response::request_id;
use crate::gateway::server::http1::request_head::Size;
use crate::gateway::server::http1::syntax::{content_length, is_disguised_framing};

/// The end of an empty first line. [`HeadEdit`] expects a first line, and edits the fields after it.
const FIRST_LINE: &[u8] = b"\r\n";

/// Makes the head of a request for an HTTP/2 upstream, in the form of the h2 crate.
///
/// # Errors
/// If the request cannot be expressed in HTTP/2, or its path cannot be rewritten.
pub(super) fn request(
    head: ReceivedHead<'_>,
    forwarded: &ForwardedRequest<'_, '_>,
    scheme: Scheme,
) -> Result<Request<()>, Fault> {
    let invalid = |detail| Fault::Own(400, detail);
    let mut target = Vec::with_capacity(128);
    request_head::write_target(head, forwarded, &mut target)?;
    let edit = request_head::edited(head, forwarded, Wire::Http2);
    let (mut request, ()) = Request::new(()).into_parts();
    let mut authority = None;
    for (name, value) in edit.fields() {
        if name.eq_ignore_ascii_case(HOST.as_str().as_bytes()) {
            authority = Some(Authority::try_from(value).map_err(|_| invalid("Host is no authority"))?);
            continue;
        }
        append(&mut request.headers, name, value).ok_or(invalid("field has no form in HTTP/2"))?;
    }
    keep_out_of_table(&mut request.headers, forwarded.received);
    let mut uri = http::uri::Parts::default();
    uri.scheme = Some(scheme);
    uri.authority = Some(authority.ok_or(invalid("no Host"))?);
    uri.path_and_query =
        Some(PathAndQuery::from_maybe_shared(target).map_err(|_| invalid("target has no form in HTTP/2"))?);
    request.uri = Uri::from_parts(uri).map_err(|_| invalid("target has no form in HTTP/2"))?;
    request.method = forwarded.received.head.method.clone();
    request.version = Version::HTTP_2;
    Ok(Request::from_parts(request, ()))
}

fn append(fields: &mut HeaderMap, name: &[u8], value: &[u8]) -> Option<()> {
    let (name, value) = (HeaderName::from_bytes(name).ok()?, HeaderValue::from_bytes(value).ok()?);
    fields.try_append(name, value).ok().map(drop)
}

/// Checks the head of a response of an HTTP/2 upstream, and converts it to the bytes of HTTP/1.1.
///
/// # Errors
/// If the head is too large, if its `Content-Length` is invalid or repeated, or if another field resembles `Content-Length`.
pub(super) fn received_response(
    head: &response::Parts,
    size: &Size,
) -> Result<(ResponseHead, BytesMut), UpstreamFault> {
    let mut bytes = BytesMut::with_capacity(512);
    bytes.put_slice(FIRST_LINE);
    let mut length = None;
    for (name, value) in &head.headers {
        if *name == CONTENT_LENGTH {
            let valid = content_length(value.as_bytes()).ok_or(UpstreamFault::invalid_head("bad Content-Length"))?;
            if length.replace(valid).is_some() {
                return Err(UpstreamFault::invalid_head("repeated Content-Length"));
            }
        } else if matches!(name.as_str().len(), 14 | 17) && is_disguised_framing(name.as_str().as_bytes()) {
            return Err(UpstreamFault::invalid_head("framing field in another spelling"));
        }
        put_line(&mut bytes, name, value);
    }
    bytes.put_slice(b"\r\n");
    if bytes.len() > size.bytes {
        return Err(UpstreamFault::invalid_head("head too large"));
    }
    let response = ResponseHead {
        length: bytes.len(),
        status: head.status.as_u16(),
        reason: (0, 0),
        body: length.map_or(ResponseBody::UntilClose, ResponseBody::Length),
        persistence: Persistence::Kept,
        content: head.headers.get(CONTENT_TYPE).map_or(Content::Other, |kind| Content::of_type(kind.as_bytes())),
    };
    Ok((response, bytes))
}

fn put_line(out: &mut impl BufMut, name: &HeaderName, value: &HeaderValue) {
    for part in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
        out.put_slice(part);
    }
}

/// Converts the checked head of an HTTP/2 request to the bytes of an HTTP/1.1 head, the form in which heads are edited.
pub(super) fn request_bytes(head: &http::request::Parts) -> BytesMut {
    let mut bytes = BytesMut::with_capacity(512);
    let target = head.uri.path_and_query().map_or("/", PathAndQuery::as_str);
    for part in [head.method.as_str(), " ", target, " HTTP/1.1\r\n"] {
        bytes.put_slice(part.as_bytes());
    }
    for (name, value) in &head.headers {
        put_line(&mut bytes, name, value);
    }
    bytes.put_slice(b"\r\n");
    bytes
}

/// Keeps the request id out of the HPACK table, because no other message has this id.
fn keep_out_of_table(fields: &mut HeaderMap, received: &ReceivedExchange<'_>) {
    if let Some(id) = fields.get_mut(request_id::NAME) {
        id.clone_from(&received.request_id);
    }
}

/// Makes the head of a response for an HTTP/2 client, in the form of the h2 crate. `None` if a field cannot be expressed in
/// HTTP/2.
pub(super) fn response(edit: &HeadEdit<'_>, status: u16, received: &ReceivedExchange<'_>) -> Option<Response<()>> {
    let (mut head, ()) = Response::new(()).into_parts();
    head.status = StatusCode::from_u16(status).ok()?;
    for (name, value) in edit.fields() {
        append(&mut head.headers, name, value)?;
    }
    keep_out_of_table(&mut head.headers, received);
    Some(Response::from_parts(head, ()))
}
