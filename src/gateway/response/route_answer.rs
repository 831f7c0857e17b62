//! Makes the answer of a route that has one in the place of an upstream: a redirection, or a fixed response.

use bytes::Bytes;
use http::HeaderValue;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, LOCATION};
use pingora::http::ResponseHeader;

use super::cors_fields::CorsFields;
use super::header_changes;
use super::pending_fields::PendingFields;
use super::ratelimit_fields::RateLimitFields;
use super::response_fields::ResponseFields;
use decision::cors::CorsAnswer;
use rules::route::header_changes::ResolvedChanges;
use rules::route::target::Respond;

/// The fields that every answer gets, whatever its route.
#[derive(Clone, Copy, Debug)]
pub struct AnswerFields<'a> {
    pub request_id: &'a HeaderValue,
    pub rate_limits: Option<&'a RateLimitFields>,
    pub pending: Option<&'a PendingFields>,
    /// The changes of its route to the fields.
    pub changes: Option<&'a ResolvedChanges>,
    pub cors: Option<&'a CorsAnswer>,
}

/// The header of a redirection, without the fields that every answer gets.
///
/// # Errors
/// If the status is not one of HTTP.
pub fn redirection(code: u16, location: HeaderValue) -> pingora::Result<ResponseHeader> {
    let mut header = ResponseHeader::build(code, Some(3))?;
    header.insert_header(LOCATION, location)?;
    Ok(header)
}

/// The header of a fixed response, without the fields that every answer gets.
///
/// # Errors
/// If the status is not one of HTTP.
pub fn response(respond: &Respond) -> pingora::Result<ResponseHeader> {
    let mut header = ResponseHeader::build(respond.status, Some(4 + respond.headers.len()))?;
    if !respond.body.is_empty() {
        header.insert_header(CONTENT_TYPE, respond.content_type.clone())?;
    }
    for (name, value) in &respond.headers {
        header.append_header(name.clone(), value.clone())?;
    }
    Ok(header)
}

/// Adds the fields that every answer gets.
///
/// # Errors
/// If there are too many fields.
pub fn complete(
    header: &mut ResponseHeader,
    body: &Bytes,
    AnswerFields { request_id, rate_limits, pending, changes, cors }: AnswerFields<'_>,
) -> pingora::Result<()> {
    if let Some(changes) = changes {
        header_changes::apply(changes, header)?;
    }
    if has_length(header) {
        header.insert_header(CONTENT_LENGTH, HeaderValue::from(body.len()))?;
    }
    let rate_limits = rate_limits.map(RateLimitFields::unmerged);
    let cors = cors.map(|answer| CorsFields::beside(answer, header));
    ResponseFields { request_id, problem: None, rate_limits, cors }.add(header, pending)
}

/// Whether the response has a length. Responses of other statuses end with their head, and must not have one (RFC 9110, section
/// 8.6).
pub fn has_length(header: &ResponseHeader) -> bool {
    !matches!(header.status.as_u16(), 204 | 304)
}
