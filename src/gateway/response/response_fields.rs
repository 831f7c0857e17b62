//! The header fields that the gateway adds to a response, as a value, and the two ways to write them.
//!
//! - As text, which joins the head of an HTTP/1 response when that is written ([`RawFields`]). Pingora keeps a head in two
//!   maps, where a field costs a thousand instructions: its name is read, copied and hashed for each. As text it is copied.
//! - Into the map of a response's header, where a connection writes no text: over HTTP/2, and in any session that was not
//!   handed a [`PendingFields`].
//!
//! One of the two always takes them. What cannot be written is an error, and the response is not sent without it.

use http::response::Parts;
use http::{HeaderMap, HeaderValue, Response};
use pingora::http::ResponseHeader;

use super::cors_fields::CorsFields;
use super::field_writer::FieldWriter;
use super::pending_fields::{PendingFields, RawFields};
use super::ratelimit_fields::MergedRateLimitFields;
use decision::reason::Reason;

/// The fields of one response.
#[derive(Debug)]
pub struct ResponseFields<'a> {
    pub request_id: &'a HeaderValue,
    /// For a response of the gateway itself.
    pub problem: Option<ProblemFields>,
    pub rate_limits: Option<MergedRateLimitFields<'a>>,
    /// `None` in a file without `cors`.
    pub cors: Option<CorsFields<'a>>,
}

/// The values in the fields of a response of the gateway itself.
#[derive(Clone, Copy, Debug)]
pub struct ProblemFields {
    pub status: u16,
    /// `None` for a fault.
    pub reason: Option<Reason>,
    /// In seconds.
    pub retry_after: Option<u64>,
}

impl ResponseFields<'_> {
    /// Adds the fields to a response: as text that is `pending` for its head, or to `header` where nothing writes text.
    ///
    /// # Errors
    /// If the header has too many fields already.
    pub fn add(&self, header: &mut ResponseHeader, pending: Option<&PendingFields>) -> pingora::Result<()> {
        match pending {
            Some(pending) => {
                pending.put(self.to_http1());
                Ok(())
            }
            None if header.has_case() => self.write(header),
            // Pingora would read every name again, since it may be spelt in another way.
            None => edit(header, |fields| self.write(fields)),
        }
    }

    /// The fields as lines of an HTTP/1 head.
    pub fn to_http1(&self) -> RawFields {
        let mut text = RawFields::default();
        match self.write(&mut text) {
            Ok(()) => text,
        }
    }

    /// # Errors
    /// If the writer has no room for them.
    pub fn write<W: FieldWriter>(&self, writer: &mut W) -> Result<(), W::Error> {
        if self.problem.is_some() {
            writer.field("Cache-Control", &HeaderValue::from_static("no-store"))?;
        }
        writer.request_id(self.request_id)?;
        if let Some(problem) = self.problem {
            problem.write(writer)?;
        }
        if let Some(cors) = &self.cors {
            cors.write(writer)?;
        }
        match &self.rate_limits {
            Some(rate_limits) => rate_limits.write(writer),
            None => Ok(()),
        }
    }
}

/// Edits the fields of a header that has no spelling of their names.
fn edit(
    header: &mut ResponseHeader,
    change: impl FnOnce(&mut HeaderMap) -> pingora::Result<()>,
) -> pingora::Result<()> {
    let nothing = ResponseHeader::from(Response::new(()).into_parts().0);
    let mut parts = Parts::from(std::mem::replace(header, nothing));
    let changed = change(&mut parts.headers);
    *header = ResponseHeader::from(parts);
    changed
}

impl ProblemFields {
    fn write<W: FieldWriter>(self, writer: &mut W) -> Result<(), W::Error> {
        if let Some(reason) = self.reason {
            writer.field("X-Tollgate-Reason", &HeaderValue::from_static(reason.name()))?;
        }
        if let Some(challenge) = self.reason.filter(|_| self.status == 401).and_then(challenge) {
            writer.field("WWW-Authenticate", &HeaderValue::from_static(challenge))?;
        }
        if self.status == 405 {
            // Required (RFC 9110, section 15.5.6). Which of them the upstream supports is not known here.
            writer.field("Allow", &HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"))?;
        }
        match self.retry_after {
            Some(seconds) => writer.number("Retry-After", seconds),
            None => Ok(()),
        }
    }
}

/// The challenge of `WWW-Authenticate`, which a 401 must have (RFC 9110, section 15.5.2; RFC 6750, section 3). No scheme is
/// registered for API keys.
fn challenge(reason: Reason) -> Option<&'static str> {
    match reason {
        Reason::TokenInvalid => Some("Bearer error=\"invalid_token\""),
        Reason::TokenMissing => Some("Bearer"),
        Reason::KeyInvalid => Some("ApiKey"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REFUSED: ProblemFields =
        ProblemFields { status: 401, reason: Some(Reason::TokenInvalid), retry_after: Some(7) };
    const TEXT: &str = "Cache-Control: no-store\r\nX-Request-Id: a\r\nX-Tollgate-Reason: token_invalid\r\n\
        WWW-Authenticate: Bearer error=\"invalid_token\"\r\nRetry-After: 7\r\n";

    fn fields(request_id: &HeaderValue) -> ResponseFields<'_> {
        ResponseFields { request_id, problem: Some(REFUSED), rate_limits: None, cors: None }
    }

    #[test]
    fn text_takes_all_fields_where_a_head_is_text() {
        let (id, pending) = (HeaderValue::from_static("a"), PendingFields::default());
        let mut header = ResponseHeader::build(401, None).unwrap();
        fields(&id).add(&mut header, Some(&pending)).unwrap();
        assert!(header.headers.is_empty());
        let (head, end) = ("HTTP/1.1 401 Unauthorized\r\n", "\r\n");
        let joined = pending.join(format!("{head}{end}").as_bytes()).unwrap().into_text();
        assert_eq!(joined, format!("{head}{TEXT}{end}"));
    }

    #[test]
    fn the_header_takes_all_fields_where_no_head_is_text() {
        let id = HeaderValue::from_static("a");
        let mut header = ResponseHeader::build(401, None).unwrap();
        fields(&id).add(&mut header, None).unwrap();
        let mut text = Vec::new();
        header.header_to_h1_wire(&mut text);
        assert_eq!(String::from_utf8(text).unwrap(), TEXT);
    }

    #[test]
    fn fields_for_which_a_header_has_no_room_are_an_error() {
        // The http crate bounds the number of names. Text has no bound.
        let id = HeaderValue::from_static("a");
        let mut header = ResponseHeader::build_no_case(200, None).unwrap();
        let filled = (0..1 << 16).find(|number| header.append_header(format!("x-{number}"), "1").is_err());
        assert!(filled.is_some());
        assert!(fields(&id).add(&mut header, None).is_err());
        assert!(fields(&id).add(&mut header, Some(&PendingFields::default())).is_ok());
    }
}
