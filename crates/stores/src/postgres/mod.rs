//! Stores buckets in PostgreSQL, where many gateways share them. A transaction locks the buckets of many requests and
//! reads the server's clock. The gateway decides, and one statement writes the new states.

mod act_batch;
mod batch;
mod bucket_reads;
mod cancellation;
mod cleaner;
mod cleaner_statements;
mod connect;
mod database;
mod errors;
mod gateway_heartbeat;
pub(crate) mod inspect;
mod other_servers;
mod primary_search;
mod primary_watch;
pub mod schema;
mod session;
mod settings;
mod single_statement;
mod table_size;
mod tls;
mod transaction;
mod url;
mod work;

use super::events::EventSink;
use super::remote;
use super::remote::Remote;
use super::remote::fault_injection::Hooks;
use super::remote::login::Login;
use base::time::Clock;
use database::Database;
pub(super) use settings::connections;
pub use settings::{Durability, Settings, TableName};
pub use url::{InvalidUrl, Url};

/// A store in one PostgreSQL database.
pub type Postgres = Remote<Database>;

impl Postgres {
    /// Opens a store, without connecting to the database yet. `hooks` are the faults that a test injects.
    pub fn open(hooks: Hooks, settings: Settings, workers: usize, clock: Clock, events: EventSink) -> Postgres {
        let Settings { timeout, breaker, gateways, .. } = settings;
        let database = Database::new(settings, clock.clone(), events.clone());
        let settings = remote::Settings { timeout, breaker, gateways };
        Remote::new(database, settings, hooks, connections(workers), clock, events)
    }

    /// Replaces the user, the password and the certificates for new connections.
    pub fn replace_login(&self, login: &Login) {
        self.transport.login.replace(login);
    }
}
