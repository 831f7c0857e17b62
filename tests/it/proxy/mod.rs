//! Requests and responses on their way through the proxy.

mod early_responses;
mod fd_exhaustion;
mod forwarding;
mod malformed_responses;
mod pipelining;
mod request_heads;
mod responses;
mod routes;
mod slow_clients;
mod upstream_faults;
mod upstream_health;
mod upstream_timeouts;
mod upstream_tls;
mod upstreams;
