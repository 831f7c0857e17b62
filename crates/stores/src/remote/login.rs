//! Holds the login of connections to a store: user, password, TLS. Its files are read again for every connection.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::sync::Mutex as FairMutex;

use crate::error::{Fault, StoreError};
use base::secret::{Secret, SecretSource};
use base::tls::client::Client;

/// The user, the password and the TLS settings of a store, as in the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Login {
    pub username: Option<String>,
    pub password: Option<SecretSource>,
    /// The TLS settings. `None` if connections do not use TLS.
    pub tls: Option<Arc<Client>>,
}

/// The login for one connection, after its files were read.
#[derive(Clone, Debug)]
pub struct Credentials {
    pub username: Option<String>,
    /// The password, which is never empty. `None` if there is no password.
    pub password: Option<Secret>,
    pub tls: Option<Tls>,
}

#[derive(Clone, Debug)]
pub struct Tls {
    pub config: Arc<ClientConfig>,
    /// The name that the server's certificate must have. `None` for the name of the host to which the gateway
    /// connects.
    pub server_name: Option<ServerName<'static>>,
}

/// The login that new connections use. A reload replaces it.
#[derive(Debug)]
pub struct CurrentLogin {
    login: ArcSwap<Login>,
    /// A lock for reading files, so that a file system that hangs occupies only one thread.
    reading: Arc<FairMutex<()>>,
}

impl Login {
    /// Whether the configuration was loaded with a password that is not empty.
    pub fn has_password(&self) -> bool {
        let password = self.password.as_ref().and_then(SecretSource::loaded);
        password.is_some_and(|password| !password.reveal().is_empty())
    }

    fn has_files(&self) -> bool {
        matches!(self.password, Some(SecretSource::File(_))) || self.tls.as_ref().is_some_and(|tls| tls.has_files())
    }

    /// Reads the credentials. May block.
    ///
    /// # Errors
    ///
    /// When a file cannot be read or used.
    fn credentials(&self) -> Result<Credentials, Fault> {
        let unusable = |detail: String| Fault::new(StoreError::UnusableFile, detail);
        let password = self.password.as_ref().map(SecretSource::read).transpose();
        let password = password.map_err(|error| unusable(format!("password_file {error}")))?;
        let tls = |client: &Arc<Client>| match client.config() {
            Ok(config) => Ok(Tls { config, server_name: client.settings().server_name.clone() }),
            Err(error) => Err(unusable(format!("tls: {}", client.describe(&error)))),
        };
        Ok(Credentials {
            username: self.username.clone(),
            password: password.filter(|password| !password.reveal().is_empty()),
            tls: self.tls.as_ref().map(tls).transpose()?,
        })
    }
}

impl CurrentLogin {
    pub fn new(login: Login) -> CurrentLogin {
        CurrentLogin { login: ArcSwap::from_pointee(login), reading: Arc::default() }
    }

    /// Replaces the login for new connections. Open connections are kept.
    pub fn replace(&self, login: &Login) {
        if **self.login.load() != *login {
            self.login.store(Arc::new(login.clone()));
        }
    }

    /// Reads the credentials, and waits for at most `most`. Files are read on a thread that serves no requests.
    ///
    /// # Errors
    ///
    /// When a file cannot be read or used, or takes too long to read.
    pub async fn read(&self, most: Duration) -> Result<Credentials, Fault> {
        let login = self.login.load_full();
        if !login.has_files() {
            return login.credentials();
        }
        let reading = async {
            let turn = Arc::clone(&self.reading).lock_owned().await;
            let read = move || {
                let credentials = login.credentials();
                drop(turn);
                credentials
            };
            let failed = |_| Fault::new(StoreError::UnusableFile, "reading the files of `store` was interrupted");
            tokio::task::spawn_blocking(read).await.map_err(failed)?
        };
        let late = format!("reading the files of `store` took longer than {most:?}");
        let overdue = |_| Fault::new(StoreError::UnusableFile, late);
        tokio::time::timeout(most, reading).await.map_err(overdue)?
    }
}
