//! Prepares a store that needs tables.

use std::fmt;

use super::error::Fault;
use super::postgres;
use super::remote;
use super::settings::Settings;
use base::secret::SecretSource;

/// The preparation of a database, which must run once before gateways can use it as a store.
#[derive(Debug)]
pub struct Initialization<'s> {
    settings: &'s Settings,
    postgres: &'s postgres::Settings,
}

/// The user who prepares the database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Login {
    /// The user in gateway.yaml.
    OfGateway,
    As {
        user: String,
        password: Option<SecretSource>,
    },
}

impl Initialization<'_> {
    /// The preparation of this store; `None` for a store that needs no tables.
    pub fn of(settings: &Settings) -> Option<Initialization<'_>> {
        match settings {
            Settings::Memory(_) | Settings::Redis(_) => None,
            Settings::Postgres(postgres) => Some(Initialization { settings, postgres }),
        }
    }

    /// The SQL statements. Running them again does no harm.
    pub fn statements(&self) -> String {
        postgres::schema::statements(self.postgres)
    }

    /// Runs the statements. Must run on a tokio runtime.
    ///
    /// # Errors
    ///
    /// When the database cannot be reached, or refuses.
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
