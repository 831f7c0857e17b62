//! Makes the response of a route without an upstream: a redirection or a fixed response.

use bytes::Bytes;
use http::HeaderValue;

use super::cors_fields::CorsFields;
use super::field_lines::FieldLines;
use super::own_response::OwnResponse;
use super::ratelimit_fields::RateLimitFields;
use super::response_fields::ResponseFields;
use decision::cors::CorsAnswer;
use rules::route::header_changes::ResolvedChanges;
use rules::route::target::Respond;

/// The values that [`complete`] needs to add header fields to the answer of a route.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AnswerFields<'a> {
    pub request_id: &'a HeaderValue,
    pub rate_limits: Option<&'a RateLimitFields>,
    /// The changes that the route makes to header fields. `None` if the route makes no changes.
    pub changes: Option<&'a ResolvedChanges>,
    pub cors: Option<&'a CorsAnswer>,
}

/// Makes a redirection to `location` with the status `code`. Call [`complete`] to add the other header fields.
pub(crate) fn redirection(code: u16, location: &HeaderValue) -> OwnResponse {
    let mut response = OwnResponse::new(code);
    response.fields.add("Location", location.as_bytes());
    response
}

/// Makes the fixed response that a route has in its settings. Call [`complete`] to add the other header fields.
pub(crate) fn fixed(respond: &Respond) -> OwnResponse {
    let mut response = OwnResponse { body: respond.body.clone(), ..OwnResponse::new(respond.status) };
    if !respond.body.is_empty() {
        response.fields.add("Content-Type", respond.content_type.as_bytes());
    }
    for (name, value) in &respond.headers {
        response.fields.add(name.as_str(), value.as_bytes());
    }
    response
}

/// Completes the answer of a route: applies the route's changes to header fields, and adds the fields that every answer has.
pub(crate) fn complete(
    response: &mut OwnResponse,
    AnswerFields { request_id, rate_limits, changes, cors }: AnswerFields<'_>,
) {
    if let Some(changes) = changes {
        apply(changes, &mut response.fields);
    }
    if has_length(response.status) {
        response.fields.set("Content-Length", itoa::Buffer::new().format(response.body.len()).as_bytes());
    } else {
        response.body = Bytes::new();
    }
    let rate_limits = rate_limits.map(RateLimitFields::unmerged);
    let cors = cors.map(|answer| CorsFields::beside(answer, &response.fields));
    ResponseFields { request_id, problem: None, rate_limits, cors }.write(&mut response.fields);
}

fn apply(changes: &ResolvedChanges, fields: &mut FieldLines) {
    for (name, value) in &changes.0 {
        match value {
            Some(value) => fields.set(name.as_str(), value.as_bytes()),
            None => fields.remove(name.as_str()),
        }
    }
}

/// Whether the response must state a length. With status 204 or 304 it has no body (RFC 9110, section 8.6).
fn has_length(status: u16) -> bool {
    !matches!(status, 204 | 304)
}
