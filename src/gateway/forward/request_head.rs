//! Writes the head of a request for an HTTP/1.1 upstream: the client's fields without hop-by-hop fields, and fields that tell
//! the upstream who the client is.

use http::{HeaderMap, HeaderName, HeaderValue};

use super::client_certificate;
use super::exchange::ForwardedRequest;
use super::fault::Fault;
use super::forged_fields::{Forgery, forgery};
use super::head_edit::{HeadEdit, Keep};
use super::hop_by_hop::{is_hop_by_hop, options};
use super::request_target::RequestTarget;
use super::withheld_key;
use crate::gateway::server::http1::head_parts::target;
use crate::gateway::server::http1::request_head::Body;
use request::attribute::is_alias;
use request::client_address::address_text;
use rules::route::forwarding::Rewrite;
use rules::route::header_changes::ResolvedChanges;

/// The head of a request as it was received, and the kind of body that follows.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReceivedHead<'h> {
    pub bytes: &'h [u8],
    pub body: Body,
}

/// The protocol in which a message is forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wire {
    Http1,
    Http2,
}

/// Writes the head of the request for one attempt at an HTTP/1.1 upstream.
///
/// # Errors
/// If the path is to be rewritten, but does not begin with the prefix that is to be replaced.
pub(super) fn write(
    head: ReceivedHead<'_>,
    request: &ForwardedRequest<'_, '_>,
    out: &mut Vec<u8>,
) -> Result<(), Fault> {
    out.reserve(head.bytes.len() + 512);
    out.extend_from_slice(request.received.head.method.as_str().as_bytes());
    out.push(b' ');
    write_target(head, request, out)?;
    out.extend_from_slice(b" HTTP/1.1\r\n");
    edited(head, request, Wire::Http1).write(out);
    Ok(())
}

/// Writes the path and the query of the request as the upstream gets them.
///
/// # Errors
/// If the path is to be rewritten, but does not begin with the prefix that is to be replaced.
pub(super) fn write_target(
    head: ReceivedHead<'_>,
    request: &ForwardedRequest<'_, '_>,
    out: &mut Vec<u8>,
) -> Result<(), Fault> {
    let target = RequestTarget::parse(target(head.bytes));
    match request.rewrite().and_then(|rewrite| rewrite.path.as_ref()) {
        Some(replacement) => {
            let path = replacement.replace(target.path).ok_or(Fault::Own(400, "the path has two readings"))?;
            out.extend_from_slice(&path);
        }
        None => out.extend_from_slice(target.path),
    }
    withheld_key::write_query(target.query, request, out);
    Ok(())
}

