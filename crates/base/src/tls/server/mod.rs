//! TLS settings for connections from clients. A client gets the certificate for the name that it asks for.
//!
//! Files are read when a configuration is loaded, so that an invalid file is a problem of the configuration. They are
//! read again when they have changed. Either all changed files come into force, or none. A connection keeps the
//! certificates with which it began.

mod certificate;
mod certificates;
mod client_verifier;
mod session;

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;

use crate::http_protocol::HttpProtocol;
use crate::named_file::NamedFile;
use crate::time::Timestamp;

pub use certificate::Validity;
pub use certificates::{Certificates, Entry};
pub use session::Session;

/// The settings under the key `tls` of one listener.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The entries of the list `certificates`, in the order of the configuration.
    pub certificates: Vec<CertificateSettings>,
    pub min_version: MinVersion,
    /// The protocols that are offered to clients (ALPN), the preferred one first.
    pub protocols: Vec<HttpProtocol>,
    pub unknown_names: UnknownNames,
}

/// One entry of the list `certificates`: the files of a certificate, and how its clients are authenticated.
#[derive(Clone, Debug)]
pub struct CertificateSettings {
    /// The PEM file with the certificate and its chain. `None` if the configuration is only examined and the file's
    /// path is unknown.
    pub cert_file: Option<NamedFile>,
    /// The PEM file with the private key. `None` if the configuration is only examined and the key cannot be read.
    pub key_file: Option<NamedFile>,
    /// The PEM file with the authorities that verify the certificates of clients.
    pub client_ca_file: Option<NamedFile>,
    /// The PEM file with the revocation lists for the certificates of clients.
    pub client_crl_file: Option<NamedFile>,
    pub client_auth: ClientAuth,
}

/// Whether clients must present a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClientAuth {
    /// Clients are not asked for a certificate.
    Off,
    /// A client may present a certificate. If it does, the certificate must be valid.
    Optional,
    Required,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MinVersion {
    Tls12,
    Tls13,
}

/// What happens to a client that asks for no name, or for a name without a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnknownNames {
    /// The client gets the first certificate.
    First,
    /// The connection is closed. All other connections serve only hosts that their certificate covers.
    Closed,
}

/// A setting in an entry of `certificates` that names a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKey {
    CertFile,
    KeyFile,
    ClientCaFile,
    ClientCrlFile,
}

impl FileKey {
    pub fn name(self) -> &'static str {
        match self {
            FileKey::CertFile => "cert_file",
            FileKey::KeyFile => "key_file",
            FileKey::ClientCaFile => "client_ca_file",
            FileKey::ClientCrlFile => "client_crl_file",
        }
    }
}

/// A file of an entry that cannot be used, and the reason.
struct Unusable {
    key: FileKey,
    what: String,
}

impl Unusable {
    fn because(key: FileKey, error: impl fmt::Display) -> Unusable {
        Unusable { key, what: format!("cannot be used: {error}") }
    }
}

/// The error for a file that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileError {
    /// The index in `certificates` of the entry that names the file.
    pub entry: usize,
    pub key: FileKey,
    pub what: String,
}

/// The TLS server of one listener. Its certificates are replaced when their files change.
pub struct Server {
    settings: Settings,
    in_force: ArcSwap<Certificates>,
    /// Whether the certificates of the former settings are still in force, because the new ones were not valid.
    is_of_before: AtomicBool,
}

impl fmt::Debug for Server {
    /// Leaves out the content of the files.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Server").field(&self.settings).finish()
    }
}

impl Server {
    /// Makes a server from the content that the files had when the configuration was loaded.
    ///
    /// # Errors
    /// Returns one error for each file that cannot be used.
    pub fn new(settings: Settings) -> Result<Server, Vec<FileError>> {
        let certificates = Certificates::read(&settings, |file| Ok(Cow::Borrowed(file.loaded())), None)?;
        Ok(Server { settings, in_force: ArcSwap::from_pointee(certificates), is_of_before: AtomicBool::new(false) })
    }

