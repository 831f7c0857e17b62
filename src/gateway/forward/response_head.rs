//! Writes the head of an upstream's response for an HTTP/1.x client: the upstream's fields without hop-by-hop fields, and the
//! gateway's own fields.

use http::{HeaderValue, Method, Version};
use pingora::protocols::http::date::get_cached_date;

use super::exchange::{ForwardedRequest, ReceivedExchange};
use super::forged_fields::begins_with;
use super::head_edit::{HeadEdit, Keep};
use super::hop_by_hop::{is_hop_by_hop, options};
use super::http1_response_head::{ResponseBody, ResponseHead};
use super::request_head::Wire;
use crate::gateway::response::cors_fields::CorsFields;
use crate::gateway::response::field_writer::{FieldWriter, UpstreamFields};
use crate::gateway::response::response_fields::ResponseFields;
use crate::gateway::server::body_part::HasBody;
use crate::gateway::server::http1::response_head::{connection, status_line};
use crate::gateway::server::request_client::Reuse;

/// How the client finds the end of the response's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClientFraming {
    /// The body ends where the head of the upstream's response says.
    AsReceived,
    Chunked,
    /// The body is sent in frames of HTTP/2, which mark its end.
    Frames,
    /// The body ends when the connection is closed.
    UntilClose,
    /// The response has no body, and its head must not state a length.
    Nothing,
    /// The connection becomes a tunnel.
    Tunnel,
}

impl ClientFraming {
    /// Returns how the client of this request finds the end of a response with this head, which is not an upgrade. `body` says
    /// whether a body follows.
    pub(super) fn of(head: &ResponseHead, body: HasBody, request: &ReceivedExchange<'_>) -> ClientFraming {
        let in_parts = match request.head.version {
            Version::HTTP_2 => ClientFraming::Frames,
            Version::HTTP_11 => ClientFraming::Chunked,
            _ => ClientFraming::UntilClose,
        };
        match (head.body, body) {
            (ResponseBody::Length(_), _) if head.status == 204 => ClientFraming::Nothing,
            (ResponseBody::Chunked, HasBody::No) => match in_parts {
                ClientFraming::Chunked if head.status != 204 && request.head.method == Method::HEAD => in_parts,
                _ => ClientFraming::Nothing,
            },
            (_, HasBody::No) | (ResponseBody::Length(_), HasBody::Yes) => ClientFraming::AsReceived,
            (ResponseBody::Chunked | ResponseBody::UntilClose, HasBody::Yes) => in_parts,
        }
    }
}

/// Whether a body follows this head of a final response.
pub(super) fn has_body(head: &ResponseHead, request: &ReceivedExchange<'_>) -> HasBody {
    let has_none = request.head.method == Method::HEAD || matches!(head.status, 204 | 304);
    if has_none { HasBody::No } else { HasBody::Yes }
}

/// The head of a final response, and how the response is sent to the client.
#[derive(Clone, Copy, Debug)]
pub(super) struct FinalHead<'h> {
    pub bytes: &'h [u8],
    pub status: u16,
    /// The reason phrase, which may be empty.
    pub reason: &'h [u8],
    pub framing: ClientFraming,
    pub reuse: Reuse,
}

/// Writes the head of a final response, or of the response that accepts an upgrade.
pub(super) fn write(head: FinalHead<'_>, request: &ForwardedRequest<'_, '_>, out: &mut Vec<u8>) {
    status_line(head.status, head.reason, out);
    edited(head, request, Wire::Http1).write(out);
}

