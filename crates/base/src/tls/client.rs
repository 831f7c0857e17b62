//! TLS settings for connections to a server: how the server is verified, and which certificate the gateway presents.
//!
//! Files are read when a configuration is loaded, so that an invalid file is a problem of the configuration. They are
//! read again for every connection, so that a renewed certificate needs no restart.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::sign::SingleCertAndKey;
use rustls::{ClientConfig, RootCertStore};
use sha2::{Digest, Sha256};

use super::any_certificate::AnyCertificate;
use super::certificate_file::{PairFault, authorities, chain, pair};
use super::pem::{certificates, private_key};
use super::system_roots;
use crate::named_file::NamedFile;

/// The settings under the key `tls` for connections to one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The PEM file with the trusted certificate authorities. `None` means the authorities that this machine trusts.
    pub ca_file: Option<NamedFile>,
    pub certificate: Option<CertificateFiles>,
    /// The name that the server's certificate must have. `None` means the host to which the gateway connects.
    pub server_name: Option<ServerName<'static>>,
    pub verification: Verification,
}

/// The PEM files of a client certificate with its chain, and of its private key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFiles {
    pub cert_file: NamedFile,
    pub key_file: NamedFile,
}

/// Whether the certificate of the server is verified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verification {
    #[default]
    Required,
    Off,
}

/// A setting under `tls` that names a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKey {
    CaFile,
    CertFile,
    KeyFile,
}

impl FileKey {
    pub fn name(self) -> &'static str {
        match self {
            FileKey::CaFile => "ca_file",
            FileKey::CertFile => "cert_file",
            FileKey::KeyFile => "key_file",
        }
    }
}

/// The error for a file that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileError {
    pub key: FileKey,
    pub what: String,
}

/// The TLS client for connections to one server: its settings, and the TLS configuration that was last made from them.
#[derive(Debug)]
pub struct Client {
    settings: Settings,
    last: Mutex<Built>,
}

/// The parsed files of a client: the authorities that verify the server, and the certificate that is presented to it.
#[derive(Debug)]
pub struct Material {
    pub authorities: Vec<CertificateDer<'static>>,
    pub identity: Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>,
    /// A hash of the content of all files.
    pub hash: [u8; 32],
}

/// The TLS configuration, with the hash of the contents of the files from which it was made.
#[derive(Debug)]
struct Built {
    content: [u8; 32],
    config: Arc<ClientConfig>,
}

impl Client {
    /// Makes a client from the content that the files had when the configuration was loaded.
    ///
    /// # Errors
    ///
    /// When a certificate or key cannot be parsed, or there is no trusted authority.
    pub fn new(settings: Settings) -> Result<Client, FileError> {
        let built = Built::new(&settings, &Contents::of(&settings, |file| Ok(Cow::Borrowed(file.loaded())))?)?;
        Ok(Client { settings, last: Mutex::new(built) })
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns the TLS configuration that was made last. Reads no file.
    pub fn last_config(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.last.lock().config)
    }

    /// Parses the content that the files had when the configuration was loaded.
    ///
    /// # Errors
    ///
    /// For the same reasons as [`Client::new`]. If that function has accepted the settings, there is no error.
    pub fn material(&self) -> Result<Material, FileError> {
        let contents = Contents::of(&self.settings, |file| Ok(Cow::Borrowed(file.loaded())))?;
        let authorities = match contents.ca.as_deref() {
            Some(pem) => certificates(pem).map_err(unusable(FileKey::CaFile))?,
            None => system_roots(),
        };
        let identity = match contents.certificate.as_ref().zip(contents.key.as_ref()) {
            Some((certificate, key)) => {
                let chain = certificates(certificate).map_err(unusable(FileKey::CertFile))?;
                let key = private_key(key).map_err(unusable(FileKey::KeyFile))?;
                Some((chain, key))
            }
            None => None,
        };
        Ok(Material { authorities, identity, hash: contents.hash() })
    }

    /// Reads the files again and returns the TLS configuration. While the files do not change, returns the same
    /// configuration, so that TLS sessions can be resumed. May block.
    ///
    /// # Errors
    ///
    /// For the same reasons as [`Client::new`], and if a file cannot be read.
    pub fn config(&self) -> Result<Arc<ClientConfig>, FileError> {
        let contents = Contents::of(&self.settings, NamedFile::read)?;
        let mut last = self.last.lock();
        if last.content != contents.hash() {
            *last = Built::new(&self.settings, &contents)?;
        }
        Ok(Arc::clone(&last.config))
    }

