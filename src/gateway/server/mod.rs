//! The stages of a client connection, from the listening socket to the application that answers its requests.
//!
//! [`connection`] lists the stages in their order. The application is a type parameter: no file here knows the proxy.

pub mod body_part;
pub mod client_socket;
pub mod connection;
pub mod connection_cut;
pub mod connection_guard;
pub mod connection_handle;
pub mod connection_limits;
mod connections_per_client;
pub mod decision_clients;
mod forward_writes;
pub mod http1;
pub mod http2;
pub mod listener;
pub mod listening_socket;
#[cfg(test)]
mod other_application;
pub mod proxy_protocol_stage;
pub mod queued_connections;
mod rejected_head;
pub mod request_client;
pub mod server_state;
mod socket_file;
pub mod tls;
pub mod upstream_files;
pub mod websocket;
