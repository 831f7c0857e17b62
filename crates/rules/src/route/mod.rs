//! Holds the routes of a file, and the upstreams that they lead to.
//!
//! A route is chosen by what a client sends, before any rule is asked and after the client's credentials were verified. The
//! names of both are attributes of the request from then on. Like the rules, this room does no I/O and cannot fail.

pub mod forwarding;
pub mod header_changes;
pub mod overrides;
pub mod prefix_replacement;
pub mod redirect;
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
