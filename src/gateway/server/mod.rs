//! The stages of a client connection: listener, PROXY protocol, HTTP/1.1.

pub mod connections;
pub mod http1;
pub mod listener;
pub mod proxy_protocol;
