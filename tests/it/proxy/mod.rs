//! Requests and responses that the proxy forwards.

mod cors;
mod early_responses;
mod error_formats;
mod error_pages;
mod event_streams;
mod exchange_memory;
mod failed_attempts;
mod fd_exhaustion;
mod first_byte;
mod forwarding;
mod http10;
mod kept_connections;
mod lying_upstreams;
mod malformed_responses;
mod messages;
#[cfg(feature = "test-hooks")]
mod observed_ends;
#[cfg(feature = "test-hooks")]
mod observed_responses;
mod pipelining;
mod protocol_pairs;
mod request_heads;
mod response_buffers;
mod responses;
mod retried_statuses;
mod routes;
mod slow_clients;
mod total_timeouts;
mod truncated_responses;
mod uploads;
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
