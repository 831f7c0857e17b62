//! WHO ASKS: the client behind a request.

pub mod client_ip;
pub mod proxy_protocol;
