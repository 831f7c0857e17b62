//! The stages of a client connection, from the listening socket to the application that answers its requests.
//!
//! [`connection`] lists the stages in their order.

pub(crate) mod body_part;
pub(crate) mod client_socket;
pub(crate) mod connection;
pub(crate) mod connection_cut;
pub(crate) mod connection_guard;
pub(crate) mod connection_handle;
pub(crate) mod connection_limits;
mod connections_per_client;
pub(crate) mod decision_clients;
pub(super) mod forward_writes;
pub(crate) mod http1;
pub(crate) mod http2;
pub(crate) mod listener;
pub(crate) mod listening_socket;
#[cfg(test)]
mod other_application;
pub(crate) mod proxy_protocol_stage;
pub(crate) mod queued_connections;
mod rejected_head;
pub(crate) mod request_client;
pub(crate) mod server_state;
mod socket_file;
pub(crate) mod tls;
pub(crate) mod upstream_files;
pub(crate) mod websocket;