/// Returns the fields of a final response, including the fields that the gateway adds. `wire` is the protocol of the client.
pub(super) fn edited<'h>(head: FinalHead<'h>, request: &ForwardedRequest<'_, '_>, wire: Wire) -> HeadEdit<'h> {
    let mut edit = HeadEdit::new(head.bytes);
    let nominated: Vec<Vec<u8>> = edit.values("connection").flat_map(options).map(<[u8]>::to_vec).collect();
    // If the body is sent in another framing, its `Content-Length` is no longer true.
    let unframed = head.framing != ClientFraming::AsReceived;
    let mut has_date = false;
    edit.retain(|name, _| {
        let dropped = match name.len() {
            4 if name.eq_ignore_ascii_case(b"date") => {
                has_date = true;
                false
            }
            12 if name.eq_ignore_ascii_case(b"x-request-id") => true,
            14 if name.eq_ignore_ascii_case(b"content-length") => return if unframed { Keep::No } else { Keep::Yes },
            // The gateway does not use proxy authentication, so it forwards this field to the client.
            18 if name.eq_ignore_ascii_case(b"proxy-authenticate") => false,
            7 if name.eq_ignore_ascii_case(b"trailer") => {
                !matches!(head.framing, ClientFraming::Chunked | ClientFraming::Frames)
            }
            _ => is_hop_by_hop(name) || begins_with(name, b"x-tollgate-"),
        };
        let is_nominated = || nominated.iter().any(|option| option.eq_ignore_ascii_case(name));
        if dropped || is_nominated() { Keep::No } else { Keep::Yes }
    });
    if let Some(changes) = &request.decided.field_changes {
        for (name, value) in &changes.response.0 {
            match value {
                Some(value) => edit.set(name.as_str(), value.as_bytes()),
                None => edit.remove(name.as_str()),
            }
        }
    }
    if !has_date {
        edit.add("Date", get_cached_date().as_bytes());
    }
    match head.framing {
        ClientFraming::Chunked => edit.add("Transfer-Encoding", b"chunked"),
        ClientFraming::Tunnel => {
            edit.add("Upgrade", b"websocket");
            edit.add("Connection", b"Upgrade");
        }
        ClientFraming::AsReceived | ClientFraming::Frames | ClientFraming::UntilClose | ClientFraming::Nothing => {}
    }
    if head.framing != ClientFraming::Tunnel && wire == Wire::Http1 {
        edit.add("Connection", connection(head.reuse));
    }
    let rate_limits = request.decided.rate_limits.as_deref().map(|fields| fields.merge_with(&mut edit));
    let cors = request.received.cors().map(|answer| CorsFields::beside(answer, &edit));
    let fields = ResponseFields { request_id: &request.received.request_id, problem: None, rate_limits, cors };
    fields.write(&mut edit);
    edit
}

/// Writes the head of an interim response (1xx) for a client of HTTP/1.1.
pub(super) fn write_interim(bytes: &[u8], status: u16, reason: &[u8], out: &mut Vec<u8>) {
    status_line(status, reason, out);
    edited_interim(bytes).write(out);
}

/// Returns the fields of an interim response (1xx) that are passed on to the client.
pub(super) fn edited_interim(bytes: &[u8]) -> HeadEdit<'_> {
    let mut edit = HeadEdit::new(bytes);
    let nominated: Vec<Vec<u8>> = edit.values("connection").flat_map(options).map(<[u8]>::to_vec).collect();
    edit.retain(|name, _| {
        let is = |other: &[u8]| name.eq_ignore_ascii_case(other);
        let is_ours = is(b"x-request-id") || begins_with(name, b"x-tollgate-");
        let ends_here = is(b"content-length") || is_hop_by_hop(name) || nominated.iter().any(|option| is(option));
        if is_ours || ends_here { Keep::No } else { Keep::Yes }
    });
    edit
}

impl FieldWriter for HeadEdit<'_> {
    fn field(&mut self, name: &'static str, value: &HeaderValue) {
        self.add(name, value.as_bytes());
    }

    fn number(&mut self, name: &'static str, number: u64) {
        self.add(name, itoa::Buffer::new().format(number).as_bytes());
    }
}

impl UpstreamFields for HeadEdit<'_> {
    fn any_name(&self, wanted: impl Fn(&[u8]) -> bool) -> bool {
        self.fields().any(|(name, _)| wanted(name))
    }

    fn first(&self, name: &str) -> Option<&[u8]> {
        self.values(name).next()
    }

    fn remove(&mut self, name: &'static str) {
        HeadEdit::remove(self, name);
    }

    fn any_value(&self, name: &'static str, wanted: impl Fn(&[u8]) -> bool) -> bool {
        self.values(name).any(wanted)
    }
}
