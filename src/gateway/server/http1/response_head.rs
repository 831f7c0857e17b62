//! Writes the parts that the heads of all HTTP/1.x responses share, and whole heads of the gateway's own responses.

use http::StatusCode;
use pingora::protocols::http::date::get_cached_date;

use crate::gateway::response::own_response::OwnResponse;
use crate::gateway::server::request_client::Reuse;

/// Writes the head of a response that the gateway itself gives. `reuse` says whether the connection is kept.
pub(crate) fn write_own(response: &OwnResponse, reuse: Reuse, out: &mut Vec<u8>) {
    status_line(response.status, b"", out);
    out.extend_from_slice(response.fields.as_bytes());
    for (name, value) in [(&b"Date"[..], get_cached_date().as_bytes()), (b"Connection", connection(reuse))] {
        for part in [name, b": ", value, b"\r\n"] {
            out.extend_from_slice(part);
        }
    }
    out.extend_from_slice(b"\r\n");
}

/// Returns the value of `Connection` that announces whether the connection is kept.
pub(crate) fn connection(reuse: Reuse) -> &'static [u8] {
    match reuse {
        Reuse::Kept => b"keep-alive",
        Reuse::Closed => b"close",
    }
}

/// Writes a status line. If `reason` is empty, the usual phrase of the status is written.
pub(crate) fn status_line(status: u16, reason: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(b"HTTP/1.1 ");
    out.extend_from_slice(itoa::Buffer::new().format(status).as_bytes());
    out.push(b' ');
    out.extend_from_slice(if reason.is_empty() { usual_reason(status).as_bytes() } else { reason });
    out.extend_from_slice(b"\r\n");
}

fn usual_reason(status: u16) -> &'static str {
    match status {
        // The `http` crate uses an older name of this status.
        413 => "Content Too Large",
        _ => StatusCode::from_u16(status).ok().and_then(|status| status.canonical_reason()).unwrap_or_default(),
    }
}
