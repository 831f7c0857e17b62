//! Defines the doors, the ways in which a request reaches the decision: the gateway proxies the request, or another
//! proxy or a service asks about it.

/// The way in which a request reaches the decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    /// The gateway proxies the request itself.
    Proxy,
    /// Another proxy asks about the request, with an HTTP request of its own to `/decide`.
    Http,
    /// Envoy asks about the request, through `envoy.service.auth.v3.Authorization`.
    ExtAuthz,
    /// Envoy sends descriptors in place of a request, through `envoy.service.ratelimit.v3.RateLimitService`.
    Rls,
    /// A service asks about something that it wants to do, with an HTTP request to `/take` that has a JSON body.
    Json,
}

impl Door {
    pub const ALL: [Door; 5] = [Door::Proxy, Door::Http, Door::ExtAuthz, Door::Rls, Door::Json];

    /// Returns whether calls at this door describe no request. Such calls have only the entries of descriptors.
    pub const fn has_only_descriptors(self) -> bool {
        matches!(self, Door::Rls | Door::Json)
    }

    pub fn named(name: &str) -> Option<Door> {
        Door::ALL.into_iter().find(|door| door.name() == name)
    }

    /// Returns the name of this door, as in the attribute `door` and in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Door::Proxy => "proxy",
            Door::Http => "http",
            Door::ExtAuthz => "ext_authz",
            Door::Rls => "rls",
            Door::Json => "json",
        }
    }
}
