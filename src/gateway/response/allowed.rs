//! Answers another proxy that the request about which it asks may go on.

use http::HeaderValue;
use http::header::CONTENT_LENGTH;
use pingora::http::ResponseHeader;
use pingora::proxy::Session;

use super::pending_fields::PendingFields;
use super::problem::{Reuse, prepare_connection};
use super::ratelimit_fields::RateLimitFields;
use super::response_fields::ResponseFields;

/// Answers with 200, and with the fields that the response to the request should have.
///
/// # Errors
/// If the other proxy has gone.
pub async fn write(
    session: &mut Session,
    rate_limits: Option<&RateLimitFields>,
    request_id: &HeaderValue,
    pending: Option<&PendingFields>,
    reuse: Reuse,
) -> pingora::Result<()> {
    prepare_connection(session, reuse);
    let mut header = ResponseHeader::build(200, Some(8))?;
    header.insert_header(CONTENT_LENGTH, HeaderValue::from_static("0"))?;
    let rate_limits = rate_limits.map(RateLimitFields::unmerged);
    ResponseFields { request_id, problem: None, rate_limits, cors: None }.add(&mut header, pending)?;
    session.write_response_header(Box::new(header), true).await
}
