//! Answers preflights, in which browsers ask whether a page of another origin may send a request.

use http::HeaderValue;

use super::cors_fields::CorsFields;
use super::own_response::OwnResponse;
use super::response_fields::ResponseFields;
use decision::cors::CorsAnswer;

pub(crate) fn response(answer: &CorsAnswer, request_id: &HeaderValue) -> OwnResponse {
    let mut response = OwnResponse::new(204);
    let cors = Some(CorsFields::all(answer));
    ResponseFields { request_id, problem: None, rate_limits: None, cors }.write(&mut response.fields);
    response
}
