//! Prepares the database of a store that keeps its buckets in tables.

use std::fmt;

use super::error::Fault;
use super::postgres;
use super::remote;
use super::settings::Settings;
use base::secret::SecretSource;

/// Prepares a database, so that gateways can use it as a store.
#[derive(Debug)]
pub struct Initialization<'s> {
    settings: &'s Settings,
    postgres: &'s postgres::Settings,
}

/// The user for the preparation of the database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Login {
    /// The user in gateway.yaml. Gateways log in as this user too.
    OfGateway,
    As {
        user: String,
        password: Option<SecretSource>,
    },
}

impl Initialization<'_> {
    /// Returns the preparation that a store with these settings needs. `None` for a store that needs no tables.
    pub fn of(settings: &Settings) -> Option<Initialization<'_>> {
        match settings {
            Settings::Memory(_) | Settings::Redis(_) => None,
            Settings::Postgres(postgres) => Some(Initialization { settings, postgres }),
        }
    }

    /// Returns the SQL statements that prepare the database. Running them again does no harm.
    pub fn statements(&self) -> String {
        postgres::schema::statements(self.postgres)
    }

    /// Runs the SQL statements that prepare the database, as the user `login`. Must be called on a tokio runtime.
    ///
    /// # Errors
    ///
    /// When the database cannot be reached, or refuses the login or a statement.
    pub async fn run(&self, login: &Login) -> Result<(), Fault> {
        let mut settings = self.postgres.clone();
        if let Login::As { user, password } = login {
            settings.login = remote::login::Login {
                username: Some(user.clone()),
                password: password.clone(),
                tls: settings.login.tls.clone(),
            };
        }
        postgres::inspect::run_statements(&settings, &self.statements()).await
    }
}

impl fmt::Display for Initialization<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.settings.endpoint().iter().try_for_each(|endpoint| endpoint.fmt(f))
    }
}