    /// Returns this server as the successor of `before`. Clients can resume sessions of `before` if both servers
    /// authenticate clients in the same way. If a new certificate is not valid at the moment `now`, the certificates of
    /// `before` stay in force until valid ones are read.
    #[must_use]
    pub fn replacing(&self, before: &Server, now: Timestamp) -> Server {
        let (settings, known) = (self.settings.clone(), before.in_force.load());
        let certificates = Certificates::read(&settings, |file| Ok(Cow::Borrowed(file.loaded())), Some(&known));
        let certificates = certificates.map_or_else(|_| self.in_force.load_full(), Arc::new);
        let is_valid = certificates.invalid_beside(&known, now).is_empty();
        let certificates = if is_valid { certificates } else { Arc::clone(&known) };
        Server { settings, in_force: ArcSwap::new(certificates), is_of_before: AtomicBool::new(!is_valid) }
    }

    /// Whether the certificates of the former settings are still in force, because the new ones were not valid.
    pub fn keeps_former(&self) -> bool {
        self.is_of_before.load(Ordering::Acquire)
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    pub fn in_force(&self) -> Arc<Certificates> {
        self.in_force.load_full()
    }

    /// Returns all files in the settings, each with the index of its entry in `certificates` and the setting that names
    /// it.
    pub fn files(&self) -> impl Iterator<Item = (usize, FileKey, &NamedFile)> {
        self.settings.certificates.iter().enumerate().flat_map(|(entry, certificate)| {
            let files = [
                (FileKey::CertFile, certificate.cert_file.as_ref()),
                (FileKey::KeyFile, certificate.key_file.as_ref()),
                (FileKey::ClientCaFile, certificate.client_ca_file.as_ref()),
                (FileKey::ClientCrlFile, certificate.client_crl_file.as_ref()),
            ];
            files.into_iter().filter_map(move |(key, file)| Some((entry, key, file?)))
        })
    }

    /// Whether both servers have the same settings and files. Protocols and the content of files are not compared.
    pub fn is_set_alike(&self, other: &Server) -> bool {
        let options = |server: &Server| {
            let auth: Vec<_> = server.settings.certificates.iter().map(|one| one.client_auth).collect();
            (server.settings.min_version, server.settings.unknown_names, auth)
        };
        let paths = |server: &Server| -> Vec<_> {
            server.files().map(|(entry, key, file)| (entry, key, file.path().to_owned())).collect()
        };
        options(self) == options(other) && paths(self) == paths(other)
    }

    /// Reads the files again. If their content has changed, the new certificates come into force. May block.
    ///
    /// # Errors
    /// Returns one error for each file that cannot be used, or whose new certificate is not valid at the moment `now`. The
    /// former certificates then stay in force.
    pub fn reread(&self, now: Timestamp) -> Result<RereadResult, Vec<FileError>> {
        let before = self.in_force.load();
        let certificates = Certificates::read(&self.settings, NamedFile::read, Some(&before))?;
        if certificates.has_content_of(&before) && !self.keeps_former() {
            return Ok(RereadResult::Unchanged);
        }
        let invalid = certificates.invalid_beside(&before, now);
        if !invalid.is_empty() {
            return Err(invalid);
        }
        drop(before);
        self.in_force.store(Arc::new(certificates));
        self.is_of_before.store(false, Ordering::Release);
        Ok(RereadResult::Changed)
    }

    /// Returns the error as a text for a log, with the path of the file.
    pub fn describe(&self, error: &FileError) -> String {
        let named = self.files().find(|(entry, key, _)| *entry == error.entry && *key == error.key);
        let path = named.map_or(Path::new(""), |(_, _, file)| file.path());
        format!("certificates[{}].{} {}: {}", error.entry, error.key.name(), path.display(), error.what)
    }
}

/// The result of [`Server::reread`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RereadResult {
    Changed,
    Unchanged,
}

/// The function that reads the content of a file.
type ReadFile<'r, 's> = &'r dyn Fn(&'s NamedFile) -> io::Result<Cow<'s, [u8]>>;
