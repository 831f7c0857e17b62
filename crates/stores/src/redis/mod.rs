//! Stores buckets in Redis, where many gateways share them. One script charges all buckets of many requests
//! atomically, on the server's clock.

mod address;
mod bucket_reads;
pub mod cluster;
pub mod codec;
mod dial;
mod eviction_policy;
pub mod fault_injection;
mod gateway_heartbeat;
mod handshake;
pub(crate) mod inspect;
mod lease_script;
mod noscript;
mod read_limit;
mod readiness;
pub mod script;
pub mod sentinel;
mod server;
mod settings;
mod url;

use super::events::EventSink;
use super::remote;
use super::remote::Remote;
pub use super::remote::login::Login;
use base::time::Clock;
use fault_injection::Hooks;
pub use server::Server;
pub use settings::{LONGEST_PREFIX, Settings, Target};
pub use url::Url;

/// A store on one Redis server.
pub type Redis = Remote<Server>;

impl Redis {
    /// Opens a store, without connecting yet. `hooks` are the faults that a test injects.
    pub fn open(hooks: Hooks, settings: Settings, workers: usize, clock: Clock, events: EventSink) -> Redis {
        let Settings { timeout, breaker, gateways, .. } = settings;
        let server = Server::new(settings, clock.clone(), hooks);
        Remote::new(server, remote::Settings { timeout, breaker, gateways }, hooks, workers, clock, events)
    }

    /// Uses the login and the sentinels of these settings for new connections.
    pub fn replace_login(&self, settings: &Settings) {
        self.transport.replace_login(settings);
    }
}
