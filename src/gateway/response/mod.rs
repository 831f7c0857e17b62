//! The gateway's own responses and the header fields it adds to every response.

pub(super) mod allowed;
pub(super) mod cors_fields;
mod error_body;
pub(super) mod field_lines;
pub(super) mod field_writer;
pub(super) mod own_response;
pub(super) mod preflight;
pub(super) mod problem;
pub(super) mod ratelimit_fields;
pub(super) mod request_id;
pub(super) mod response_fields;
pub(super) mod route_answer;