    /// Whether the settings name any file.
    pub fn has_files(&self) -> bool {
        self.settings.ca_file.is_some() || self.settings.certificate.is_some()
    }

    /// Returns the error as a text for a log, with the path of the file.
    pub fn describe(&self, error: &FileError) -> String {
        let certificate = self.settings.certificate.as_ref();
        let file = match error.key {
            FileKey::CaFile => self.settings.ca_file.as_ref(),
            FileKey::CertFile => certificate.map(|files| &files.cert_file),
            FileKey::KeyFile => certificate.map(|files| &files.key_file),
        };
        let path = file.map_or(String::new(), |file| format!(" {}", file.path().display()));
        format!("{}{path}: {}", error.key.name(), error.what)
    }
}

impl PartialEq for Client {
    fn eq(&self, other: &Client) -> bool {
        self.settings == other.settings
    }
}

impl Eq for Client {}

/// The content of each file. `None` for a file that the settings do not name.
struct Contents<'s> {
    ca: Option<Cow<'s, [u8]>>,
    certificate: Option<Cow<'s, [u8]>>,
    key: Option<Cow<'s, [u8]>>,
}

impl<'s> Contents<'s> {
    fn of(
        settings: &'s Settings,
        read: impl Fn(&'s NamedFile) -> io::Result<Cow<'s, [u8]>>,
    ) -> Result<Contents<'s>, FileError> {
        let content = |key, file: Option<&'s NamedFile>| {
            file.map(&read)
                .transpose()
                .map_err(|error| FileError { key, what: format!("must be a readable file ({error})") })
        };
        let certificate = settings.certificate.as_ref();
        Ok(Contents {
            ca: content(FileKey::CaFile, settings.ca_file.as_ref())?,
            certificate: content(FileKey::CertFile, certificate.map(|files| &files.cert_file))?,
            key: content(FileKey::KeyFile, certificate.map(|files| &files.key_file))?,
        })
    }

    /// Returns one hash of the content of all files. A file that the settings do not name counts as empty.
    fn hash(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        for content in [&self.ca, &self.certificate, &self.key] {
            hash.update(Sha256::digest(content.as_deref().unwrap_or_default()));
        }
        hash.finalize().into()
    }
}

impl Built {
    /// Makes the settings with TLS 1.2 and 1.3. The provider is ring, as in Pingora, so that the process has one crypto
    /// library.
    fn new(settings: &Settings, contents: &Contents<'_>) -> Result<Built, FileError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(unusable(FileKey::CaFile))?;
        let builder = match settings.verification {
            Verification::Required => builder.with_root_certificates(roots(contents.ca.as_deref())?),
            Verification::Off => {
                // The authorities in the file are not used, but a mistake in the file is still reported.
                contents.ca.as_deref().map(|pem| roots(Some(pem))).transpose()?;
                let verifier = Arc::new(AnyCertificate(Arc::clone(&provider)));
                builder.dangerous().with_custom_certificate_verifier(verifier)
            }
        };
        let config = match contents.certificate.as_ref().zip(contents.key.as_ref()) {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = chain(certificate).map_err(unusable(FileKey::CertFile))?;
                let pair = pair(chain, key, &provider).map_err(|fault| match fault {
                    PairFault::Certificate(what) => unusable(FileKey::CertFile)(what),
                    PairFault::Key(what) => unusable(FileKey::KeyFile)(what),
                    PairFault::Mismatch(what) => FileError { key: FileKey::KeyFile, what },
                })?;
                builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(pair)))
            }
        };
        Ok(Built { content: contents.hash(), config: Arc::new(config) })
    }
}

fn unusable<E: fmt::Display>(key: FileKey) -> impl Fn(E) -> FileError {
    move |error| FileError { key, what: format!("cannot be used: {error}") }
}

/// Returns the authorities in the file `pem`. Without a file, returns the authorities that this machine trusts.
fn roots(pem: Option<&[u8]>) -> Result<RootCertStore, FileError> {
    if let Some(pem) = pem {
        return authorities(pem).map_err(unusable(FileKey::CaFile));
    }
    let mut store = RootCertStore::empty();
    let (usable, _) = store.add_parsable_certificates(system_roots());
    if usable == 0 {
        let what = "is missing: this machine trusts no authority".to_owned();
        return Err(FileError { key: FileKey::CaFile, what });
    }
    Ok(store)
}
