//! Basic types that know nothing of the rest: time, fixed intervals, hosts with ports, addresses of servers, files that are read again, how a listener is reached, secrets, TLS settings, positions, byte sets, methods, protocols, pseudonyms.

pub mod byte_set;
pub mod endpoint_address;
pub mod host_name;
pub mod host_port;
pub mod http_method;
pub mod http_protocol;
pub mod interval;
pub mod named_file;
pub mod position;
pub mod printable;
pub mod pseudonym;
pub mod reachable;
pub mod secret;
pub mod split;
pub mod time;
pub mod tls;
