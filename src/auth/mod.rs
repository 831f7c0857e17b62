//! WHO ASKS: the client behind a request, and what its credentials prove.

pub mod api_keys;
pub mod client_ip;
pub mod jwt;
pub mod key_file;
mod on_invalid;
pub mod proxy_protocol;
