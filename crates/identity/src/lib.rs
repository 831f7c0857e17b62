//! Authentication: the address of the client, and the identity that its API key or token proves.

pub mod api_key_file;
pub mod api_keys;
pub mod client_ip;
pub mod jwt;
mod on_invalid;
pub mod proxy_protocol;
