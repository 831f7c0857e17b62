//! The gateway's own responses and the header fields it adds to every response.

pub mod allowed;
pub mod cors_fields;
pub mod field_lines;
pub mod field_writer;
pub mod own_response;
pub mod preflight;
pub mod problem;
pub mod ratelimit_fields;
pub mod request_id;
pub mod response_fields;
pub mod route_answer;
