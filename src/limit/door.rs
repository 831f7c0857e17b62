//! The doors: whether a request is on its way through the gateway, or another proxy asks about it, and in which protocol.

/// How a request comes to be decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    /// The gateway proxies it.
    Proxy,
    /// Another proxy asks about it with a request of its own, to `/decide`.
    Http,
}

impl Door {
    pub const ALL: [Door; 2] = [Door::Proxy, Door::Http];

    pub fn named(name: &str) -> Option<Door> {
        Door::ALL.into_iter().find(|door| door.name() == name)
    }

    /// Its value as an attribute, and its label in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Door::Proxy => "proxy",
            Door::Http => "http",
        }
    }
}