/// Returns the fields of the request for the upstream, including the fields that the gateway adds. `wire` is the protocol of
/// the upstream.
pub(super) fn edited<'h>(head: ReceivedHead<'h>, request: &ForwardedRequest<'_, '_>, wire: Wire) -> HeadEdit<'h> {
    let mut edit = HeadEdit::new(head.bytes);
    let nominated: Vec<Vec<u8>> = edit.values("connection").flat_map(options).map(<[u8]>::to_vec).collect();
    let is_nominated = |name: &[u8]| nominated.iter().any(|option| option.eq_ignore_ascii_case(name));
    // In HTTP/1.1, `TE` counts only if `Connection` names it.
    let wants_trailers = (is_nominated(b"te") || request.received.connection.is_http2())
        && edit.values("te").any(|value| {
            value.split(|byte| *byte == b',').any(|option| option.trim_ascii().eq_ignore_ascii_case(b"trailers"))
        });
    let trusted = request.received.trusted_peer;
    let (mut chain, mut has_proto, mut has_forwarded_host) = (Vec::new(), false, false);
    edit.retain(|name, value| {
        let dropped = match name.len() {
            12 if name.eq_ignore_ascii_case(b"x-request-id") => true,
            15 if name.eq_ignore_ascii_case(b"x-forwarded-for") => {
                if trusted {
                    chain.extend_from_slice(value);
                    chain.extend_from_slice(b", ");
                }
                true
            }
            16 if name.eq_ignore_ascii_case(b"x-forwarded-host") => {
                has_forwarded_host = trusted;
                !trusted
            }
            17 if name.eq_ignore_ascii_case(b"x-forwarded-proto") => {
                has_proto = trusted;
                !trusted
            }
            // A body that has been read is sent at once, so the request to the upstream has no `Expect`.
            6 if name.eq_ignore_ascii_case(b"expect") => request.attempts.body.is_some(),
            // `Trailer` announces fields after the last chunk, so only a body in chunks keeps it.
            7 if name.eq_ignore_ascii_case(b"trailer") => head.body != Body::Chunked,
            _ => is_hop_by_hop(name),
        };
        let forged = || match forgery(name) {
            Forgery::Always => true,
            Forgery::OfUntrusted => !trusted,
            Forgery::No => false,
        };
        if dropped || forged() || is_nominated(name) { Keep::No } else { Keep::Yes }
    });
    chain.extend_from_slice(address_text(request.received.peer).as_bytes());
    edit.add("X-Forwarded-For", &chain);
    if !has_proto {
        edit.add("X-Forwarded-Proto", request.received.scheme().name().as_bytes());
    }
    let host = request.received.head.headers.get(http::header::HOST);
    if let Some(host) = host.filter(|_| !has_forwarded_host) {
        edit.add("X-Forwarded-Host", host.as_bytes());
    }
    edit.add("X-Request-Id", request.received.request_id.as_bytes());
    add_trace(request, &mut edit);
    if host.is_none() {
        // Only HTTP/1.0 allows a request without `Host`. The request is forwarded as HTTP/1.1, which requires this
        // field.
        edit.add("Host", request.upstream.upstream.authority().as_bytes());
    }
    if let Some(rewrite) = request.rewrite() {
        rewrite_fields(rewrite, &mut edit, trusted);
    }
    if let Some(field) = request.forwarded_certificate().and_then(client_certificate::field) {
        edit.set("X-Forwarded-Client-Cert", field.as_bytes());
    }
    withheld_key::remove_from_fields(request, &mut edit);
    if let Some(changes) = &request.decided.field_changes {
        apply(&changes.request, &mut edit);
    }
    if request.decided.held.costs().is_some_and(|costs| costs.read_body()) {
        edit.set("Accept-Encoding", b"identity");
    }
    if let (Body::Length(length), true) =
        (head.body, request.attempts.body.as_ref().is_some_and(|body| body.is_changed()))
    {
        edit.set("Content-Length", length.to_string().as_bytes());
    }
    if wire == Wire::Http2 {
        if wants_trailers {
            edit.add("TE", b"trailers");
        }
        return edit;
    }
    match head.body {
        Body::Chunked => edit.add("Transfer-Encoding", b"chunked"),
        Body::Tunnel => {
            edit.add("Connection", b"Upgrade");
            edit.add("Upgrade", b"websocket");
        }
        Body::Nothing | Body::Length(_) => {}
    }
    if wants_trailers && head.body != Body::Tunnel {
        edit.add("Connection", b"TE");
        edit.add("TE", b"trailers");
    }
    edit
}

/// Replaces the client's trace context by the gateway's, if the request is traced.
fn add_trace(request: &ForwardedRequest<'_, '_>, edit: &mut HeadEdit<'_>) {
    if !request.received.trace.is_sampled() {
        return;
    }
    const STATE: &str = "tracestate";
    let mut fields = HeaderMap::new();
    for value in request.received.head.headers.get_all(STATE) {
        fields.append(STATE, value.clone());
    }
    request.received.trace.inject(&mut fields);
    if !fields.contains_key(STATE) {
        edit.remove(STATE);
    }
    if let Some(parent) = fields.get("traceparent") {
        edit.set("traceparent", parent.as_bytes());
    }
}

fn rewrite_fields(rewrite: &Rewrite, edit: &mut HeadEdit<'_>, trusted: bool) {
    if let Some(host) = &rewrite.host {
        edit.set("Host", host.as_bytes());
    }
    if let Some(stripped) = &rewrite.stripped {
        let prefix = {
            let mut before = edit.values("x-forwarded-prefix");
            match (before.next(), before.next()) {
                // A trusted peer has already stripped a prefix, so the route's prefix is appended to that prefix.
                (Some(before), None) if trusted && before.starts_with(b"/") => {
                    [before.strip_suffix(b"/").unwrap_or(before), stripped.as_bytes()].concat()
                }
                _ => stripped.as_bytes().to_vec(),
            }
        };
        edit.set("X-Forwarded-Prefix", &prefix);
    }
}

/// Applies the field changes of a route. If the route changes `X-Tenant`, the client's `X_Tenant` and `X.Tenant` are
/// removed, because an upstream may take them for `X-Tenant`.
fn apply(ResolvedChanges(changes): &ResolvedChanges, edit: &mut HeadEdit<'_>) {
    edit.retain(|name, _| {
        let Ok(name) = HeaderName::from_bytes(name) else { return Keep::Yes };
        if changes.iter().any(|(ours, _)| is_alias(&name, ours)) { Keep::No } else { Keep::Yes }
    });
    for (name, value) in changes {
        match value {
            Some(value) => edit.set(name.as_str(), HeaderValue::as_bytes(value)),
            None => edit.remove(name.as_str()),
        }
    }
}
