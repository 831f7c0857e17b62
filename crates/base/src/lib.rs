//! Basic types that are independent of rate limits: time, addresses of servers, files that are read again, secrets, TLS
//! settings, positions.
//!
//! Code that depends on time takes a [`Clock`](time::Clock), which a test can set:
//!
//! ```
//! use base::time::{Clock, Micros, Timestamp};
//!
//! let clock = Clock::manual(Timestamp(5_000_000));
//! let begun = clock.now();
//! clock.set(Timestamp(7_500_000));
//! assert_eq!(clock.now().since(begun), Micros(2_500_000));
//! ```

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
pub mod rfc3339;
pub mod seal;
pub mod secret;
pub mod split;
pub mod time;
pub mod tls;
pub mod waiting_time;
