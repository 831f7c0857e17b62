//! Answers a preflight: a browser's question whether a page of another origin may send a request.

use http::HeaderValue;
use pingora::http::ResponseHeader;

use super::cors_fields::CorsFields;
use super::pending_fields::PendingFields;
use super::response_fields::ResponseFields;
use decision::cors::CorsAnswer;

/// The header of the answer.
///
/// # Errors
/// If the fields cannot be written.
pub fn header(
    answer: &CorsAnswer,
    request_id: &HeaderValue,
    pending: Option<&PendingFields>,
) -> pingora::Result<ResponseHeader> {
    let mut header = ResponseHeader::build(204, Some(8))?;
    let cors = Some(CorsFields::all(answer));
    ResponseFields { request_id, problem: None, rate_limits: None, cors }.add(&mut header, pending)?;
    Ok(header)
}
