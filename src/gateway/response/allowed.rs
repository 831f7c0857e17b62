//! Tells another proxy that the request about which it asks may pass.

use http::HeaderValue;

use super::own_response::OwnResponse;
use super::ratelimit_fields::RateLimitFields;
use super::response_fields::ResponseFields;

/// Returns the answer to a proxy that has asked about a request, if the request may pass: status 200, with the fields that
/// the proxy should add.
pub(crate) fn response(rate_limits: Option<&RateLimitFields>, request_id: &HeaderValue) -> OwnResponse {
    let mut response = OwnResponse::new(200);
    response.fields.add("Content-Length", b"0");
    let rate_limits = rate_limits.map(RateLimitFields::unmerged);
    ResponseFields { request_id, problem: None, rate_limits, cors: None }.write(&mut response.fields);
    response
}
