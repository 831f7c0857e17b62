//! Requests and responses on their way through the proxy.

mod cors;
mod early_responses;
mod error_pages;
mod fd_exhaustion;
mod forwarding;
mod http10;
mod kept_connections;
#[cfg(feature = "forward")]
mod lying_upstreams;
mod malformed_responses;
#[cfg(feature = "forward")]
mod messages;
mod pipelining;
mod request_heads;
mod response_buffers;
mod responses;
mod routes;
mod slow_clients;
mod total_timeouts;
#[cfg(feature = "forward")]
mod truncated_responses;
#[cfg(feature = "forward")]
mod uploads;
#[cfg(feature = "forward")]
mod upstream_connections;
mod upstream_faults;
mod upstream_health;
mod upstream_names;
mod upstream_reloads;
mod upstream_sockets;
mod upstream_timeouts;
mod upstream_tls;
mod upstreams;
mod websockets;
