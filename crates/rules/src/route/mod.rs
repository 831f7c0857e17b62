//! Holds the routes of a file, and the upstreams to which they lead.
//!
//! A route is chosen by parts of the request that the client controls, before the rules are checked. So rules can read
//! the names of the route and the upstream. This module does no I/O and cannot fail.

pub mod error_format;
pub mod forwarding;
pub mod header_changes;
pub mod llm_settings;
pub mod overrides;
pub mod prefix_replacement;
pub mod redirect;
pub mod retries;
pub mod route_set;
pub mod split;
pub mod target;

/// The name of the upstream that the key `upstream` defines. The route to this upstream has the same name.
pub const DEFAULT: &str = "default";

/// The index of a route in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteId(pub u32);

/// The index of an upstream in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UpstreamId(pub u32);
