//! Prepares the database of a store that keeps its buckets in tables.

use std::fmt;

use super::error::{Fault, StoreError};
use super::events::EventSink;
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

    /// Runs the SQL statements that prepare the database, as the user `login`. Must be called on a tokio runtime. The
    /// notices of the server are sent to `events`.
    ///
    /// # Errors
    ///
    /// When the database cannot be reached, or refuses the login or a statement.
    pub async fn run(&self, login: &Login, events: &EventSink) -> Result<(), Fault> {
        let mut settings = self.postgres.clone();
        if let Login::As { user, password } = login {
            settings.login = remote::login::Login {
                username: Some(user.clone()),
                password: password.clone(),
                tls: settings.login.tls.clone(),
            };
        }
        postgres::inspect::run_statements(&settings, &self.statements(), events).await
    }

    /// Checks that the gateway's own user can log in and use the tables. Must be called on a tokio runtime. The notices of
    /// the server are sent to `events`.
    ///
    /// # Errors
    ///
    /// When this user cannot do so, with a statement or setting that helps, if one is known.
    pub async fn check_gateway_login(&self, events: &EventSink) -> Result<(), GatewayLoginFault> {
        let fault = match postgres::inspect::Inspector::open(self.postgres, events).await {
            Ok(_) => return Ok(()),
            Err(fault) => fault,
        };
        let (user, database) = (self.postgres.user(), &self.postgres.database);
        let [role, of_database] = [user, database].map(postgres::schema::identifier);
        // The key where gateway.yaml has the password already.
        let key = match &self.postgres.login.password {
            Some(SecretSource::Inline(_)) => "password",
            Some(SecretSource::File(_)) | None => "password_file",
        };
        let help = match fault.error {
            StoreError::Unauthorized if fault.detail.contains("pg_hba.conf") => Some(format!(
                "add this line to pg_hba.conf and reload the server: host {of_database} {role} samenet scram-sha-256"
            )),
            StoreError::Unauthorized => Some(format!(
                "run this statement as an administrator, and write the same password to `store.postgres.{key}`: \
                 ALTER ROLE {role} LOGIN PASSWORD 'SECRET';"
            )),
            StoreError::Forbidden => Some(format!(
                "run this statement as an administrator: GRANT CONNECT ON DATABASE {of_database} TO {role};"
            )),
            _ if fault.detail.contains("password") => {
                Some(format!("name the password of {user} in `store.postgres.{key}`"))
            }
            _ => None,
        };
        Err(GatewayLoginFault { user: user.to_owned(), fault, help })
    }
}

/// Why the gateway's user cannot use the database, although its tables are ready.
#[derive(Clone, Debug)]
pub struct GatewayLoginFault {
    pub user: String,
    pub fault: Fault,
    /// What an administrator can do. `None` if the fault says all that is known.
    pub help: Option<String>,
}

impl fmt::Display for Initialization<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.settings.endpoint().iter().try_for_each(|endpoint| endpoint.fmt(f))
    }
}
