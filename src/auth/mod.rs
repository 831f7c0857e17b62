//! WHO ASKS: the client behind a request.

pub mod client_ip;
